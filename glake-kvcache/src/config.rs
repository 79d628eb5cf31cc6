//! How a cache is set up.

use std::hash::{BuildHasher, RandomState};

use crate::error::ConfigError;
use crate::hash::HashKind;

/// How blocks lie in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// A sequence is one range of addresses: a block is what is mapped as a whole.
    #[default]
    Unified,
    /// Kernels go by block tables: pages hold several blocks.
    Block {
        /// How many.
        blocks_per_page: u32,
    },
}

/// Configuration of a [`KvCache`](crate::KvCache).
///
/// ```
/// use glake_kvcache::{Config, Strategy};
/// let config = Config::new(4096, 16).strategy(Strategy::Block { blocks_per_page: 8 }).max_pinned_blocks(64);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) n_blocks: u32,
    pub(crate) block_tokens: u32,
    pub(crate) strategy: Strategy,
    pub(crate) max_sequence_tokens: u32,
    pub(crate) max_pinned_blocks: u32,
    pub(crate) hash: HashKind,
    pub(crate) seed: Option<[u64; 2]>,
}

/// The most blocks of a cache.
const MOST_BLOCKS: u32 = 1 << 27;

impl Config {
    /// A cache of `n_blocks` blocks of `block_tokens` tokens each: unified, with the fast hash, a random seed and no
    /// other limits.
    #[must_use]
    pub const fn new(n_blocks: u32, block_tokens: u32) -> Self {
        Self {
            n_blocks,
            block_tokens,
            strategy: Strategy::Unified,
            max_sequence_tokens: u32::MAX,
            max_pinned_blocks: u32::MAX,
            hash: HashKind::Fast,
            seed: None,
        }
    }

    /// Sets how blocks lie in pages.
    #[must_use]
    pub const fn strategy(self, strategy: Strategy) -> Self {
        Self { strategy, ..self }
    }

    /// Sets how long a sequence may become.
    #[must_use]
    pub const fn max_sequence_tokens(self, tokens: u32) -> Self {
        Self { max_sequence_tokens: tokens, ..self }
    }

    /// Sets how many blocks may be pinned.
    #[must_use]
    pub const fn max_pinned_blocks(self, n_blocks: u32) -> Self {
        Self { max_pinned_blocks: n_blocks, ..self }
    }

    /// Sets what blocks are found by.
    #[must_use]
    pub const fn hash(self, hash: HashKind) -> Self {
        Self { hash, ..self }
    }

    /// Sets the seed of the hash, so that caches agree on hashes. Who knows it can make blocks collide, which is slow
    /// and otherwise harmless.
    #[must_use]
    pub const fn seed(self, seed: [u64; 2]) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// The seed that was set, or a random one.
    pub(crate) fn seed_or_random(&self) -> [u64; 2] {
        self.seed.unwrap_or_else(|| [0, 1].map(|n: u64| RandomState::new().hash_one(n)))
    }

    /// Pages that its blocks make.
    #[must_use]
    pub const fn n_pages(&self) -> u32 {
        self.n_blocks / self.blocks_per_page()
    }

    pub(crate) const fn blocks_per_page(&self) -> u32 {
        match self.strategy {
            Strategy::Unified => 1,
            Strategy::Block { blocks_per_page } => blocks_per_page,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { n_blocks, block_tokens, .. } = *self;
        if !(1..=MOST_BLOCKS).contains(&n_blocks) {
            return Err(ConfigError::Blocks(n_blocks));
        }
        let bytes = u64::from(n_blocks).checked_mul(4 * u64::from(block_tokens));
        if block_tokens == 0 || bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(ConfigError::BlockTokens { block_tokens, n_blocks });
        }
        let blocks_per_page = self.blocks_per_page();
        if blocks_per_page == 0 || n_blocks % blocks_per_page != 0 {
            return Err(ConfigError::Pages { n_blocks, blocks_per_page });
        }
        Ok(())
    }
}
