//! From a stream's name to its index, without a lock: each thread remembers what it was told.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use glake_core::units::StreamId;

use crate::order::StreamIndex;

/// Streams that a thread remembers.
const N_ENTRIES: usize = 16;

/// A pool of this process. Never used for another; 0 is no pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolToken(u64);

impl PoolToken {
    pub(super) fn fresh() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// What a thread was told. As each thread has its own, the default stream of the thread needs no
/// other name.
#[derive(Clone, Copy)]
struct Entry {
    pool: PoolToken,
    /// The state of the pool's names then.
    names: u64,
    stream: StreamId,
    index: StreamIndex,
}

const BLANK: Entry = Entry { pool: PoolToken(0), names: 0, stream: StreamId(0), index: StreamIndex::ALL };

thread_local! {
    static TOLD: [Cell<Entry>; N_ENTRIES] = const { [const { Cell::new(BLANK) }; N_ENTRIES] };
}

/// What this thread was told of `stream`, if that still holds.
pub(super) fn recall(pool: PoolToken, names: u64, stream: StreamId) -> Option<StreamIndex> {
    let entry = TOLD.with(|told| told[place(stream)].get());
    (entry.pool == pool && entry.names == names && entry.stream == stream).then_some(entry.index)
}

pub(super) fn remember(pool: PoolToken, names: u64, stream: StreamId, index: StreamIndex) {
    TOLD.with(|told| told[place(stream)].set(Entry { pool, names, stream, index }));
}

/// Streams are addresses or small numbers: the high bits of a product with an odd number tell both
/// kinds apart.
fn place(StreamId(stream): StreamId) -> usize {
    (stream.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % N_ENTRIES
}
