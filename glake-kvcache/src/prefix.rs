//! What blocks hold, and the index that finds them by it.
//!
//! What the index has under a hash is a candidate only. It is a hit if its whole hash, its parent and every token are the same. A parent is told by an
//! *identity*: a number that is given once, to the first block with these contents, and shared by equal blocks.
//! So a hit means, by induction from the root, that all tokens and the salt are equal, whatever the hash does.

use crate::blocks::{Blocks, Contents};
use crate::ids::{BlockHash, BlockId, Token};
use crate::index::{Index, Look};

/// What a block holds, by a number that is never given to anything else; or a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Identity(u64);

const ROOT: u64 = 1 << 63;

impl Identity {
    /// The root in a place of the table of roots.
    pub(crate) const fn root(place: u32) -> Self {
        Self(ROOT | place as u64)
    }

    pub(crate) const fn is_root(self) -> bool {
        self.0 & ROOT != 0
    }

    /// The place of the root, if it is one.
    #[allow(clippy::cast_possible_truncation, reason = "the other bits are none of the place")]
    pub(crate) const fn as_root(self) -> Option<u32> {
        if self.is_root() { Some(self.0 as u32) } else { None }
    }
}

/// Whether a block's contents are the only ones of their kind in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// No other block has them.
    Only,
    /// Another block has the same.
    More,
}

#[derive(Debug)]
pub(crate) struct Prefix {
    index: Index,
    tokens: Box<[Token]>,
    block_tokens: usize,
    next_identity: u64,
}

impl Prefix {
    pub(crate) fn new(n_blocks: u32, block_tokens: u32) -> Self {
        Self {
            index: Index::new(n_blocks),
            tokens: vec![0; n_blocks as usize * block_tokens as usize].into_boxed_slice(),
            block_tokens: block_tokens as usize,
            next_identity: 1,
        }
    }

    /// The tokens of a block.
    #[inline]
    pub(crate) fn tokens(&self, block: BlockId) -> &[Token] {
        let start = block.0 as usize * self.block_tokens;
        &self.tokens[start..start + self.block_tokens]
    }

    /// Where the tokens of a block are written.
    #[inline]
    pub(crate) fn tokens_mut(&mut self, block: BlockId) -> &mut [Token] {
        let start = block.0 as usize * self.block_tokens;
        &mut self.tokens[start..start + self.block_tokens]
    }

    /// Writes tokens to blocks, one after the other from the beginning of the first on.
    #[inline]
    pub(crate) fn write(&mut self, blocks: &[BlockId], tokens: &[Token]) {
        for (block, tokens) in blocks.iter().zip(tokens.chunks(self.block_tokens)) {
            // Short as they are, a loop is faster than a call.
            for (place, token) in self.tokens_mut(*block).iter_mut().zip(tokens) {
                *place = *token;
            }
        }
    }

    /// Copies the tokens of one block to another.
    pub(crate) fn copy_tokens(&mut self, from: BlockId, to: BlockId) {
        let start = from.0 as usize * self.block_tokens;
        self.tokens.copy_within(start..start + self.block_tokens, to.0 as usize * self.block_tokens);
    }

    /// A block with these contents: of several, one in use, and the lowest of those, so that hashes decide nothing.
    #[inline]
    pub(crate) fn find(
        &self,
        blocks: &Blocks,
        hash: BlockHash,
        parent: Identity,
        tokens: &[Token],
    ) -> Option<BlockId> {
        match self.index.look(hash) {
            Look::None => None,
            Look::One(block) => self.is(blocks, block, hash, parent, tokens).then_some(block),
            Look::Many => self.find_best(blocks, hash, parent, tokens),
        }
    }

    #[cold]
    fn find_best(
        &self,
        blocks: &Blocks,
        hash: BlockHash,
        parent: Identity,
        tokens: &[Token],
    ) -> Option<BlockId> {
        let rank = |block: BlockId| (blocks.of(block).users == 0, block);
        let mut best: Option<BlockId> = None;
        self.index.find(hash, |block| {
            if self.is(blocks, block, hash, parent, tokens) {
                best = Some(best.map_or(block, |best| if rank(block) < rank(best) { block } else { best }));
            }
            false
        });
        best
    }

    /// Whether a block has these contents.
    #[inline]
    fn is(
        &self,
        blocks: &Blocks,
        block: BlockId,
        hash: BlockHash,
        parent: Identity,
        tokens: &[Token],
    ) -> bool {
        let known = blocks.contents(block);
        known.hash == hash && known.parent == parent && self.tokens(block) == tokens
    }

    /// Has `block`, which is not indexed, found by its tokens and `parent`; says whether another has the same contents.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        blocks: &mut Blocks,
        block: BlockId,
        hash: BlockHash,
        parent: Identity,
    ) -> (Identity, Copies) {
        let (mut identity, mut copies) = (Identity(self.next_identity), Copies::Only);
        let place = self.index.insert_alone(hash, block).unwrap_or_else(|| {
            if let Some(equal) = self.find(blocks, hash, parent, self.tokens(block)) {
                (identity, copies) = (blocks.contents(equal).identity, Copies::More);
            }
            self.index.insert(hash, block)
        });
        blocks.of_mut(block).place = Some(place);
        self.next_identity += u64::from(copies == Copies::Only);
        *blocks.contents_mut(block) = Contents { hash, identity, parent };
        (identity, copies)
    }

    /// Has `block` not found any more.
    #[inline]
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, block: BlockId) {
        if let Some(place) = blocks.of_mut(block).place.take() {
            self.index.remove(place, || blocks.contents(block).hash);
        }
    }

    /// Whether another block is found by what `block`, which was removed, had.
    pub(crate) fn copies(&self, blocks: &Blocks, block: BlockId) -> Copies {
        let Contents { hash, identity, .. } = *blocks.contents(block);
        let other = self.index.find(hash, |other| blocks.contents(other).identity == identity);
        if other.is_some() { Copies::More } else { Copies::Only }
    }
}
