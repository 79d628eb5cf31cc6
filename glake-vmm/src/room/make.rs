//! Room that has to be made: handles move, memory is created, mappings that are in the way go.

use std::collections::BTreeSet;

use glake_core::alloc::AllocError;
use glake_core::driver::DriverError;

use crate::commit::CommitError;
use crate::config::Mode;
use crate::order::{Tag, Taker};
use crate::plan::{Plan, Planner};
use crate::pool::StitchPool;
use crate::sizing::{Among, Growth, few_mappings, handle_sizes, single_pages};
use crate::units::{PAGE, page_of};

/// Stale mappings may take this many times the addresses of the physical memory.
const STALE_RATIO: u64 = 2;

/// Whether free handles may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stitching {
    /// Grow only.
    Never,
    /// Move what is free, then grow.
    Always,
}

impl StitchPool {
    pub(super) fn stitch_or_grow(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        taker: Taker,
    ) -> Result<(), AllocError> {
        let is_pinned = self.config.mode == Mode::Pinned;
        if is_pinned || self.physical_bytes() < self.config.stitch_above_bytes {
            let grown = self.try_room(bytes, align_bytes, Stitching::Never, taker);
            if grown.is_ok() || self.is_poisoned {
                return grown;
            }
        }
        if is_pinned {
            // What is free but cut up becomes new memory.
            self.trim_to(self.physical_bytes().saturating_sub(bytes.next_multiple_of(PAGE)))?;
            return self.try_room(bytes, align_bytes, Stitching::Never, taker);
        }
        self.try_room(bytes, align_bytes, Stitching::Always, taker)
    }

    pub(crate) fn try_room(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        stitching: Stitching,
        taker: Taker,
    ) -> Result<(), AllocError> {
        let plan = self.plan(bytes, align_bytes, stitching, taker);
        let plan = plan.ok_or(DriverError::OutOfAddresses { bytes })?;
        let done = self.carry_out(&plan, bytes, taker);
        if !matches!(done, Err(AllocError::OutOfMemory(_))) || stitching == Stitching::Never {
            return done;
        }
        // A place passed over because it is slow to clear may take less memory.
        match self.plan_at_any_cost(bytes, align_bytes, taker) {
            Some(other) if other.n_missing < plan.n_missing => self.carry_out(&other, bytes, taker),
            _ => done,
        }
    }

    pub(super) fn carry_out(&mut self, plan: &Plan, bytes: u64, taker: Taker) -> Result<(), AllocError> {
        let missing_bytes = plan.n_missing as u64 * PAGE;
        let most_bytes = self.config.limit_bytes.min(self.device_bytes);
        if missing_bytes > most_bytes.saturating_sub(self.physical_bytes()) {
            return Err(self.out_of_memory(bytes));
        }
        let mut done = self.commit(plan, &self.sizes_for(plan), taker.stream);
        if done == Err(CommitError::Undone(DriverError::OutOfMemory))
            && self.config.mode != Mode::Compact
            && missing_bytes <= self.device_free_bytes()
        {
            done = self.commit(plan, &single_pages(plan.n_missing).collect::<Vec<_>>(), taker.stream);
        }
        match done {
            Ok(()) => Ok(()),
            Err(CommitError::Undone(DriverError::OutOfMemory)) => Err(self.out_of_memory(bytes)),
            Err(error) => Err(self.not_committed(error)),
        }
    }

    pub(super) fn sizes_for(&self, plan: &Plan) -> Vec<usize> {
        if self.config.mode == Mode::Compact {
            return single_pages(plan.n_missing).collect();
        }
        let n_moved = plan.donors.iter().map(|d| self.slots.homes_in(d.pages.clone()).count()).sum();
        let growth = Growth { n_pages: plan.pages.len(), n_missing: plan.n_missing, n_moved };
        let among = if self.order.n_streams() <= 1 { Among::One } else { Among::Several };
        handle_sizes(growth, self.spent, among).collect()
    }

    /// A plan for a place that is fast to clear, if there is one, or else for any.
    pub(super) fn plan(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        stitching: Stitching,
        taker: Taker,
    ) -> Option<Plan> {
        let keeps_stale = self.homing.is_on();
        let few = |n_pages| if keeps_stale { 0 } else { few_mappings(n_pages) };
        let fast = self.plan_over(bytes, align_bytes, stitching, taker, few);
        fast.or_else(|| self.plan_over(bytes, align_bytes, stitching, taker, |_| usize::MAX))
    }

    /// The plan that creates least, however many stale mappings have to go for it.
    pub(crate) fn plan_at_any_cost(&mut self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Plan> {
        let uses: BTreeSet<Tag> =
            self.stale.iter().flat_map(|mapping| mapping.uses.iter().copied()).collect();
        for tag in uses {
            // Without an event they block their places for good.
            let _ = self.order.ensure_event(tag, &*self.driver);
        }
        self.plan_over(bytes, align_bytes, Stitching::Always, taker, |_| usize::MAX)
    }

    /// A plan for a place without stale mappings that are pending, and with at most `n_most` for
    /// its pages of others.
    pub(super) fn plan_over(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        stitching: Stitching,
        taker: Taker,
        n_most: impl Fn(usize) -> usize,
    ) -> Option<Plan> {
        self.order.poll(&*self.driver);
        let (blocks, slots, stale, order) = (&self.blocks, &self.slots, &self.stale, &self.order);
        let n_arena_pages = page_of(self.arena.bytes);
        let planner = Planner { blocks, slots, n_arena_pages, stitching, order, taker };
        planner.plan(bytes, align_bytes, |pages| {
            let mappings = stale.touching(pages, slots);
            let mut uses = mappings.iter().flat_map(|mapping| &mapping.uses);
            mappings.len() > n_most(pages.len()) || uses.any(|&tag| !order.is_done(tag))
        })
    }

    /// Unmaps at most `n_most` of the oldest stale mappings while there are too many. A failure
    /// leaves them for later.
    pub(super) fn reap(&mut self, n_most: usize) {
        if !self.is_stepped {
            let _ =
                (0..n_most).try_for_each(|_| if self.unmap_oldest() == Ok(true) { Some(()) } else { None });
        }
    }

    /// Whether stale mappings take too many addresses.
    pub(crate) fn has_much_stale(&self) -> bool {
        self.slots.n_stale_pages() > STALE_RATIO * self.slots.n_home_pages()
    }
}
