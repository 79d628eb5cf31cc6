//! The index of the free blocks: by length, and by how much of them is in whole handles.
//!
//! Both are bins with a bitmap over them, and a list through the blocks in each bin: an insert, a
//! removal and a search ([`FreeIndex::at_least`]) take a bounded number of steps, whatever the
//! number of free blocks. A bin of lengths spans 3 %; the first few blocks of its list are in
//! order, so that with short lists, as programs have them, the shortest fit of the lowest address
//! comes first.

use crate::units::{GRANULE_BYTES, NONE, PAGE};

/// Bins per power of two, as an exponent.
const MANTISSA_BITS: u32 = 5;
/// Bins of lengths: exact below 32 granules, then 32 per power of two up to 2^44 bytes.
const N_BINS: usize = 32 * 32;
/// Blocks of a bin of lengths that are kept in order; those of clean bytes are not.
const N_SORTED: usize = 3;
/// Blocks of a bin that a search looks at before it goes on to the next bin.
const N_LOOKS: usize = 8;

/// Links of a free block in the lists of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    next: u32,
    prev: u32,
}

impl Links {
    pub(crate) const NONE: Self = Self { next: NONE, prev: NONE };
}

/// What the index needs to know of a block.
pub(crate) trait Indexed {
    /// Length, then start.
    fn key(&self) -> (u64, u64);
    fn clean_bytes(&self) -> u64;
    fn links(&mut self, by: By) -> &mut Links;
    fn link(&self, by: By) -> Links;
}

/// Which list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Bytes,
    Clean,
}

/// Lists of blocks, one per bin, and which are not empty.
#[derive(Debug)]
struct Bins<const N: usize> {
    by: By,
    heads: Box<[u32]>,
    words: [u64; 16],
    summary: u16,
}

/// Free blocks by length and by clean bytes.
#[derive(Debug)]
pub(crate) struct FreeIndex {
    lengths: Bins<N_BINS>,
    cleans: Bins<64>,
    clean_bytes: u64,
}

impl FreeIndex {
    pub(crate) fn new() -> Self {
        Self { lengths: Bins::new(By::Bytes), cleans: Bins::new(By::Clean), clean_bytes: 0 }
    }

    /// Enters the free block `at`.
    #[inline]
    pub(crate) fn insert<B: Indexed>(&mut self, blocks: &mut [B], at: u32) {
        let block = &blocks[at as usize];
        let ((bytes, _), clean) = (block.key(), block.clean_bytes());
        self.lengths.insert(blocks, length_bin(bytes), at, N_SORTED);
        if clean > 0 {
            self.cleans.insert(blocks, clean_bin(clean), at, 0);
            self.clean_bytes += clean;
        }
    }

    /// Takes the free block `at` out.
    #[inline]
    pub(crate) fn remove<B: Indexed>(&mut self, blocks: &mut [B], at: u32) {
        let block = &blocks[at as usize];
        let ((bytes, _), clean) = (block.key(), block.clean_bytes());
        self.lengths.remove(blocks, length_bin(bytes), at);
        if clean > 0 {
            self.cleans.remove(blocks, clean_bin(clean), at);
            self.clean_bytes -= clean;
        }
    }

    /// Free bytes in whole free handles.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.clean_bytes
    }

    /// The longest free block in bytes.
    pub(crate) fn largest_bytes<B: Indexed>(&self, blocks: &[B]) -> u64 {
        let Some(bin) = self.lengths.last(N_BINS) else { return 0 };
        self.lengths.list(blocks, bin).map(|b| blocks[b as usize].key().0).max().unwrap_or(0)
    }

    /// Shows `look` free blocks of at least `bytes`, from the shortest on, until it returns a
    /// value; not all where many are as short.
    pub(crate) fn at_least<B: Indexed, T>(
        &self,
        blocks: &[B],
        bytes: u64,
        mut look: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let mut bin = length_bin(bytes);
        let mut block = self.lengths.heads[bin];
        loop {
            for _ in 0..N_LOOKS {
                if block == NONE {
                    break;
                }
                let b = &blocks[block as usize];
                if b.key().0 >= bytes
                    && let Some(value) = look(block)
                {
                    return Some(value);
                }
                block = b.link(By::Bytes).next;
            }
            bin = self.lengths.first(bin + 1)?;
            block = self.lengths.heads[bin];
        }
    }

    /// Any free block of at least `bytes`, if there is one: unlike other searches, this one looks
    /// at all blocks of about that length if need be.
    pub(crate) fn any<B: Indexed>(&self, blocks: &[B], bytes: u64) -> Option<u32> {
        let first = length_bin(bytes);
        let fits = |&b: &u32| blocks[b as usize].key().0 >= bytes;
        self.lengths
            .list(blocks, first)
            .find(fits)
            .or_else(|| self.lengths.first(first + 1).and_then(|bin| self.lengths.list(blocks, bin).next()))
    }

    /// Free blocks shorter than `bytes`, about from the longest on.
    pub(crate) fn below<'a, B: Indexed>(
        &'a self,
        blocks: &'a [B],
        bytes: u64,
    ) -> impl Iterator<Item = u32> + 'a {
        let bins =
            std::iter::successors(self.lengths.last(length_bin(bytes) + 1), |&bin| self.lengths.last(bin));
        bins.flat_map(move |bin| self.lengths.list(blocks, bin))
            .filter(move |&b| blocks[b as usize].key().0 < bytes)
    }

    /// Free blocks with whole handles, about from those with most clean bytes on.
    pub(crate) fn by_clean<'a, B: Indexed>(&'a self, blocks: &'a [B]) -> impl Iterator<Item = u32> + 'a {
        let bins = std::iter::successors(self.cleans.last(64), |&bin| self.cleans.last(bin));
        bins.flat_map(move |bin| self.cleans.list(blocks, bin))
    }
}

impl<const N: usize> Bins<N> {
    fn new(by: By) -> Self {
        Self { by, heads: vec![NONE; N].into(), words: [0; 16], summary: 0 }
    }

    /// Puts `at` in its place among the first `n_sorted` of the list.
    #[inline]
    fn insert<B: Indexed>(&mut self, blocks: &mut [B], bin: usize, at: u32, n_sorted: usize) {
        let key = blocks[at as usize].key();
        let (mut prev, mut next) = (NONE, self.heads[bin]);
        for _ in 0..n_sorted {
            if next == NONE || blocks[next as usize].key() > key {
                break;
            }
            (prev, next) = (next, blocks[next as usize].link(self.by).next);
        }
        *blocks[at as usize].links(self.by) = Links { next, prev };
        if next != NONE {
            blocks[next as usize].links(self.by).prev = at;
        }
        if prev == NONE {
            self.heads[bin] = at;
            self.words[bin / 64] |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        } else {
            blocks[prev as usize].links(self.by).next = at;
        }
    }

    #[inline]
    fn remove<B: Indexed>(&mut self, blocks: &mut [B], bin: usize, at: u32) {
        let Links { next, prev } = blocks[at as usize].link(self.by);
        if next != NONE {
            blocks[next as usize].links(self.by).prev = prev;
        }
        if prev != NONE {
            blocks[prev as usize].links(self.by).next = next;
            return;
        }
        self.heads[bin] = next;
        if next == NONE {
            self.words[bin / 64] &= !(1 << (bin % 64));
            if self.words[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// The first bin from `from` on that is not empty.
    #[inline]
    fn first(&self, from: usize) -> Option<usize> {
        if from >= N {
            return None;
        }
        let here = self.words[from / 64] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(from / 64 * 64 + here.trailing_zeros() as usize);
        }
        let words = u32::from(self.summary) & (u32::MAX << (from / 64 + 1));
        (words != 0).then(|| {
            let word = words.trailing_zeros() as usize;
            word * 64 + self.words[word].trailing_zeros() as usize
        })
    }

    /// The last bin before `before` that is not empty.
    fn last(&self, before: usize) -> Option<usize> {
        let bit = before.min(N).checked_sub(1)?;
        let here = self.words[bit / 64] & (u64::MAX >> (63 - bit % 64));
        if here != 0 {
            return Some(bit / 64 * 64 + 63 - here.leading_zeros() as usize);
        }
        let words = self.summary & ((1 << (bit / 64)) - 1);
        (words != 0).then(|| {
            let word = 15 - words.leading_zeros() as usize;
            word * 64 + 63 - self.words[word].leading_zeros() as usize
        })
    }

    fn list<'a, B: Indexed>(&self, blocks: &'a [B], bin: usize) -> impl Iterator<Item = u32> + 'a {
        let by = self.by;
        let node = |b: u32| (b != NONE).then_some(b);
        std::iter::successors(node(self.heads[bin]), move |&b| node(blocks[b as usize].link(by).next))
    }
}

/// The bin of a length in bytes: all lengths of a bin are shorter than those of the next.
#[inline]
fn length_bin(bytes: u64) -> usize {
    let granules = bytes / GRANULE_BYTES;
    let Some(exponent) = granules.checked_ilog2().and_then(|e| e.checked_sub(MANTISSA_BITS)) else {
        return usize::try_from(granules).unwrap_or(0);
    };
    let mantissa = usize::try_from(granules >> exponent).unwrap_or(0);
    (((exponent as usize) << MANTISSA_BITS) + mantissa).min(N_BINS - 1)
}

/// The bin of clean bytes: powers of two in pages.
#[inline]
fn clean_bin(bytes: u64) -> usize {
    (bytes / PAGE).checked_ilog2().map_or(0, |e| e as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_order_and_3_percent_wide() {
        let lengths =
            (1..=64).chain((6..34).flat_map(|e| (0..64).map(move |i| (1u64 << e) + (i << (e - 6)))));
        let mut last = 0;
        for granules in lengths {
            let bin = length_bin(granules * GRANULE_BYTES);
            assert!(bin >= last && bin < N_BINS, "{granules} granules are in bin {bin} behind {last}");
            last = bin;
        }
        assert_ne!(length_bin(100 << 20), length_bin(104 << 20));
        assert_eq!(length_bin(512 * 31), 31);
    }
}
