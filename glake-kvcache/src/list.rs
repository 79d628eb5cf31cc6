//! Lists of blocks, linked through the blocks themselves: any block leaves its list in constant time.

use crate::blocks::{Blocks, NONE, Use};
use crate::ids::BlockId;

/// A list of blocks. A block is in one list at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl List {
    /// How many blocks it has.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first block.
    #[inline]
    #[must_use]
    pub const fn first(&self) -> Option<BlockId> {
        if self.first == NONE { None } else { Some(BlockId(self.first)) }
    }

    /// Puts `block`, which is in no list, before all others.
    #[inline]
    pub fn push_front(&mut self, blocks: &mut Blocks, block: BlockId) {
        let state = blocks.of_mut(block);
        (state.before, state.after) = (NONE, self.first);
        match self.first {
            NONE => self.last = block.0,
            first => blocks.of_mut(BlockId(first)).before = block.0,
        }
        self.first = block.0;
        self.len += 1;
    }

    /// Puts `block`, which is in no list, behind all others.
    #[inline]
    pub fn push_back(&mut self, blocks: &mut Blocks, block: BlockId) {
        let state = blocks.of_mut(block);
        (state.before, state.after) = (self.last, NONE);
        match self.last {
            NONE => self.first = block.0,
            last => blocks.of_mut(BlockId(last)).after = block.0,
        }
        self.last = block.0;
        self.len += 1;
    }

    /// Takes out `block`, which is in this list.
    #[inline]
    pub fn remove(&mut self, blocks: &mut Blocks, block: BlockId) {
        let Use { before, after, .. } = *blocks.of(block);
        match before {
            NONE => self.first = after,
            before => blocks.of_mut(BlockId(before)).after = after,
        }
        match after {
            NONE => self.last = before,
            after => blocks.of_mut(BlockId(after)).before = before,
        }
        self.len -= 1;
    }

    /// Takes out the first block.
    #[inline]
    pub fn pop_front(&mut self, blocks: &mut Blocks) -> Option<BlockId> {
        let block = self.first()?;
        self.remove(blocks, block);
        Some(block)
    }

    /// Takes out the first `n` blocks, or all if there are not so many, and adds them to `taken`.
    #[inline]
    pub fn pop_all_front(&mut self, blocks: &mut Blocks, n: u32, taken: &mut Vec<BlockId>) {
        let n = n.min(self.len);
        let mut first = self.first;
        taken.extend((0..n).map(|_| {
            let block = BlockId(first);
            first = blocks.of(block).after;
            block
        }));
        self.len -= n;
        self.first = first;
        match first {
            NONE => self.last = NONE,
            first => blocks.of_mut(BlockId(first)).before = NONE,
        }
    }

    /// The blocks, first to last.
    pub fn iter<'a>(&self, blocks: &'a Blocks) -> impl Iterator<Item = BlockId> + use<'a> {
        let some = |block: u32| (block != NONE).then_some(BlockId(block));
        std::iter::successors(some(self.first), move |block| some(blocks.of(*block).after))
    }
}
