//! The cache's books: pool, index and sequences, joined.

use crate::block_pool::BlockPool;
use crate::config::Config;
use crate::error::{CacheError, ConfigError};
use crate::event::{Event, EventSink};
use crate::hash::BlockHasher;
use crate::ids::{BlockHash, BlockId, SequenceId, Token};
use crate::policy::{Lru, Policy};
use crate::prefix::Prefix;
use crate::roots::Roots;
use crate::stats::{Counts, Stats};
use crate::table::{Sequence, Table};

mod append;
mod blocks;
mod commit;
mod limit;
mod pin;
mod reserve;
mod start;
mod swap;

pub use append::{Appended, CopyBlock};
pub use limit::{LimitChange, PageState};
pub use start::{Request, Started};
pub use swap::{SwapIn, Swapped};

use limit::Limit;
use pin::Pins;
use reserve::Reservations;

/// The books of a paged KV cache: which block belongs to whom, what can be found by its tokens, and what is given up.
///
/// It moves no bytes and calls no driver. Who writes keys and values does so where [`start`](Self::start) and
/// [`append`](Self::append) say, and [`commit`](Self::commit)s what is computed, for others to find.
///
/// `P` is the order in which cached blocks are given up, `S` where events go.
///
/// ```
/// use glake_kvcache::{Config, KvCache, Request};
///
/// let mut cache = KvCache::new(&Config::new(10, 16))?;
/// let prompt: Vec<u32> = (0..55).collect();
/// let first = cache.start(Request::new(&prompt))?; // four blocks
/// cache.commit(first.sequence, 55)?; // keys and values are computed: the three full blocks can be found
///
/// let second = cache.start(Request::new(&prompt))?;
/// assert_eq!((second.cached_tokens, second.n_new_blocks), (48, 1));
/// let at = cache.append(second.sequence, 7)?; // where the next token's keys and values go
/// assert_eq!(at.offset, 55 % 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KvCache<P = Lru, S = ()> {
    config: Config,
    hasher: BlockHasher,
    pool: BlockPool<P>,
    prefix: Prefix,
    roots: Roots,
    table: Table,
    reservations: Reservations,
    pins: Pins,
    limit: Limit,
    counts: Counts,
    sink: S,
    /// Blocks that a look-up found; kept for its memory.
    found: Vec<BlockId>,
    /// Hashes of blocks that are committed; kept for its memory.
    hashes: Vec<BlockHash>,
}

impl KvCache {
    /// A cache that gives up what was used least recently, and tells nobody.
    ///
    /// # Errors
    /// A configuration that makes no cache.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        Self::with(config, Lru::default(), ())
    }
}

#[cfg(test)]
impl KvCache {
    /// A cache whose hashes all collide.
    pub(crate) fn colliding(config: &Config) -> Self {
        Self::with_hasher(config, Lru::default(), (), BlockHasher::constant())
    }

    /// Salts that something depends on, none included.
    pub(crate) fn n_roots(&self) -> usize {
        self.roots.len()
    }
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// A cache that gives up what `policy` says, and tells `sink` what it holds.
    ///
    /// # Errors
    /// A configuration that makes no cache.
    pub fn with(config: &Config, policy: P, sink: S) -> Result<Self, ConfigError> {
        config.check()?;
        let hasher = BlockHasher::new(config.hash, config.seed_or_random(), config.block_tokens);
        Ok(Self::with_hasher(config, policy, sink, hasher))
    }

    /// A cache of a configuration that was checked.
    fn with_hasher(config: &Config, policy: P, sink: S, hasher: BlockHasher) -> Self {
        Self {
            pool: BlockPool::new(config.n_blocks, policy),
            prefix: Prefix::new(config.n_blocks, config.block_tokens),
            roots: Roots::new(hasher.root(&[])),
            table: Table::new(),
            reservations: Reservations::new(),
            pins: Pins::new(),
            limit: Limit::new(config),
            counts: Counts::default(),
            sink,
            found: Vec::new(),
            hashes: Vec::new(),
            config: config.clone(),
            hasher,
        }
    }

    /// Ends a sequence. What is committed can still be found until its blocks are given to others: those of this
    /// sequence last to first.
    ///
    /// Its blocks may be given away at once: kernels that still read them have to come before those that write them
    /// anew, as they do on one stream.
    ///
    /// # Errors
    /// A sequence that was freed.
    pub fn free(&mut self, sequence: SequenceId) -> Result<(), CacheError> {
        let state = self.table.0.get_mut(sequence.0).ok_or(CacheError::UnknownSequence(sequence))?;
        let blocks = std::mem::take(&mut state.blocks);
        let root = state.root;
        self.release_all(&blocks);
        self.roots.release(root);
        if let Some(state) = self.table.0.get_mut(sequence.0) {
            state.blocks = blocks;
        }
        self.table.0.give_back(sequence.0);
        Ok(())
    }

    /// A second sequence with the same tokens, in the same blocks. The first to append to a block that is not full
    /// is told to copy it.
    ///
    /// # Errors
    /// A sequence that was freed.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, CacheError> {
        let state = self.sequence(sequence)?;
        let Sequence { n_tokens, room, n_committed, root, reservation, .. } = *state;
        let (slot, child) = self.table.start().ok_or(CacheError::TooMany)?;
        let mut blocks = std::mem::take(&mut child.blocks);
        blocks.extend_from_slice(&self.sequence(sequence)?.blocks);
        for &block in &blocks {
            self.pool.acquire(block);
        }
        self.roots.acquire(root);
        if let Some(child) = self.table.0.get_mut(slot) {
            *child = Sequence { blocks, n_tokens, room, n_committed, root, reservation };
        }
        Ok(SequenceId(slot))
    }

    /// Forgets all contents, as when the model's weights change.
    ///
    /// # Errors
    /// Blocks in use.
    pub fn reset(&mut self) -> Result<(), CacheError> {
        let n_blocks = self.pool.n_used();
        if n_blocks > 0 {
            return Err(CacheError::InUse { n_blocks });
        }
        for block in self.pool.order() {
            if self.pool.is_cached(block) {
                self.pool.forget(block);
                self.prefix.remove(self.pool.blocks_mut(), block);
                self.roots.child_removed(self.pool.contents(block).parent);
            }
        }
        self.sink.note(Event::Cleared);
        Ok(())
    }

    fn sequence(&self, sequence: SequenceId) -> Result<&Sequence, CacheError> {
        self.table.0.get(sequence.0).ok_or(CacheError::UnknownSequence(sequence))
    }

    /// The blocks of a sequence in order: its block table.
    ///
    /// # Errors
    /// A sequence that was freed.
    pub fn blocks(&self, sequence: SequenceId) -> Result<&[BlockId], CacheError> {
        Ok(&self.sequence(sequence)?.blocks)
    }

    /// How many tokens a sequence has.
    ///
    /// # Errors
    /// A sequence that was freed.
    pub fn n_tokens(&self, sequence: SequenceId) -> Result<u32, CacheError> {
        Ok(self.sequence(sequence)?.n_tokens)
    }

    /// The tokens of a sequence.
    ///
    /// # Errors
    /// A sequence that was freed.
    pub fn tokens(&self, sequence: SequenceId) -> Result<Vec<Token>, CacheError> {
        let state = self.sequence(sequence)?;
        let mut tokens: Vec<Token> =
            state.blocks.iter().flat_map(|block| self.prefix.tokens(*block)).copied().collect();
        tokens.truncate(state.n_tokens as usize);
        Ok(tokens)
    }

    /// How many sequences and pins use a block; `None` if there is no such block, or its page
    /// is given back.
    #[must_use]
    pub fn users(&self, block: BlockId) -> Option<u32> {
        let is_held = block.0 < self.config.n_blocks && !self.pool.is_retired(block);
        is_held.then(|| self.pool.users(block))
    }

    /// Free blocks in the order in which they are given away.
    #[must_use]
    pub fn free_order(&self) -> Vec<BlockId> {
        self.pool.order()
    }

    /// The sequences, in the order of their places.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> {
        self.table.0.iter().map(|(slot, _)| SequenceId(slot))
    }

    /// Where events go.
    pub const fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The cache in figures. Constant time.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            n_blocks: self.config.n_blocks,
            n_used: self.pool.n_used(),
            n_cached: self.pool.n_cached(),
            n_free: self.pool.n_free(),
            n_retired: self.pool.n_retired(),
            n_reserved: self.reservations.total(),
            n_pinned: self.pins.n_blocks(),
            counts: self.counts,
        }
    }
}
