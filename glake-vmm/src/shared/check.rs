//! The invariants of a shared pool, recomputed; for tests.

use std::mem;

use crate::held::What;
use crate::order::StreamIndex;
use crate::spare::UnitName;
use crate::units::{NONE, PAGE, page_of};

use super::SharedPool;

impl SharedPool {
    /// Panics where the tables contradict each other. Nobody else is inside.
    ///
    /// The shards are put in the place of the central pool's own small objects, and that is checked.
    pub(crate) fn check_invariants(&self) {
        let mut pool = self.central.lock().unwrap();
        let pool = &mut *pool;
        self.free_late(pool);
        let n_held = pool.held.len();
        let mut pages = Vec::new();
        for (index, shard) in self.shards() {
            self.give_back_surplus(pool, index).unwrap();
            let mut state = shard.state.lock().unwrap();
            super::report(pool, &mut state);
            for unit in state.small.pool.check() {
                let name = UnitName { stream: index, unit: unit.index };
                assert_eq!(self.pages.get(page_of(unit.start)), Some(name));
                pool.slots.slot_mut(page_of(unit.start)).unit = name.pack();
                pages.push(page_of(unit.start));
            }
            for (&at, users) in &state.users {
                let name = self.pages.get(page_of(at)).unwrap();
                assert!(state.small.pool.find(name.unit, at % PAGE).is_some(), "users of nothing at {at}");
                assert!(!users.is_empty());
            }
            for (spot, after) in &state.held {
                pool.hold(What::Small(index, *spot), after.clone());
            }
            mem::swap(&mut state.small, pool.small(index));
        }
        assert_eq!(self.pages.n_units(), pages.len(), "a page has a unit that no shard knows");
        let own = pool.counters;
        pool.counters.requested_bytes += pool.shards.requested_bytes;
        pool.counters.allocated_bytes += pool.shards.allocated_bytes;
        pool.counters.n_allocations += pool.shards.n_allocations;
        pool.counters.n_frees += pool.shards.n_frees;
        pool.check_invariants();
        pool.counters = own;
        pool.held.truncate(n_held);
        for page in pages {
            pool.slots.slot_mut(page).unit = NONE;
        }
        for (index, shard) in self.shards() {
            mem::swap(&mut shard.state.lock().unwrap().small, pool.small(index));
        }
    }

    /// Units of `stream`, and objects that are held there.
    pub(crate) fn n_units_and_held(&self, stream: glake_core::units::StreamId) -> (usize, usize) {
        let index = self.index_of(stream).unwrap();
        let state = self.state(index).unwrap();
        (state.small.pool.check().len(), state.held.len())
    }

    /// Units of all streams.
    pub(crate) fn n_units(&self) -> usize {
        let units = |(_, shard): (StreamIndex, &super::Shard)| shard.state.lock().unwrap().small.pool.check();
        self.shards().map(|shard| units(shard).len()).sum()
    }
}
