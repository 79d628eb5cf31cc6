//! A hash table from hashes to blocks: candidates only, to be compared.
//!
//! A bucket is half a cache line: six blocks with a byte of their hashes each, and how many entries went past as it was
//! full (after Facebook's F14). All bytes are compared at once, in one word. Entries never move, so that a removal touches
//! one bucket, and another block is looked at only if its byte agrees, too.

use std::num::NonZeroU32;

use crate::ids::{BlockHash, BlockId};

const WAYS: usize = 6;
/// One in each byte that is a way's tag.
const ONES: u64 = 0x0000_0101_0101_0101;
/// Where the count of entries that went past begins. It stays at its highest value once it is there.
const PASSED: u32 = 48;
const MOST_PASSED: u64 = 0xffff;

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Bucket {
    /// A tag for each way, 0 where it is empty; above them, how many went past.
    tags: u64,
    blocks: [u32; WAYS],
}

const _: () = assert!(size_of::<Bucket>() == 32);

impl Bucket {
    /// The ways with this tag, as the highest bits of bytes. A byte is the tag if nothing is left of it: neither its
    /// highest bit nor a carry of the others.
    #[inline]
    const fn ways(&self, tag: u64) -> Ways {
        const LOW: u64 = 0x7f * ONES;
        let left = self.tags ^ (tag * ONES);
        Ways(!(((left & LOW) + LOW) | left) & (ONES << 7))
    }

    /// Enters a block in an empty way.
    #[inline]
    const fn enter(&mut self, way: usize, tag: u64, block: BlockId) {
        self.tags |= tag << (8 * way);
        self.blocks[way] = block.0;
    }

    #[inline]
    const fn n_passed(&self) -> u64 {
        self.tags >> PASSED
    }
}

/// Where an entry is: found again without a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(NonZeroU32);

/// The entry is not in the bucket that its hash belongs to.
const AWAY: u32 = 1 << 31;
/// Always set.
const SET: u32 = 1 << 30;

impl Place {
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "there are less than 2^27 buckets")]
    const fn new(bucket: usize, way: usize, away: u32) -> Self {
        match NonZeroU32::new((bucket << 3 | way) as u32 | SET | away) {
            Some(place) => Self(place),
            None => Self(NonZeroU32::MAX),
        }
    }

    #[inline]
    const fn is_away(self) -> bool {
        self.0.get() & AWAY != 0
    }

    #[inline]
    const fn bucket(self) -> usize {
        ((self.0.get() & (SET - 1)) >> 3) as usize
    }

    #[inline]
    const fn way(self) -> u32 {
        self.0.get() & 7
    }
}

struct Ways(u64);

/// The candidates under a hash, as far as one look tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    None,
    One(BlockId),
    /// There may be several, or they are elsewhere.
    Many,
}

impl Iterator for Ways {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let way = self.0.trailing_zeros() / 8;
        if self.0 == 0 {
            return None;
        }
        self.0 &= self.0 - 1;
        Some(way as usize)
    }
}

/// The table. It has room for all blocks of a cache, so there is always an empty way.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Box<[Bucket]>,
    /// Hashes without their lowest so many bits are numbers of buckets.
    shift: u32,
}

impl Index {
    pub(crate) fn new(n_blocks: u32) -> Self {
        let n_buckets = (n_blocks as usize).div_ceil(3).next_power_of_two().max(2);
        Self {
            buckets: vec![Bucket::default(); n_buckets].into_boxed_slice(),
            shift: u64::BITS - n_buckets.trailing_zeros(),
        }
    }

    /// Whether nothing is entered, and nothing counted as gone past.
    #[cfg(test)]
    pub(crate) fn is_clean(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.tags == 0)
    }

    /// What one look tells of the candidates under `hash`.
    #[inline]
    pub(crate) fn look(&self, hash: BlockHash) -> Look {
        let bucket = &self.buckets[self.home(hash)];
        let Ways(ways) = bucket.ways(tag(hash));
        if bucket.n_passed() > 0 || ways & ways.wrapping_sub(1) != 0 {
            return Look::Many;
        }
        if ways == 0 {
            return Look::None;
        }
        Look::One(BlockId(bucket.blocks[ways.trailing_zeros() as usize / 8]))
    }

    /// The first block under `hash` that `is_it`.
    #[inline]
    pub(crate) fn find(&self, hash: BlockHash, mut is_it: impl FnMut(BlockId) -> bool) -> Option<BlockId> {
        let tag = tag(hash);
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for way in bucket.ways(tag) {
                let block = BlockId(bucket.blocks[way]);
                if is_it(block) {
                    return Some(block);
                }
            }
            if bucket.n_passed() == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Enters a block that is not entered, if one look tells that there is room and no candidate.
    #[inline]
    pub(crate) fn insert_alone(&mut self, hash: BlockHash, block: BlockId) -> Option<Place> {
        let (tag, at) = (tag(hash), self.home(hash));
        let bucket = &mut self.buckets[at];
        let way = bucket.ways(0).next()?;
        if bucket.ways(tag).0 != 0 || bucket.n_passed() > 0 {
            return None;
        }
        bucket.enter(way, tag, block);
        Some(Place::new(at, way, 0))
    }

    /// Enters a block that is not entered.
    #[inline]
    pub(crate) fn insert(&mut self, hash: BlockHash, block: BlockId) -> Place {
        let (mut at, mut away) = (self.home(hash), 0);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(way) = bucket.ways(0).next() {
                bucket.enter(way, tag(hash), block);
                return Place::new(at, way, away);
            }
            bucket.tags += u64::from(bucket.n_passed() < MOST_PASSED) << PASSED;
            (at, away) = (self.after(at), AWAY);
        }
    }

    /// Takes out an entry, of a block with this `hash`.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place, hash: impl FnOnce() -> BlockHash) {
        self.buckets[place.bucket()].tags &= !(0xff << (8 * place.way()));
        if place.is_away() {
            self.pass_no_more(hash(), place.bucket());
        }
    }

    #[cold]
    fn pass_no_more(&mut self, hash: BlockHash, until: usize) {
        let mut at = self.home(hash);
        while at != until {
            let bucket = &mut self.buckets[at];
            bucket.tags -= u64::from(bucket.n_passed() < MOST_PASSED) << PASSED;
            at = self.after(at);
        }
    }

    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low half is meant, and what is left of it is an index"
    )]
    const fn home(&self, hash: BlockHash) -> usize {
        (hash.0 as u64 >> self.shift) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.buckets.len() - 1)
    }
}

/// Never that of an empty way.
#[inline]
const fn tag(hash: BlockHash) -> u64 {
    (hash.0 >> 120) as u64 | 1
}
