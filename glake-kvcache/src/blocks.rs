//! What is known of each block: small things that every taking and freeing touches, apart from what only the index does.
//!
//! Blocks that are taken together are mostly neighbours, so several share a cache line.

use crate::ids::{BlockHash, BlockId};
use crate::index::Place;
use crate::prefix::Identity;

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

/// How a block is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Its neighbours in the list that it is in.
    pub(crate) before: u32,
    pub(crate) after: u32,
    /// Sequences and pins; or [`RETIRED`].
    pub(crate) users: u32,
    /// Where it is in the index, if look-ups find its contents.
    pub(crate) place: Option<Place>,
}

/// Instead of a number of users: it may not be given away, as its page is given back.
pub(crate) const RETIRED: u32 = u32::MAX;

const _: () = assert!(size_of::<Use>() == 16);

/// What the index knows of a block that is cached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) hash: BlockHash,
    pub(crate) identity: Identity,
    pub(crate) parent: Identity,
}

/// All blocks. A [`Policy`](crate::policy::Policy) sees them through its lists.
#[derive(Clone, Debug)]
pub struct Blocks {
    uses: Box<[Use]>,
    contents: Box<[Contents]>,
}

impl Blocks {
    /// `n_blocks` blocks that nobody uses, without contents and in no list.
    pub(crate) fn new(n_blocks: u32) -> Self {
        let free = Use { before: NONE, after: NONE, users: 0, place: None };
        Self {
            uses: vec![free; n_blocks as usize].into_boxed_slice(),
            contents: vec![Contents::default(); n_blocks as usize].into_boxed_slice(),
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.uses.len()
    }

    #[inline]
    pub(crate) fn of(&self, block: BlockId) -> &Use {
        &self.uses[block.0 as usize]
    }

    #[inline]
    pub(crate) fn of_mut(&mut self, block: BlockId) -> &mut Use {
        &mut self.uses[block.0 as usize]
    }

    #[inline]
    pub(crate) fn contents(&self, block: BlockId) -> &Contents {
        &self.contents[block.0 as usize]
    }

    #[inline]
    pub(crate) fn contents_mut(&mut self, block: BlockId) -> &mut Contents {
        &mut self.contents[block.0 as usize]
    }
}
