//! Room for a request: the best fit, and what happens when none fits.

use std::ops::Range;

use glake_core::alloc::{AllocError, OutOfMemory};
use glake_core::driver::DriverError;

use crate::blocks::{Block, clean_range};
use crate::commit::CommitError;
use crate::config::Mode;
use crate::plan::{Plan, Planner};
use crate::pool::StitchPool;
use crate::sizing::{Growth, handle_sizes, single_pages};
use crate::units::{GRANULE_BYTES, PAGE, page_of};

/// How many free blocks a search for an aligned place looks at before it takes one that is
/// long enough wherever it starts.
const N_ALIGNED: usize = 32;

/// The high end of a free block must save this many clean bytes more than the low end.
const HIGH_END_BYTES: u64 = PAGE;

/// Stale mappings may take this many times the addresses of the physical memory.
const STALE_RATIO: u64 = 2;

/// Stale mappings that one miss may always unmap.
const N_REAPED: usize = 8;

impl StitchPool {
    /// The best fit: the shortest free block, the lowest of equals, and an address in it.
    pub(crate) fn fit(&self, bytes: u64, align_bytes: u64) -> Option<(u32, u64)> {
        if align_bytes > GRANULE_BYTES {
            return self.fits(bytes, align_bytes).next();
        }
        let block = self.blocks.free.at_least(bytes).next()?;
        Some((block, self.end_to_take(self.blocks.get(block), bytes)))
    }

    /// Where in a free block `bytes` bytes go: at its low end, unless the high end leaves more
    /// whole handles free.
    fn end_to_take(&self, b: &Block, bytes: u64) -> u64 {
        let high = b.end() - bytes;
        if high == b.start || b.clean_bytes() == 0 {
            return b.start;
        }
        let left_by_low = clean_range(b.start + bytes, b.end(), &self.slots).len();
        let left_by_high = clean_range(b.start, high, &self.slots).len();
        let lost = b.clean_bytes() - left_by_low as u64 * PAGE;
        if lost > HIGH_END_BYTES && left_by_high > left_by_low { high } else { b.start }
    }

    /// Places for an aligned request: a bounded number of the shortest free blocks, then one
    /// that is long enough wherever it starts.
    fn fits(&self, bytes: u64, align_bytes: u64) -> impl Iterator<Item = (u32, u64)> + '_ {
        let near = self.blocks.free.at_least(bytes).take(N_ALIGNED);
        let sure = self.blocks.free.at_least(bytes + align_bytes - GRANULE_BYTES).take(1);
        near.chain(sure).filter_map(move |block| {
            let b = self.blocks.get(block);
            let at = b.start.next_multiple_of(align_bytes);
            (at + bytes <= b.end()).then_some((block, at))
        })
    }

    /// An aligned free page, if possible outside of whole free handles.
    pub(crate) fn room_for_unit(&mut self) -> Result<(u32, u64), AllocError> {
        let spoils_none = |&(block, at): &(u32, u64)| {
            let b = self.blocks.get(block);
            !clean_range(b.start, b.end(), &self.slots).contains(&page_of(at))
        };
        let found = self.fits(PAGE, PAGE).find(spoils_none);
        match found.or_else(|| self.fits(PAGE, PAGE).next()) {
            Some(found) => Ok(found),
            None => self.make_room(PAGE, PAGE),
        }
    }

    /// Makes a free block for a request that none fits: gives the spare unit up, stitches, grows.
    #[cold]
    pub(crate) fn make_room(&mut self, bytes: u64, align_bytes: u64) -> Result<(u32, u64), AllocError> {
        if self.give_up_spare()
            && let Some(found) = self.fit(bytes, align_bytes)
        {
            return Ok(found);
        }
        let stitched_before = self.counters.stitched_bytes;
        self.stitch_or_grow(bytes, align_bytes)?;
        self.counters.n_misses += 1;
        self.counters.peak_reserved_bytes = self.counters.peak_reserved_bytes.max(self.physical_bytes());
        self.reap(N_REAPED + page_of(self.counters.stitched_bytes - stitched_before) / N_REAPED);
        self.fit(bytes, align_bytes).ok_or(AllocError::Poisoned)
    }

    fn stitch_or_grow(&mut self, bytes: u64, align_bytes: u64) -> Result<(), AllocError> {
        let may_grow_only = self.physical_bytes() < self.config.stitch_above_bytes;
        if may_grow_only && self.try_room(bytes, align_bytes, Stitching::Never).is_ok() {
            return Ok(());
        }
        self.try_room(bytes, align_bytes, Stitching::Always)
    }

    fn try_room(&mut self, bytes: u64, align_bytes: u64, stitching: Stitching) -> Result<(), AllocError> {
        let plan = self.plan(bytes, align_bytes, stitching);
        let plan = plan.ok_or(DriverError::OutOfAddresses { bytes })?;
        let room_bytes = self.config.limit_bytes.saturating_sub(self.physical_bytes());
        if plan.n_missing as u64 > room_bytes / PAGE {
            return Err(self.out_of_memory(bytes));
        }
        let mut done = self.commit(&plan, &self.sizes_for(&plan));
        if done == Err(CommitError::Undone(DriverError::OutOfMemory)) && self.config.mode != Mode::Compact {
            done = self.commit(&plan, &single_pages(plan.n_missing).collect::<Vec<_>>());
        }
        match done {
            Ok(()) => Ok(()),
            Err(CommitError::Undone(DriverError::OutOfMemory)) => Err(self.out_of_memory(bytes)),
            Err(CommitError::Undone(error)) => Err(error.into()),
            Err(CommitError::Poisoned) => {
                self.is_poisoned = true;
                Err(AllocError::Poisoned)
            }
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

    pub(crate) fn plan(&mut self, bytes: u64, align_bytes: u64, stitching: Stitching) -> Option<Plan> {
        let planner = Planner {
            blocks: &self.blocks,
            slots: &self.slots,
            n_arena_pages: page_of(self.arena.bytes),
            stitching,
        };
        let (slots, stale, order, driver) = (&self.slots, &self.stale, &mut self.order, &*self.driver);
        planner.plan(bytes, align_bytes, |pages: &Range<usize>| {
            let mut mappings = stale.touching(pages, slots).into_iter();
            mappings.any(|m| !order.has_passed(m.epoch, driver).unwrap_or(false))
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
            largest_free_bytes: self.blocks.free.largest_bytes(),
            stitchable_bytes: self.blocks.free.clean_bytes(),
            reserved_bytes: self.physical_bytes(),
            limit_bytes: self.config.limit_bytes,
            device_free_bytes: self.driver.memory_info(self.config.device).map_or(0, |info| info.free_bytes),
            top_tags: Vec::new(),
        }))
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
