//! The blocks that segments are cut into, and the index of the free ones.

use std::collections::BTreeSet;

use glake_core::units::{AddressRange, DevicePtr, StreamId};

use super::{MIN_BLOCK_BYTES, SMALL_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Small,
    Large,
}

/// A stream's small or large pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pool {
    pub(super) stream: StreamId,
    pub(super) kind: Kind,
}

pub(super) type BlockId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Live,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    pool: Pool,
    range: AddressRange,
    state: State,
    previous: Option<BlockId>,
    next: Option<BlockId>,
}

#[derive(Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    unused: Vec<BlockId>,
    /// Free blocks by pool, size, address.
    free: BTreeSet<(Pool, u64, DevicePtr, BlockId)>,
}

impl Blocks {
    fn key(&self, id: BlockId) -> (Pool, u64, DevicePtr, BlockId) {
        let block = &self.all[id];
        (block.pool, block.range.bytes, block.range.start, id)
    }

    fn add(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.unused.pop() {
            self.all[id] = block;
            id
        } else {
            self.all.push(block);
            self.all.len() - 1
        }
    }

    /// Adds a segment as one free block.
    pub(super) fn add_segment(&mut self, pool: Pool, range: AddressRange) -> BlockId {
        let id = self.add(Block { pool, range, state: State::Free, previous: None, next: None });
        self.free.insert(self.key(id));
        id
    }

    /// Takes a wholly free segment out.
    pub(super) fn remove_segment(&mut self, id: BlockId) {
        self.free.remove(&self.key(id));
        self.unused.push(id);
    }

    /// The smallest free block of at least `bytes`, the lowest of several.
    pub(super) fn best_fit(&self, pool: Pool, bytes: u64) -> Option<BlockId> {
        let first = self.free.range((pool, bytes, DevicePtr(0), 0)..).next()?;
        (first.0 == pool).then_some(first.3)
    }

    /// Takes `bytes` from the low end of the free block `id`, or the whole of it where the rest
    /// would be too small to be a block. Returns what was taken.
    pub(super) fn take(&mut self, id: BlockId, bytes: u64) -> AddressRange {
        self.free.remove(&self.key(id));
        let Block { pool, range, next, .. } = self.all[id];
        let rest_bytes = range.bytes - bytes;
        let splits = match pool.kind {
            Kind::Small => rest_bytes >= MIN_BLOCK_BYTES,
            Kind::Large => rest_bytes > SMALL_BYTES,
        };
        if splits {
            let rest = AddressRange::new(range.start + bytes, rest_bytes);
            let rest = self.add(Block { pool, range: rest, state: State::Free, previous: Some(id), next });
            if let Some(next) = next {
                self.all[next].previous = Some(rest);
            }
            self.all[id].next = Some(rest);
            self.all[id].range.bytes = bytes;
            self.free.insert(self.key(rest));
        }
        self.all[id].state = State::Live;
        self.all[id].range
    }

    /// The size of block `id`.
    pub(super) fn bytes(&self, id: BlockId) -> u64 {
        self.all[id].range.bytes
    }

    /// Frees block `id` and joins it with free neighbours.
    pub(super) fn give(&mut self, id: BlockId) {
        self.all[id].state = State::Free;
        let mut first = id;
        if let Some(previous) = self.all[id].previous.filter(|&p| self.is_free(p)) {
            self.free.remove(&self.key(previous));
            self.join(previous, id);
            first = previous;
        }
        if let Some(next) = self.all[first].next.filter(|&n| self.is_free(n)) {
            self.free.remove(&self.key(next));
            self.join(first, next);
        }
        self.free.insert(self.key(first));
    }

    fn is_free(&self, id: BlockId) -> bool {
        self.all[id].state == State::Free
    }

    /// Adds `second`, the neighbour behind it, to `first`.
    fn join(&mut self, first: BlockId, second: BlockId) {
        let Block { range, next, .. } = self.all[second];
        self.all[first].range.bytes += range.bytes;
        self.all[first].next = next;
        if let Some(next) = next {
            self.all[next].previous = Some(first);
        }
        self.unused.push(second);
    }

    /// The wholly free segments in the order of the index.
    pub(super) fn whole_free(&self) -> Vec<(BlockId, Pool, AddressRange)> {
        let whole = |id: &BlockId| {
            let block = &self.all[*id];
            block.previous.is_none() && block.next.is_none()
        };
        self.free
            .iter()
            .filter(|(.., id)| whole(id))
            .map(|&(pool, .., id)| (id, pool, self.all[id].range))
            .collect()
    }

    /// The size of the largest free block.
    pub(super) fn largest_free_bytes(&self) -> u64 {
        self.free.iter().map(|&(_, bytes, ..)| bytes).max().unwrap_or(0)
    }
}
