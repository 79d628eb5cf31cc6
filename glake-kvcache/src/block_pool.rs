//! Blocks: who uses how many of them, and in which order those that nobody uses are given away.

use crate::blocks::{Blocks, Contents, RETIRED};
use crate::ids::BlockId;
use crate::list::List;
use crate::policy::Policy;

/// The blocks of a cache. A free block is *blank*, *cached* (in the policy's order) or *retired*.
#[derive(Debug)]
pub(crate) struct BlockPool<P> {
    blocks: Blocks,
    blank: List,
    policy: P,
    n_cached: u32,
    n_retired: u32,
}

impl<P: Policy> BlockPool<P> {
    /// A pool of blank blocks, lowest first.
    pub(crate) fn new(n_blocks: u32, mut policy: P) -> Self {
        let mut blocks = Blocks::new(n_blocks);
        let mut blank = List::default();
        for block in 0..n_blocks {
            blank.push_back(&mut blocks, BlockId(block));
        }
        policy.reset(n_blocks);
        Self { blocks, blank, policy, n_cached: 0, n_retired: 0 }
    }

    /// Blocks that can be had.
    #[inline]
    pub(crate) const fn n_free(&self) -> u32 {
        self.blank.len() + self.n_cached
    }

    /// Of them, those with contents that look-ups find.
    pub(crate) const fn n_cached(&self) -> u32 {
        self.n_cached
    }

    pub(crate) const fn n_retired(&self) -> u32 {
        self.n_retired
    }

    pub(crate) fn n_used(&self) -> u32 {
        let n = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        n - self.n_free() - self.n_retired
    }

    /// What the index knows of a cached block.
    #[inline]
    pub(crate) fn contents(&self, block: BlockId) -> &Contents {
        self.blocks.contents(block)
    }

    /// All blocks, for the index.
    #[inline]
    pub(crate) const fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// All blocks, for the index.
    #[inline]
    pub(crate) const fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.blocks
    }

    #[inline]
    pub(crate) fn users(&self, block: BlockId) -> u32 {
        self.blocks.of(block).users
    }

    #[inline]
    pub(crate) fn is_cached(&self, block: BlockId) -> bool {
        self.blocks.of(block).place.is_some()
    }

    pub(crate) fn is_retired(&self, block: BlockId) -> bool {
        self.blocks.of(block).users == RETIRED
    }

    /// Gives away up to `n` free blocks, those that come first: blank ones before cached ones. Says how many of those
    /// added to `taken` were blank: the contents of the others are given up, and to be taken out of the index.
    #[inline]
    pub(crate) fn take(&mut self, n: u32, taken: &mut Vec<BlockId>) -> u32 {
        let n_blank = n.min(self.blank.len());
        let before = taken.len();
        self.blank.pop_all_front(&mut self.blocks, n_blank, taken);
        if n > n_blank {
            self.policy.take(&mut self.blocks, n - n_blank, taken);
            self.n_cached -= n - n_blank;
        }
        for &block in &taken[before..] {
            self.blocks.of_mut(block).users = 1;
        }
        n_blank
    }

    /// Gives away the free block that comes first. Contents that it still has are to be taken out of the index.
    #[inline]
    pub(crate) fn take_one(&mut self) -> Option<BlockId> {
        let block = if let Some(block) = self.blank.pop_front(&mut self.blocks) {
            block
        } else {
            let block = self.policy.victim()?;
            self.policy.remove(&mut self.blocks, block);
            self.n_cached -= 1;
            block
        };
        self.blocks.of_mut(block).users = 1;
        Some(block)
    }

    /// One more uses `block`, which is in use or cached.
    #[inline]
    pub(crate) fn acquire(&mut self, block: BlockId) {
        let state = self.blocks.of_mut(block);
        state.users += 1;
        if state.users == 1 {
            self.n_cached -= 1;
            self.policy.remove(&mut self.blocks, block);
        }
    }

    /// One less uses `block`, which is in use. Unless somebody else does, it is free: blank ones are the next to be
    /// given away, cached ones come as the policy says.
    #[inline]
    pub(crate) fn release(&mut self, block: BlockId) {
        let state = self.blocks.of_mut(block);
        state.users -= 1;
        if state.users > 0 {
            return;
        }
        if state.place.is_some() {
            self.n_cached += 1;
            self.policy.insert(&mut self.blocks, block);
        } else {
            self.blank.push_front(&mut self.blocks, block);
        }
    }

    /// `block`, which is in use, has new contents that look-ups find.
    #[inline]
    pub(crate) fn stored(&mut self, block: BlockId) {
        self.policy.stored(block);
    }

    /// A look-up found `block`.
    #[inline]
    pub(crate) fn hit(&mut self, block: BlockId) {
        self.policy.hit(block);
    }

    /// Keeps a free block from being given away.
    pub(crate) fn retire(&mut self, block: BlockId) {
        self.leave(block);
        self.blocks.of_mut(block).users = RETIRED;
        self.n_retired += 1;
    }

    /// Has a retired block given away again, after all that are blank.
    pub(crate) fn unretire(&mut self, block: BlockId) {
        self.blocks.of_mut(block).users = 0;
        self.n_retired -= 1;
        self.blank.push_back(&mut self.blocks, block);
    }

    /// Takes a free block out of its list: before its contents are taken out of the index.
    fn leave(&mut self, block: BlockId) {
        if self.is_cached(block) {
            self.n_cached -= 1;
            self.policy.remove(&mut self.blocks, block);
        } else {
            self.blank.remove(&mut self.blocks, block);
        }
    }

    /// Puts a cached block that nobody uses among the blank ones, last: before its contents are taken out of the index.
    pub(crate) fn forget(&mut self, block: BlockId) {
        self.leave(block);
        self.blank.push_back(&mut self.blocks, block);
    }

    /// Free blocks in the order in which they are given away.
    pub(crate) fn order(&self) -> Vec<BlockId> {
        let mut order: Vec<BlockId> = self.blank.iter(&self.blocks).collect();
        order.append(&mut self.policy.order(&self.blocks));
        order
    }
}
