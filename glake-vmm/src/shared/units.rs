//! Units that come to shards and go, and what is done before memory runs out. All of it with the
//! central lock held.

use std::collections::BTreeSet;

use glake_core::alloc::AllocError;

use super::{SharedPool, State, report};
use crate::blocks::Kind;
use crate::order::{StreamIndex, Tag};
use crate::pool::{StitchPool, could_wait};
use crate::spare::UnitName;
use crate::units::{GRANULE_BYTES, PAGE, page_of};

/// Room for small objects in bytes of the arena.
enum Room {
    /// A page for a unit.
    Unit(u64),
    /// Room for one object, where no page is to be had.
    Apart(u64),
}

/// What is left in the shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    /// Units that were given back.
    n_units: usize,
    /// Objects that other streams may still use.
    n_held: usize,
}

impl SharedPool {
    /// Serves a small request that no unit has room for.
    pub(super) fn refill(
        &self,
        pool: &mut StitchPool,
        index: StreamIndex,
        bytes: u64,
    ) -> Result<u64, AllocError> {
        self.settle(pool, index)?;
        let mut state = self.state(index)?;
        report(pool, &mut state);
        count_calls(pool, &mut state);
        // Another thread was faster, or what was held is free.
        if let Some(at) = state.allocate(bytes) {
            return Ok(at);
        }
        drop(state);
        match self.under_pressure(pool, index, bytes, |pool| pool.room_for_shard(bytes, index))? {
            Room::Apart(at) => {
                pool.count(bytes, bytes.next_multiple_of(GRANULE_BYTES));
                Ok(at)
            }
            Room::Unit(at) => {
                let mut state = self.state(index)?;
                let unit = state.small.pool.add_unit(at);
                self.pages.set(page_of(at), Some(UnitName { stream: index, unit }));
                // A fresh unit fits every small request.
                let at = state.allocate(bytes).ok_or(AllocError::Poisoned)?;
                report(pool, &mut state);
                Ok(at)
            }
        }
    }

    /// Gives the units back that a shard has too many of.
    pub(super) fn give_back_surplus(
        &self,
        pool: &mut StitchPool,
        index: StreamIndex,
    ) -> Result<(), AllocError> {
        let mut state = self.state(index)?;
        let surplus = std::mem::take(&mut state.surplus);
        if !surplus.is_empty() {
            report(pool, &mut state);
            count_calls(pool, &mut state);
        }
        for unit in surplus {
            let at = state.small.pool.start(unit);
            state.small.pool.remove_unit(unit);
            self.pages.set(page_of(at), None);
            pool.take_unit_back(at, index);
        }
        Ok(())
    }

    /// Releases what a shard held long enough; how many objects it still holds.
    pub(super) fn settle(&self, pool: &mut StitchPool, index: StreamIndex) -> Result<usize, AllocError> {
        let uses: BTreeSet<Tag> =
            self.state(index)?.held.iter().flat_map(|(_, after)| after.iter().copied()).collect();
        if uses.is_empty() {
            return Ok(0);
        }
        for tag in uses {
            // Without an event it is held on.
            let _ = pool.order.ensure_event(tag, &*pool.driver);
        }
        pool.order.poll(&*pool.driver);
        let mut state = self.state(index)?;
        state.release_held(|tag| pool.order.is_ready(index, tag));
        let n_held = state.held.len();
        drop(state);
        self.give_back_surplus(pool, index)?;
        Ok(n_held)
    }

    /// Takes all wholly free units from the shards.
    pub(super) fn collect(&self, pool: &mut StitchPool) -> Result<Left, AllocError> {
        let mut left = Left::default();
        for (index, shard) in self.shards() {
            left.n_held += self.settle(pool, index)?;
            let mut state = shard.state.lock().map_err(|_| self.poison())?;
            let spare = state.small.spare.take();
            state.surplus.extend(spare);
            left.n_units += state.surplus.len();
            report(pool, &mut state);
            drop(state);
            self.give_back_surplus(pool, index)?;
        }
        Ok(left)
    }

    /// Takes the wholly free units before a trim to `keep_bytes`; waits for those that are held, if
    /// the trim does.
    pub(super) fn collect_for(&self, pool: &mut StitchPool, keep_bytes: u64) -> Result<(), AllocError> {
        if pool.physical_bytes() <= keep_bytes {
            return Ok(());
        }
        if self.collect(pool)?.n_held > 0 {
            pool.wait_for_all()?;
            self.collect(pool)?;
        }
        Ok(())
    }

    /// Serves a request of `bytes` for `stream`. Before it fails for lack of memory, the shards give
    /// up what is free; if that is not enough, the device is waited for where that may help.
    pub(super) fn under_pressure<T>(
        &self,
        pool: &mut StitchPool,
        stream: StreamIndex,
        bytes: u64,
        serve: impl Fn(&mut StitchPool) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let mut served = serve(pool);
        if matches!(served, Err(AllocError::OutOfMemory(_))) {
            let left = self.collect(pool)?;
            if left.n_units > 0 {
                served = serve(pool);
            }
            let may_help = left.n_held > 0 || pool.may_waiting_help(stream);
            if may_help
                && matches!(served, Err(AllocError::OutOfMemory(_)))
                && could_wait(pool.wait_for_all())?
            {
                self.collect(pool)?;
                served = serve(pool);
            }
        }
        served.map_err(|error| pool.failed(error, bytes))
    }
}

impl StitchPool {
    /// A page for a unit of a shard, or room for one object of `bytes`.
    fn room_for_shard(&mut self, bytes: u64, stream: StreamIndex) -> Result<Room, AllocError> {
        self.serve_or_else(stream, |pool, taker| match pool.page_for_unit(taker) {
            Ok((block, at)) => {
                pool.blocks.carve(block, at, PAGE, Kind::Unit, &mut pool.slots);
                Ok(Room::Unit(at))
            }
            Err(error) => pool.allocate_apart(bytes, error, taker).map(Room::Apart),
        })
    }

    /// Takes a wholly free unit back from the shard of `stream`.
    fn take_unit_back(&mut self, at: u64, stream: StreamIndex) {
        if let Some(block) = self.blocks.starting_at(at, &self.slots) {
            self.release(block, self.order.tag(stream));
        }
    }

    /// Replaces what a shard said before.
    pub(super) fn report(&mut self, before: super::Figures, now: super::Figures) {
        self.shards.update(before, now);
        self.note_peaks();
    }
}

/// Adds a shard's calls to those that sizes of handles hang on. Not whenever figures are asked for:
/// that must not change addresses.
fn count_calls(pool: &mut StitchPool, state: &mut State) {
    let n_calls = state.figures.n_allocations + state.figures.n_frees;
    pool.spent.n_ops += n_calls - state.n_calls_counted;
    state.n_calls_counted = n_calls;
}
