//! Room for a request: the best fit, and what happens when none fits.

use glake_core::alloc::{AllocError, OutOfMemory};
use glake_core::driver::DriverError;

use crate::blocks::{Block, first_handle_from, last_handle_until};
use crate::commit::CommitError;
use crate::config::Mode;
use crate::plan::{Plan, Planner};
use crate::pool::StitchPool;
use crate::sizing::{Growth, few_mappings, handle_sizes, single_pages};
use crate::units::{GRANULE_BYTES, PAGE, page_of};

/// How many free blocks a search for an aligned place looks at before it takes one that is
/// long enough wherever it starts.
const N_ALIGNED: usize = 32;

/// Clean pages that a fit may spoil before another one is looked at.
const N_FORGIVEN: usize = 1;

/// Free blocks that are looked at for one that a fit does not spoil.
const N_FITS: usize = 4;

/// Stale mappings may take this many times the addresses of the physical memory.
const STALE_RATIO: u64 = 2;

impl StitchPool {
    /// The best fit, and an address in it: of the few shortest free blocks, the lowest of equals
    /// first, the first one without whole free handles to spoil, or the one that loses least.
    pub(crate) fn fit(&self, bytes: u64, align_bytes: u64) -> Option<(u32, u64)> {
        if align_bytes > GRANULE_BYTES {
            return self.aligned_fit(bytes, align_bytes, |_, _| true);
        }
        let mut best: Option<(usize, (u32, u64))> = None;
        let mut n_seen = 0;
        self.blocks.at_least(bytes, |block| {
            let (n_lost, at) = self.end_to_take(self.blocks.get(block), bytes);
            if best.is_none_or(|(least, _)| n_lost < least) {
                best = Some((n_lost, (block, at)));
            }
            n_seen += 1;
            (n_lost == 0 || n_seen == N_FITS).then_some(())
        });
        best.map(|(_, found)| found)
    }

    /// Where in a free block `bytes` bytes go, and the clean pages lost by it beyond one: at its
    /// low end, unless the high end leaves more whole handles free.
    fn end_to_take(&self, b: &Block, bytes: u64) -> (usize, u64) {
        let clean = b.clean_pages();
        if clean.len() <= N_FORGIVEN {
            return (0, b.start);
        }
        let first = first_handle_from(b.start + bytes, &self.slots).min(clean.end);
        let low = (first - clean.start).saturating_sub(N_FORGIVEN);
        if low == 0 {
            return (0, b.start);
        }
        let high_start = b.end() - bytes;
        let behind = last_handle_until(high_start, &self.slots).max(clean.start);
        let high = (clean.end - behind).saturating_sub(N_FORGIVEN);
        if high < low { (high, high_start) } else { (low, b.start) }
    }

    /// A place for an aligned request that `accepts` its block and page: in one of the shortest
    /// free blocks, or in one that is long enough wherever it starts.
    fn aligned_fit(
        &self,
        bytes: u64,
        align_bytes: u64,
        accepts: impl Fn(&Block, usize) -> bool,
    ) -> Option<(u32, u64)> {
        let place = |block: u32| {
            let b = self.blocks.get(block);
            let at = b.start.next_multiple_of(align_bytes);
            (at + bytes <= b.end() && accepts(b, page_of(at))).then_some((block, at))
        };
        let mut n_seen = 0;
        let near = self.blocks.at_least(bytes, |block| {
            n_seen += 1;
            if n_seen > N_ALIGNED { Some(None) } else { place(block).map(Some) }
        });
        near.flatten().or_else(|| {
            let long_bytes = bytes + align_bytes - GRANULE_BYTES;
            self.blocks.at_least(long_bytes, Some).and_then(place)
        })
    }

    /// An aligned free page, if possible outside of whole free handles.
    pub(crate) fn room_for_unit(&mut self) -> Result<(u32, u64), AllocError> {
        let spoils_none = |b: &Block, page: usize| !b.clean_pages().contains(&page);
        let found = self.aligned_fit(PAGE, PAGE, spoils_none);
        match found.or_else(|| self.aligned_fit(PAGE, PAGE, |_, _| true)) {
            Some(found) => Ok(found),
            None => self.make_room(PAGE, PAGE),
        }
    }

    /// Makes a free block for a request that none fits: gives the spare unit up, stitches, grows.
    #[cold]
    pub(crate) fn make_room(&mut self, bytes: u64, align_bytes: u64) -> Result<(u32, u64), AllocError> {
        let spare = self.give_up_spare();
        if let Some(found) = self.any_fit(bytes, align_bytes) {
            return Ok(found);
        }
        if self.revive(bytes, align_bytes)
            && let Some(found) = self.found_at_last(bytes, align_bytes)
        {
            self.counters.n_revived += 1;
            return Ok(found);
        }
        let stitched_before = self.counters.stitched_bytes;
        if let Err(error) = self.stitch_or_grow(bytes, align_bytes) {
            if let Some(found) = self.found_at_last(bytes, align_bytes).filter(|_| !self.is_poisoned) {
                return Ok(found);
            }
            self.take_back_spare(spare);
            return Err(error);
        }
        self.counters.n_misses += 1;
        self.counters.peak_reserved_bytes = self.counters.peak_reserved_bytes.max(self.physical_bytes());
        self.reap(few_mappings(page_of(self.counters.stitched_bytes - stitched_before)));
        let found = self.fit(bytes, align_bytes).or_else(|| self.found_at_last(bytes, align_bytes));
        found.ok_or(AllocError::Poisoned)
    }

    /// Any free block that holds a request, after a look at all of them if need be: among very
    /// many others of about its length, [`fit`](Self::fit) may not come to an aligned place.
    fn found_at_last(&self, bytes: u64, align_bytes: u64) -> Option<(u32, u64)> {
        if let Some(found) = self.any_fit(bytes, align_bytes) {
            return Some(found);
        }
        let places = self.blocks.below(u64::MAX).filter_map(|block| {
            let b = self.blocks.get(block);
            let at = b.start.next_multiple_of(align_bytes);
            (at + bytes <= b.end()).then_some((b.bytes, at, block))
        });
        places.min().map(|(_, at, block)| (block, at))
    }

    /// Any free block that is long enough wherever it starts: among very many of about the same
    /// length, [`fit`](Self::fit) looks at a few only.
    fn any_fit(&self, bytes: u64, align_bytes: u64) -> Option<(u32, u64)> {
        let slack_bytes = align_bytes.saturating_sub(GRANULE_BYTES);
        let block = self.blocks.any(bytes + slack_bytes)?;
        Some((block, self.blocks.get(block).start.next_multiple_of(align_bytes)))
    }

    fn stitch_or_grow(&mut self, bytes: u64, align_bytes: u64) -> Result<(), AllocError> {
        let may_grow_only = self.physical_bytes() < self.config.stitch_above_bytes;
        if may_grow_only {
            let grown = self.try_room(bytes, align_bytes, Stitching::Never);
            if grown.is_ok() || self.is_poisoned {
                return grown;
            }
        }
        self.try_room(bytes, align_bytes, Stitching::Always)
    }

    fn try_room(&mut self, bytes: u64, align_bytes: u64, stitching: Stitching) -> Result<(), AllocError> {
        let plan = self.plan(bytes, align_bytes, stitching);
        let plan = plan.ok_or(DriverError::OutOfAddresses { bytes })?;
        let done = self.carry_out(&plan, bytes);
        if !matches!(done, Err(AllocError::OutOfMemory(_))) || stitching == Stitching::Never {
            return done;
        }
        // A place passed over because it is slow to clear may take less memory.
        match self.plan_at_any_cost(bytes, align_bytes) {
            Some(other) if other.n_missing < plan.n_missing => self.carry_out(&other, bytes),
            _ => done,
        }
    }

    fn carry_out(&mut self, plan: &Plan, bytes: u64) -> Result<(), AllocError> {
        let missing_bytes = plan.n_missing as u64 * PAGE;
        let most_bytes = self.config.limit_bytes.min(self.device_bytes);
        if missing_bytes > most_bytes.saturating_sub(self.physical_bytes()) {
            return Err(self.out_of_memory(bytes));
        }
        let mut done = self.commit(plan, &self.sizes_for(plan));
        if done == Err(CommitError::Undone(DriverError::OutOfMemory))
            && self.config.mode != Mode::Compact
            && missing_bytes <= self.device_free_bytes()
        {
            done = self.commit(plan, &single_pages(plan.n_missing).collect::<Vec<_>>());
        }
        match done {
            Ok(()) => Ok(()),
            Err(CommitError::Undone(DriverError::OutOfMemory)) => Err(self.out_of_memory(bytes)),
            Err(error) => Err(self.not_committed(error)),
        }
    }

    fn sizes_for(&self, plan: &Plan) -> Vec<usize> {
        if self.config.mode == Mode::Compact {
            return single_pages(plan.n_missing).collect();
        }
        let n_moved = plan.donors.iter().map(|d| self.slots.homes_in(d.pages.clone()).count()).sum();
        let growth = Growth { n_pages: plan.pages.len(), n_missing: plan.n_missing, n_moved };
        handle_sizes(growth, self.spent).collect()
    }

    /// A plan for a place that is fast to clear, if there is one, or else for any.
    fn plan(&mut self, bytes: u64, align_bytes: u64, stitching: Stitching) -> Option<Plan> {
        let keeps_stale = self.homing.is_on();
        let few = |n_pages| if keeps_stale { 0 } else { few_mappings(n_pages) };
        let fast = self.plan_over(bytes, align_bytes, stitching, few);
        fast.or_else(|| self.plan_over(bytes, align_bytes, stitching, |_| usize::MAX))
    }

    /// The plan that creates least, however many stale mappings have to go for it.
    pub(crate) fn plan_at_any_cost(&mut self, bytes: u64, align_bytes: u64) -> Option<Plan> {
        let open = self.order.open();
        if self.stale.iter().any(|mapping| mapping.epoch == open) {
            // Without an event they block their places for good.
            let _ = self.order.close_epoch(&*self.driver);
        }
        self.plan_over(bytes, align_bytes, Stitching::Always, |_| usize::MAX)
    }

    /// A plan for a place without stale mappings that are pending, and with at most `n_most` for
    /// its pages of others.
    fn plan_over(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        stitching: Stitching,
        n_most: impl Fn(usize) -> usize,
    ) -> Option<Plan> {
        let (blocks, slots, stale) = (&self.blocks, &self.slots, &self.stale);
        let (order, driver) = (&mut self.order, &*self.driver);
        let planner = Planner { blocks, slots, n_arena_pages: page_of(self.arena.bytes), stitching };
        planner.plan(bytes, align_bytes, |pages| {
            let mappings = stale.touching(pages, slots);
            let mut pending = mappings.iter().map(|m| !order.has_passed(m.epoch, driver).unwrap_or(false));
            mappings.len() > n_most(pages.len()) || pending.any(|is_pending| is_pending)
        })
    }

    /// Unmaps at most `n_most` of the oldest stale mappings while there are too many. A failure
    /// leaves them for later.
    fn reap(&mut self, n_most: usize) {
        for _ in 0..n_most {
            if self.slots.n_stale_pages() <= STALE_RATIO * self.slots.n_home_pages() {
                break;
            }
            let Some(oldest) = self.stale.oldest() else { break };
            if oldest.epoch == self.order.open() && self.order.close_epoch(&*self.driver).is_err() {
                break;
            }
            let has_passed = self.order.has_passed(oldest.epoch, &*self.driver);
            if has_passed != Ok(true) || self.unmap_stale(&oldest).is_err() {
                break;
            }
        }
    }

    fn out_of_memory(&self, requested_bytes: u64) -> AllocError {
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested_bytes,
            free_bytes: self.physical_bytes() - self.counters.allocated_bytes,
            largest_free_bytes: self.blocks.largest_bytes(),
            stitchable_bytes: self.blocks.clean_bytes(),
            reserved_bytes: self.physical_bytes(),
            limit_bytes: self.config.limit_bytes,
            device_free_bytes: self.device_free_bytes(),
            top_tags: Vec::new(),
        }))
    }

    /// What the driver says that can still be created, 0 if it does not say.
    fn device_free_bytes(&self) -> u64 {
        self.driver.memory_info(self.config.device).map_or(0, |info| info.free_bytes)
    }
}

/// Whether free handles may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stitching {
    /// Grow only.
    Never,
    /// Move what is free, then grow.
    Always,
}
