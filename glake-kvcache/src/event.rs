//! What a cache tells of its contents, for routers and for tiers beneath.

use std::fmt::Debug;

use crate::ids::BlockHash;

/// What happened to the contents that look-ups find. Hashes are the same in one cache only, unless caches share a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Contents can be found from now on.
    Stored {
        /// Their hashes, in order: each block follows the one before it.
        hashes: &'a [BlockHash],
        /// What the first follows; `None` at the beginning of a sequence.
        parent: Option<BlockHash>,
    },
    /// Contents cannot be found any more.
    Removed {
        /// Their hash.
        hash: BlockHash,
    },
    /// Nothing can be found any more.
    Cleared,
}

/// Where events go. It is called within the cache's operations: it should only take notes.
pub trait EventSink: Debug {
    /// Whether there is anything to tell; where not, nothing is gathered.
    const LISTENS: bool = true;

    /// Takes note of `event`.
    fn note(&mut self, event: Event<'_>);
}

/// No events.
impl EventSink for () {
    const LISTENS: bool = false;

    fn note(&mut self, _event: Event<'_>) {}
}

/// An [`Event`] that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Noted {
    /// Contents can be found from now on.
    Stored(Vec<BlockHash>, Option<BlockHash>),
    /// Contents cannot be found any more.
    Removed(BlockHash),
    /// Nothing can be found any more.
    Cleared,
}

/// A sink that keeps events until they are drained.
///
/// Who does not drain it has it grow with every block: give it a bound, and drain before it is reached.
#[derive(Clone, Debug)]
pub struct EventLog {
    events: Vec<Noted>,
    most: usize,
    n_lost: u64,
}

/// One that keeps up to a million events.
impl Default for EventLog {
    fn default() -> Self {
        Self::new(1 << 20)
    }
}

impl EventLog {
    /// One that keeps up to `most` events, and counts those beyond.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { events: Vec::new(), most, n_lost: 0 }
    }

    /// Takes out what was noted, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = Noted> + '_ {
        self.events.drain(..)
    }

    /// Events that found no room: after that, only a reset of both sides makes them agree.
    #[must_use]
    pub const fn n_lost(&self) -> u64 {
        self.n_lost
    }
}

impl EventSink for EventLog {
    fn note(&mut self, event: Event<'_>) {
        if self.events.len() >= self.most {
            self.n_lost += 1;
            return;
        }
        self.events.push(match event {
            Event::Stored { hashes, parent } => Noted::Stored(hashes.to_vec(), parent),
            Event::Removed { hash } => Noted::Removed(hash),
            Event::Cleared => Noted::Cleared,
        });
    }
}
