//! Which cached block is given up first.

use std::fmt::Debug;

pub use crate::blocks::Blocks;
use crate::ids::BlockId;
pub use crate::list::List;

mod segmented;

pub use segmented::Segmented;

/// The order in which cached blocks that nobody uses are given up. Blocks without contents always go first.
///
/// It is chosen by type, so that a call is as good as the code itself. Blocks of one sequence are inserted last to first, so that
/// a prefix outlives what follows it.
pub trait Policy: Debug {
    /// Prepares for `n_blocks` blocks, none of which is cached.
    fn reset(&mut self, n_blocks: u32);

    /// Nobody uses `block` any more; its contents are cached.
    fn insert(&mut self, blocks: &mut Blocks, block: BlockId);

    /// Takes out `block`, which was inserted: it is used again, or given up.
    fn remove(&mut self, blocks: &mut Blocks, block: BlockId);

    /// The block to be given up next, of those that were inserted.
    fn victim(&self) -> Option<BlockId>;

    /// Takes out the next `n` victims, of at least as many that were inserted, and adds them to `taken`.
    fn take(&mut self, blocks: &mut Blocks, n: u32, taken: &mut Vec<BlockId>) {
        for _ in 0..n {
            let Some(block) = self.victim() else { return };
            self.remove(blocks, block);
            taken.push(block);
        }
    }

    /// All blocks that were inserted, next victim first.
    fn order(&self, blocks: &Blocks) -> Vec<BlockId>;

    /// A look-up found `block`, in use or not.
    fn hit(&mut self, block: BlockId) {
        _ = block;
    }

    /// `block` has new contents.
    fn stored(&mut self, block: BlockId) {
        _ = block;
    }
}

/// Gives up the block that was used least recently.
#[derive(Clone, Debug, Default)]
pub struct Lru(List);

impl Policy for Lru {
    fn reset(&mut self, _n_blocks: u32) {
        self.0 = List::default();
    }

    #[inline]
    fn insert(&mut self, blocks: &mut Blocks, block: BlockId) {
        self.0.push_back(blocks, block);
    }

    #[inline]
    fn remove(&mut self, blocks: &mut Blocks, block: BlockId) {
        self.0.remove(blocks, block);
    }

    #[inline]
    fn victim(&self) -> Option<BlockId> {
        self.0.first()
    }

    #[inline]
    fn take(&mut self, blocks: &mut Blocks, n: u32, taken: &mut Vec<BlockId>) {
        self.0.pop_all_front(blocks, n, taken);
    }

    fn order(&self, blocks: &Blocks) -> Vec<BlockId> {
        self.0.iter(blocks).collect()
    }
}
