//! The pool: where requests become addresses.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, OutOfMemory, Request};
use glake_core::driver::{Driver, DriverError};
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DevicePtr, PAGE_BYTES, StreamId};

use crate::blocks::{Blocks, Kind};
use crate::commit::{CommitError, handle_sizes};
use crate::config::{Config, Mode};
use crate::order::StreamOrder;
use crate::plan::{Plan, Planner};
use crate::slots::Slots;
use crate::small::{SMALL_BYTES, SmallPool, n_granules};
use crate::stale::Stale;
use crate::units::{GRANULE_BYTES, NONE, PAGE, page_of};

/// How many free blocks a search for an aligned place looks at before it takes one that is
/// large enough at any alignment.
const N_ALIGNED: usize = 32;

/// A stream-ordered pool of device memory that stitches. See the [crate docs](crate).
#[derive(Debug)]
pub struct StitchPool {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) config: Config,
    pub(crate) arena: AddressRange,
    pub(crate) slots: Slots,
    pub(crate) blocks: Blocks,
    pub(crate) small: SmallPool,
    /// A unit kept though it is free, so that a lone small object does not come and go with it.
    spare_unit: Option<u32>,
    pub(crate) order: StreamOrder,
    pub(crate) stale: Stale,
    poisoned: bool,
    requested_bytes: u64,
    allocated_bytes: u64,
    peak_requested_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    n_allocations: u64,
    n_frees: u64,
    n_misses: u64,
    n_failures: u64,
    n_moved: u64,
    pub(crate) n_stitches: u64,
    pub(crate) stitched_bytes: u64,
}

impl StitchPool {
    /// A pool without memory; reserves its addresses.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if the device does not exist or has no addresses left.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self, AllocError> {
        let total = driver.memory_info(config.device)?.total_bytes;
        let bytes = arena_bytes(total);
        let arena = driver.reserve(bytes, PAGE_BYTES)?;
        let order = StreamOrder::new(config.stream);
        Ok(Self {
            driver,
            config,
            arena,
            slots: Slots::default(),
            blocks: Blocks::new(),
            small: SmallPool::new(),
            spare_unit: None,
            order,
            stale: Stale::default(),
            poisoned: false,
            requested_bytes: 0,
            allocated_bytes: 0,
            peak_requested_bytes: 0,
            peak_allocated_bytes: 0,
            peak_reserved_bytes: 0,
            n_allocations: 0,
            n_frees: 0,
            n_misses: 0,
            n_failures: 0,
            n_moved: 0,
            n_stitches: 0,
            stitched_bytes: 0,
        })
    }

    fn allocate_small(&mut self, bytes: u64) -> Result<u64, AllocError> {
        if let Some(at) = self.small.allocate(bytes) {
            self.spare_unit = self.spare_unit.filter(|&unit| self.small.is_free(unit));
            return Ok(at);
        }
        let (block, at) = self.room_for_unit()?;
        let unit = self.small.add_unit(at);
        self.blocks.carve(block, at, PAGE, Kind::Unit, &mut self.slots);
        self.slots.slot_mut(page_of(at)).unit = unit;
        self.small.allocate(bytes).ok_or(AllocError::Poisoned)
    }

    /// An aligned free page, if possible outside of whole free handles.
    fn room_for_unit(&mut self) -> Result<(u32, u64), AllocError> {
        let spoils_none = |&(block, at): &(u32, u64)| {
            let b = self.blocks.get(block);
            let clean = crate::blocks::clean_range(b.start, b.end(), &self.slots);
            !clean.contains(&page_of(at))
        };
        let found = self.fits(PAGE, PAGE).find(spoils_none);
        match found.or_else(|| self.fits(PAGE, PAGE).next()) {
            Some(found) => Ok(found),
            None => self.make_room(PAGE, PAGE),
        }
    }

    fn allocate_large(
        &mut self,
        requested_bytes: u64,
        bytes: u64,
        align_bytes: u64,
    ) -> Result<u64, AllocError> {
        let (block, at) = match self.fit(bytes, align_bytes) {
            Some(found) => found,
            None => self.make_room(bytes, align_bytes)?,
        };
        self.blocks.carve(block, at, bytes, Kind::Live { requested_bytes }, &mut self.slots);
        Ok(at)
    }

    /// The best fit: the shortest free block, the lowest of equals, and an address in it.
    fn fit(&self, bytes: u64, align_bytes: u64) -> Option<(u32, u64)> {
        if align_bytes <= GRANULE_BYTES && crate::commit::env("FIT", 0) > 0 {
            let k = crate::commit::env("FIT", 0);
            let mut best: Option<((u64, u64), (u32, u64))> = None;
            for block in self.blocks.free.at_least(bytes).take(k as usize) {
                let b = *self.blocks.get(block);
                let Kind::Free { clean_bytes } = b.kind else { continue };
                for at in [b.start, b.end() - bytes] {
                    let l = crate::blocks::clean_range(b.start, at, &self.slots).len() as u64 * PAGE;
                    let r = crate::blocks::clean_range(at + bytes, b.end(), &self.slots).len() as u64 * PAGE;
                    let lost = clean_bytes - l - r;
                    let key = (lost.saturating_sub(crate::commit::env("FS", 0) << 20), b.bytes);
                    if best.is_none_or(|(k, _)| key < k) {
                        best = Some((key, (block, at)));
                    }
                    if crate::commit::env("FIT1", 0) > 0 {
                        break;
                    }
                }
                if best.is_some_and(|(k, _)| k.0 == 0) {
                    break;
                }
            }
            return best.map(|b| b.1);
        }
        if align_bytes <= GRANULE_BYTES {
            let block = self.blocks.free.at_least(bytes).next()?;
            return Some((block, self.blocks.get(block).start));
        }
        self.fits(bytes, align_bytes).next()
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

    /// Makes a free block for a request that none fits: gives the spare unit up, stitches, grows.
    #[cold]
    fn make_room(&mut self, bytes: u64, align_bytes: u64) -> Result<(u32, u64), AllocError> {
        if self.give_up_spare()
            && let Some(found) = self.fit(bytes, align_bytes)
        {
            return Ok(found);
        }
        self.n_misses += 1;
        let before = self.stitched_bytes;
        if self.n_physical_bytes() < self.config.stitch_above_bytes
            && self.try_room(bytes, align_bytes, false).is_ok()
        {
            // Grown without stitching.
        } else {
            self.try_room(bytes, align_bytes, true)?;
        }
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(self.n_physical_bytes());
        self.reap(4 + page_of(self.stitched_bytes - before) / 8);
        self.fit(bytes, align_bytes).ok_or(AllocError::Poisoned)
    }

    fn try_room(&mut self, bytes: u64, align_bytes: u64, stitch: bool) -> Result<(), AllocError> {
        let plan = self.plan(bytes, align_bytes, stitch);
        let Some(plan) = plan else { return Err(self.out_of_memory(bytes)) };
        let room = self.config.limit_bytes.saturating_sub(self.n_physical_bytes()) / PAGE;
        if plan.n_missing as u64 > room {
            return Err(self.out_of_memory(bytes));
        }
        let compact = self.config.mode == Mode::Compact;
        let dirty = self.blocks.free.free_bytes() - self.blocks.free.clean_bytes();
        let e = crate::commit::env;
        if e("LOG", 0) > 0 && (plan.n_missing > 0 || e("LOG", 0) > 1) {
            eprintln!(
                "op {} phys {} MiB bytes {} KiB need {} missing {} clean {} dirty {} MiB blocks>=1M {} moved {}",
                self.n_allocations + self.n_frees,
                self.n_physical_bytes() >> 20,
                bytes >> 10,
                plan.pages.len() * 2,
                plan.n_missing * 2,
                self.blocks.free.clean_bytes() >> 20,
                dirty >> 20,
                self.blocks.free.at_least(1 << 20).count(),
                plan.donors.iter().map(|d| d.pages.len() * 2).sum::<usize>()
            );
        }
        let moved: usize = plan.donors.iter().map(|d| self.slots.homes_in(d.pages.clone()).count()).sum();
        self.n_moved += moved as u64 * e("CM", 1);
        let credits =
            (e("CI", 256) + (self.n_allocations + self.n_frees) / e("CC", 50)) as i64 - self.n_moved as i64;
        let sizes = handle_sizes(
            plan.n_missing,
            self.slots.n_home_pages(),
            dirty,
            credits,
            plan.pages.len(),
            moved,
            compact,
        );
        self.n_moved += sizes.len() as u64;
        let mut done = self.commit(&plan, &sizes);
        if done == Err(CommitError::Undone(DriverError::OutOfMemory)) && !compact {
            done = self.commit(&plan, &handle_sizes(plan.n_missing, 0, 0, 0, 0, 0, true));
        }
        match done {
            Ok(()) => Ok(()),
            Err(CommitError::Undone(DriverError::OutOfMemory)) => Err(self.out_of_memory(bytes)),
            Err(CommitError::Undone(error)) => Err(error.into()),
            Err(CommitError::Poisoned) => {
                self.poisoned = true;
                Err(AllocError::Poisoned)
            }
        }
    }

    fn plan(&mut self, bytes: u64, align_bytes: u64, stitch: bool) -> Option<Plan> {
        let planner = Planner {
            blocks: &self.blocks,
            slots: &self.slots,
            n_arena_pages: page_of(self.arena.bytes),
            stitch,
        };
        let (stale, order, driver) = (&self.stale, &mut self.order, &*self.driver);
        planner.plan(bytes, align_bytes, |pages| {
            let slots = planner.slots;
            stale
                .touching(pages, |h| slots.handle(h).n_pages as usize)
                .iter()
                .any(|m| !order.has_passed(m.epoch, driver).unwrap_or(false))
        })
    }

    /// Unmaps at most `n_most` of the oldest stale mappings while there are too many.
    fn reap(&mut self, n_most: usize) {
        for _ in 0..n_most {
            if self.slots.n_stale_pages() * 2 <= self.slots.n_home_pages() * crate::commit::env("ST", 1) {
                break;
            }
            let Some(oldest) = self.stale.oldest() else { break };
            let passed = self.order.has_passed(oldest.epoch, &*self.driver);
            if passed != Ok(true) || self.unmap_stale(&oldest).is_err() {
                break;
            }
        }
    }

    fn give_up_spare(&mut self) -> bool {
        let Some(unit) = self.spare_unit.take() else { return false };
        self.give_up_unit(unit);
        true
    }

    fn give_up_unit(&mut self, unit: u32) {
        let at = self.small.start(unit);
        self.small.remove_unit(unit);
        self.slots.slot_mut(page_of(at)).unit = NONE;
        if let Some(block) = self.blocks.starting_at(at, &self.slots) {
            self.blocks.release(block, &mut self.slots);
        }
    }

    fn free_small(&mut self, unit: u32, offset: u64) -> Option<(u64, u64)> {
        let spot = self.small.find(unit, offset)?;
        let freed = self.small.free(spot);
        if freed.unit_is_free {
            if let Some(other) = self.spare_unit.replace(unit) {
                self.give_up_unit(other);
            }
        }
        Some((freed.requested_bytes, freed.allocated_bytes))
    }

    fn free_large(&mut self, at: u64) -> Option<(u64, u64)> {
        let block = self.blocks.starting_at(at, &self.slots)?;
        let b = *self.blocks.get(block);
        let Kind::Live { requested_bytes } = b.kind else { return None };
        self.blocks.release(block, &mut self.slots);
        Some((requested_bytes, b.bytes))
    }

    pub(crate) fn n_physical_bytes(&self) -> u64 {
        self.slots.n_home_pages() * PAGE
    }

    fn out_of_memory(&self, requested_bytes: u64) -> AllocError {
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested_bytes,
            free_bytes: self.n_physical_bytes() - self.allocated_bytes,
            largest_free_bytes: self.blocks.free.largest_bytes(),
            stitchable_bytes: self.blocks.free.clean_bytes(),
            reserved_bytes: self.n_physical_bytes(),
            limit_bytes: self.config.limit_bytes,
            device_free_bytes: self.driver.memory_info(self.config.device).map_or(0, |i| i.free_bytes),
            top_tags: Vec::new(),
        }))
    }

    fn check(&self, request: Request) -> Result<u64, AllocError> {
        let Request { bytes, align_bytes, stream } = request;
        if self.poisoned {
            return Err(AllocError::Poisoned);
        }
        if bytes == 0 {
            return Err(AllocError::ZeroBytes);
        }
        if !align_bytes.is_power_of_two() || align_bytes > PAGE {
            return Err(AllocError::BadAlignment { align_bytes });
        }
        if stream != self.order.stream() {
            return Err(AllocError::OtherStream(stream));
        }
        let rounded = bytes.checked_next_multiple_of(GRANULE_BYTES).filter(|&n| n <= self.arena.bytes / 2);
        rounded.ok_or(AllocError::TooLarge { bytes })
    }
}

impl Allocator for StitchPool {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let rounded = self.check(request)?;
        let Request { bytes, align_bytes, stream } = request;
        let at = if bytes < SMALL_BYTES && align_bytes <= GRANULE_BYTES {
            self.allocate_small(bytes)
        } else {
            self.allocate_large(bytes, rounded, align_bytes)
        };
        let at = match at {
            Ok(at) => at,
            Err(error) => {
                self.n_failures += 1;
                return Err(error);
            }
        };
        self.n_allocations += 1;
        self.requested_bytes += bytes;
        self.allocated_bytes += rounded;
        self.peak_requested_bytes = self.peak_requested_bytes.max(self.requested_bytes);
        self.peak_allocated_bytes = self.peak_allocated_bytes.max(self.allocated_bytes);
        Ok(Allocation { ptr: self.arena.start + at, bytes, stream })
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        if self.poisoned {
            return Err(AllocError::Poisoned);
        }
        if !self.arena.contains(AddressRange::new(ptr, 1)) {
            return Err(AllocError::NotAllocated(ptr));
        }
        if stream != self.order.stream() {
            return Err(AllocError::OtherStream(stream));
        }
        let at = ptr - self.arena.start;
        let unit = self.slots.slot(page_of(at)).unit;
        let freed = if unit == NONE { self.free_large(at) } else { self.free_small(unit, at % PAGE) };
        let (requested_bytes, allocated_bytes) = freed.ok_or(AllocError::NotAllocated(ptr))?;
        self.n_frees += 1;
        self.requested_bytes -= requested_bytes;
        self.allocated_bytes -= allocated_bytes;
        Ok(())
    }

    fn trim(&mut self, _keep_bytes: u64) -> Result<u64, AllocError> {
        Ok(0)
    }

    fn stats(&self) -> Stats {
        Stats {
            requested_bytes: self.requested_bytes,
            allocated_bytes: self.allocated_bytes,
            reserved_bytes: self.n_physical_bytes(),
            peak_requested_bytes: self.peak_requested_bytes,
            peak_allocated_bytes: self.peak_allocated_bytes,
            peak_reserved_bytes: self.peak_reserved_bytes,
            stitchable_bytes: self.blocks.free.clean_bytes(),
            largest_free_bytes: self.blocks.free.largest_bytes(),
            stale_bytes: self.slots.n_stale_pages() * PAGE,
            hole_bytes: self.slots.n_hole_pages() * PAGE,
            n_live: self.n_allocations - self.n_frees,
            n_allocations: self.n_allocations,
            n_frees: self.n_frees,
            n_misses: self.n_misses,
            n_stitches: self.n_stitches,
            stitched_bytes: self.stitched_bytes,
            n_failures: self.n_failures,
        }
    }
}

/// Addresses for a device of `total_bytes`: enough that holes are rarely reused for lack of room.
fn arena_bytes(total_bytes: u64) -> u64 {
    total_bytes.saturating_mul(16).clamp(1 << 40, 16 << 40).next_multiple_of(PAGE_BYTES)
}
impl StitchPool {
    /// probe
    #[must_use]
    pub fn stats_probe(&self) -> u64 {
        self.n_misses
    }
}
