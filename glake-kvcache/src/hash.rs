//! Chained hashes of blocks.

use crate::ids::{BlockHash, Token};

#[cfg(feature = "blake3")]
mod crypto;
mod fast;

/// Which hash blocks are found by. Either has a random seed for each cache, and what is found is compared, token for
/// token: a hash that collides costs time, never a wrong block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HashKind {
    /// A keyed multiply hash: two different blocks under one parent collide with a chance of 2⁻⁶⁴ for who does not
    /// know the seed.
    #[default]
    Fast,
    /// Keyed BLAKE3, for caches that tenants share and whose hashes leave the process (events): nothing of the tokens
    /// can be told from them.
    #[cfg(feature = "blake3")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blake3")))]
    Blake3,
}

/// Hashes blocks of one length under one seed.
///
/// ```
/// use glake_kvcache::hash::{BlockHasher, HashKind};
/// let hasher = BlockHasher::new(HashKind::Fast, [1, 2], 4);
/// let root = hasher.root(b"adapter 7");
/// let first = hasher.block(root, &[1, 2, 3, 4]);
/// assert_ne!(hasher.block(first, &[1, 2, 3, 4]), first);
/// ```
#[derive(Clone, Debug)]
pub struct BlockHasher(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fast(fast::Fast),
    #[cfg(feature = "blake3")]
    Blake3(crypto::Crypto),
    /// Everything collides.
    #[cfg(test)]
    Constant,
}

impl BlockHasher {
    /// A hasher of blocks of `block_tokens` tokens.
    #[must_use]
    pub fn new(kind: HashKind, seed: [u64; 2], block_tokens: u32) -> Self {
        Self(match kind {
            HashKind::Fast => Kind::Fast(fast::Fast::new(seed, block_tokens)),
            #[cfg(feature = "blake3")]
            HashKind::Blake3 => Kind::Blake3(crypto::Crypto::new(seed)),
        })
    }

    /// One under which everything has the same hash.
    #[cfg(test)]
    pub(crate) const fn constant() -> Self {
        Self(Kind::Constant)
    }

    /// Where chains begin that share `salt`.
    #[must_use]
    pub fn root(&self, salt: &[u8]) -> BlockHash {
        match &self.0 {
            Kind::Fast(hasher) => hasher.root(salt),
            #[cfg(feature = "blake3")]
            Kind::Blake3(hasher) => hasher.root(salt),
            #[cfg(test)]
            Kind::Constant => BlockHash(0),
        }
    }

    /// The hash of a block that follows `parent`. Tokens beyond the length that the hasher was made for are not
    /// looked at by [`HashKind::Fast`].
    #[inline]
    #[must_use]
    pub fn block(&self, parent: BlockHash, tokens: &[Token]) -> BlockHash {
        match &self.0 {
            Kind::Fast(hasher) => hasher.block(parent, tokens),
            #[cfg(feature = "blake3")]
            Kind::Blake3(hasher) => hasher.block(parent, tokens),
            #[cfg(test)]
            Kind::Constant => BlockHash(0),
        }
    }
}
