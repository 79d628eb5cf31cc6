//! The blocks as a list; for tests.

use super::{Block, Blocks, Kind};
use crate::units::NONE;

impl Blocks {
    /// All blocks by address. Panics where the list or the store of entries is broken.
    pub(crate) fn ascending(&self) -> Vec<(u32, Block)> {
        let mut blocks = Vec::new();
        let (mut next, mut block) = (NONE, self.last);
        while block != NONE {
            let b = *self.get(block);
            assert_eq!(b.next, next, "{b:?}");
            assert!(blocks.len() < self.blocks.len(), "the list is a ring");
            blocks.push((block, b));
            (next, block) = (block, b.prev);
        }
        blocks.reverse();
        let n_vacant = self.blocks.iter().filter(|b| b.kind == Kind::Vacant).count();
        assert_eq!(n_vacant, self.vacant.len());
        assert_eq!(blocks.len() + n_vacant, self.blocks.len(), "an entry is neither used nor vacant");
        blocks
    }
}
