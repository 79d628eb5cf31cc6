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
        self.check_pieces(&blocks);
        let n_vacant = self.blocks.iter().filter(|b| b.kind == Kind::Vacant).count();
        assert_eq!(n_vacant, self.vacant.len());
        assert_eq!(blocks.len() + n_vacant, self.blocks.len(), "an entry is neither used nor vacant");
        blocks
    }

    /// Pieces cut free blocks exactly.
    fn check_pieces(&self, blocks: &[(u32, Block)]) {
        let mut n_pieces = 0;
        for (i, b) in blocks {
            let pieces: Vec<_> = self.pieces(*i).collect();
            let back: Vec<_> = self.pieces_back(*i).collect();
            assert!(pieces.iter().eq(back.iter().rev()), "{b:?}: {pieces:?} {back:?}");
            let bytes = if b.is_free() { b.bytes } else { 0 };
            assert_eq!(pieces.iter().map(|(bytes, _)| bytes).sum::<u64>(), bytes, "{b:?}: {pieces:?}");
            assert!(pieces.iter().all(|(bytes, _)| *bytes > 0), "{b:?}: {pieces:?}");
            n_pieces += pieces.len();
        }
        assert_eq!(self.pieces.n_used(), n_pieces, "pieces leak");
    }
}
