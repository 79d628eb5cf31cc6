//! The small objects of one stream, behind a lock of their own.

use std::collections::HashMap;

use crate::free::Users;
use crate::order::Tag;
use crate::small::{Size, Spot};
use crate::spare::Small;
use crate::stale::Uses;
use crate::sync::Mutex;
use crate::units::GRANULE_BYTES;

/// A shard. Two never share a line of a cache, nor a pair of lines that is fetched together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) state: Mutex<State>,
}

/// Bytes and calls that a shard serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) requested_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) n_allocations: u64,
    pub(crate) n_frees: u64,
}

impl Figures {
    /// Puts what one shard says now in the place of what it said before.
    pub(crate) fn update(&mut self, before: Self, now: Self) {
        self.requested_bytes = self.requested_bytes + now.requested_bytes - before.requested_bytes;
        self.allocated_bytes = self.allocated_bytes + now.allocated_bytes - before.allocated_bytes;
        self.n_allocations += now.n_allocations - before.n_allocations;
        self.n_frees += now.n_frees - before.n_frees;
    }
}

/// What a shard's lock guards.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) small: Small,
    /// Wholly free units beside the spare one, to be given back.
    pub(super) surplus: Vec<u32>,
    /// Freed objects that other streams may still use, and the uses that must have passed.
    pub(super) held: Vec<(Spot, Uses)>,
    /// Other streams that use an object, by its offset in the arena.
    pub(super) users: HashMap<u64, Users>,
    pub(super) figures: Figures,
    /// What the central pool knows of them.
    pub(super) reported: Figures,
    /// Calls that the central pool has counted.
    pub(super) n_calls_counted: u64,
}

impl State {
    /// Takes room for an object of `bytes`, if a unit has it; its offset in the arena.
    pub(super) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let (at, unit) = self.small.pool.allocate(bytes)?;
        if self.small.spare == Some(unit) {
            self.small.spare = None;
        }
        if !self.surplus.is_empty() {
            self.surplus.retain(|&other| other != unit);
        }
        self.figures.n_allocations += 1;
        self.figures.requested_bytes += bytes;
        self.figures.allocated_bytes += bytes.next_multiple_of(GRANULE_BYTES);
        Some(at)
    }

    /// Counts the free of a live object.
    pub(super) fn count_free(&mut self, spot: Spot) {
        let Size { requested_bytes, allocated_bytes } = self.small.pool.size(spot);
        self.figures.n_frees += 1;
        self.figures.requested_bytes -= requested_bytes;
        self.figures.allocated_bytes -= allocated_bytes;
    }

    /// Makes the bytes of an object free.
    pub(super) fn release(&mut self, spot: Spot) {
        let Some(unit) = self.small.pool.free(spot) else { return };
        self.surplus.extend(self.small.spare.replace(unit));
    }

    /// What the object at `at` is used by beside its stream; nothing is known of it any more.
    pub(super) fn take_users(&mut self, at: u64) -> Users {
        if self.users.is_empty() { Users::new() } else { self.users.remove(&at).unwrap_or_default() }
    }

    /// Releases the held objects whose uses have all passed.
    pub(super) fn release_held(&mut self, has_passed: impl Fn(Tag) -> bool) {
        for (spot, after) in std::mem::take(&mut self.held) {
            if after.iter().all(|&tag| has_passed(tag)) {
                self.release(spot);
            } else {
                self.held.push((spot, after));
            }
        }
    }
}
