//! The books of a paged KV cache: which block of keys and values is whose, what can be found by its tokens, and what is
//! given up. No driver, no bytes, no threads, no unsafe code.
//!
//! [`KvCache`] is the whole of it. A prompt is [`start`](KvCache::start)ed with the blocks that are cached of it and new ones
//! for the rest; a sequence grows by [`append`](KvCache::append) and [`fork`](KvCache::fork)s; what is computed is
//! [`commit`](KvCache::commit)ted, for others to find; a freed block stays cached until it is needed.
//!
//! - **Hits are verified.** Blocks are found by a chained 128-bit hash with a seed for each cache ([`hash`]). What is found
//!   counts only if parent and tokens are the same: a collision costs time, never a wrong block. [`Salt`]s keep adapters,
//!   images and tenants apart.
//! - **What fails changes nothing**, down to the order of free blocks. Handles are checked: what was freed cannot be used.
//! - **Same operations, same blocks.** No decision hangs on hashes or clocks.
//! - **Who goes first** is a [`policy`], chosen by type; blocks without contents go before all others, and a prefix outlives
//!   what follows it. [`pin`](KvCache::pin) keeps blocks, [`event`] tells of them.
//! - **Room is planned**: [`fits`](KvCache::fits), [`reserve`](KvCache::reserve), [`batch`],
//!   [`plan_preemption`](KvCache::plan_preemption), [`swap_out`](KvCache::swap_out), and a limit in pages that may change
//!   ([`set_limit_pages`](KvCache::set_limit_pages)).
//! - [`layout`] says how a model's keys and values lie in pages, and by which strides kernels read them.
//!
//! Layers, each using only those above it: `ids`, `blocks`, `list`, `index` and [`hash`]; [`policy`], `block_pool`, `prefix`,
//! `roots` and `slots`; `table` and `cache`; admission and preemption.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod batch;
pub mod event;
pub mod hash;
pub mod layout;
pub mod policy;

mod admit;
mod block_pool;
mod blocks;
mod cache;
mod config;
mod error;
mod fit;
mod ids;
mod index;
mod list;
mod preempt;
mod prefix;
mod roots;
mod salt;
mod slots;
mod stats;
mod table;
#[cfg(test)]
mod tests;

pub use admit::{SequenceShape, fits};
pub use cache::{Appended, CopyBlock, KvCache, LimitChange, PageState, Request, Started, SwapIn, Swapped};
pub use config::{Config, Strategy};
pub use error::{CacheError, ConfigError, LayoutError};
pub use ids::{BlockHash, BlockId, PageId, PinId, ReservationId, SequenceId, Token};
pub use preempt::{ReturnCosts, Victim, Way};
pub use salt::Salt;
pub use stats::{Counts, Stats};
