//! The pool: where requests become addresses.

use std::collections::VecDeque;
use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::Driver;
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DevicePtr, PAGE_BYTES, StreamId};

use crate::blocks::{Blocks, Kind};
use crate::config::Config;
use crate::homing::Homing;
use crate::order::Epochs;
use crate::sizing::Spent;
use crate::slots::Slots;
use crate::small::{SMALL_BYTES, SmallPool};
use crate::stale::Stale;
use crate::units::{GRANULE_BYTES, NONE, PAGE, page_of};

/// A stream-ordered pool of device memory that stitches. See the [crate docs](crate).
///
/// ```
/// use std::sync::Arc;
/// use glake_core::alloc::{Allocator, Request};
/// use glake_core::driver::StreamOrder;
/// use glake_core::sim::SimDriver;
/// use glake_core::units::DeviceId;
/// use glake_vmm::{Config, StitchPool};
///
/// let driver = Arc::new(SimDriver::h200(1));
/// let stream = driver.create_stream(DeviceId(0))?;
/// let mut pool = StitchPool::new(driver, Config::new(DeviceId(0), stream))?;
/// let a = pool.allocate(Request::new(3 << 20, stream))?;
/// pool.free(a.ptr, stream)?;
/// assert_eq!(pool.stats().allocated_bytes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StitchPool {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) config: Config,
    /// All memory of the device.
    pub(crate) device_bytes: u64,
    /// The addresses reserved for the pool.
    pub(crate) arena: AddressRange,
    pub(crate) slots: Slots,
    pub(crate) blocks: Blocks,
    pub(crate) small: SmallPool,
    /// A unit kept though it is free, so that a lone small object does not come and go with it.
    pub(crate) spare_unit: Option<u32>,
    pub(crate) order: Epochs,
    pub(crate) stale: Stale,
    pub(crate) spent: Spent,
    pub(crate) homing: Homing,
    /// Where the latest runs were stitched: their first pages, oldest first.
    pub(crate) stitched: VecDeque<usize>,
    pub(crate) counters: Counters,
    /// An undo failed: the tables may not say what the driver has mapped.
    pub(crate) is_poisoned: bool,
    /// The device is done with everything, and nothing more will be enqueued.
    pub(crate) is_idle: bool,
}

/// Running figures for [`Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) requested_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) peak_requested_bytes: u64,
    pub(crate) peak_allocated_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) n_allocations: u64,
    pub(crate) n_frees: u64,
    pub(crate) n_misses: u64,
    pub(crate) n_failures: u64,
    pub(crate) n_stitches: u64,
    pub(crate) stitched_bytes: u64,
    pub(crate) n_revived: u64,
}

/// Bytes of a freed object.
#[derive(Clone, Copy, Debug)]
struct Freed {
    requested_bytes: u64,
    allocated_bytes: u64,
}

impl StitchPool {
    /// A pool without memory; reserves its addresses.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if the device does not exist or has no addresses left.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self, AllocError> {
        let device_bytes = driver.memory_info(config.device)?.total_bytes;
        let arena = driver.reserve(arena_bytes(device_bytes), PAGE_BYTES)?;
        let order = Epochs::new(config.stream);
        Ok(Self {
            driver,
            config,
            device_bytes,
            arena,
            slots: Slots::default(),
            blocks: Blocks::new(),
            small: SmallPool::new(),
            spare_unit: None,
            order,
            stale: Stale::default(),
            spent: Spent::default(),
            homing: Homing::new(),
            stitched: VecDeque::new(),
            counters: Counters::default(),
            is_poisoned: false,
            is_idle: false,
        })
    }

    /// The share of the free bytes that no request can get; see
    /// [`Stats::fragmentation_ratio`].
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        self.stats().fragmentation_ratio()
    }

    /// The figures of this moment; the same as [`Allocator::stats`].
    #[must_use]
    pub fn memory_stats(&self) -> Stats {
        self.stats()
    }

    fn allocate_small(&mut self, bytes: u64) -> Result<u64, AllocError> {
        if let Some((at, unit)) = self.small.allocate(bytes) {
            if self.spare_unit == Some(unit) {
                self.spare_unit = None;
            }
            return Ok(at);
        }
        let (block, at) = match self.room_for_unit() {
            Ok(found) => found,
            Err(error) => return self.allocate_apart(bytes, error),
        };
        self.add_unit(block, at);
        // A fresh unit fits every small request.
        self.small.allocate(bytes).map(|(at, _)| at).ok_or(AllocError::Poisoned)
    }

    /// A small object in any free run that holds it, where `error` says that no unit is to be had.
    fn allocate_apart(&mut self, requested_bytes: u64, error: AllocError) -> Result<u64, AllocError> {
        let bytes = requested_bytes.next_multiple_of(GRANULE_BYTES);
        let AllocError::OutOfMemory(_) = error else { return Err(error) };
        let (block, at) = self.fit(bytes, GRANULE_BYTES).ok_or(error)?;
        self.blocks.carve(block, at, bytes, Kind::Live { requested_bytes }, &mut self.slots);
        Ok(at)
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

    /// Counts a failure of a request for `bytes`, which is what its report speaks of.
    fn failed(&mut self, mut error: AllocError, bytes: u64) -> AllocError {
        self.counters.n_failures += 1;
        if let AllocError::OutOfMemory(report) = &mut error {
            report.requested_bytes = bytes;
        }
        error
    }

    fn free_small(&mut self, unit: u32, offset: u64) -> Option<Freed> {
        let spot = self.small.find(unit, offset)?;
        let freed = self.small.free(spot);
        if freed.unit_is_free
            && let Some(other) = self.spare_unit.replace(unit)
        {
            self.give_up_unit(other);
        }
        Some(Freed { requested_bytes: freed.requested_bytes, allocated_bytes: freed.allocated_bytes })
    }

    fn free_large(&mut self, at: u64) -> Option<Freed> {
        let block = self.blocks.starting_at(at, &self.slots)?;
        let b = *self.blocks.get(block);
        let Kind::Live { requested_bytes } = b.kind else { return None };
        self.release(block);
        Some(Freed { requested_bytes, allocated_bytes: b.bytes })
    }

    pub(crate) fn physical_bytes(&self) -> u64 {
        self.slots.n_home_pages() * PAGE
    }

    /// Checks a request and returns the bytes to set aside.
    fn check(&self, request: Request) -> Result<u64, AllocError> {
        let Request { bytes, align_bytes, stream } = request;
        if self.is_poisoned {
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
        let rounded = bytes.checked_next_multiple_of(GRANULE_BYTES);
        rounded.filter(|&n| n <= self.arena.bytes / 2).ok_or(AllocError::TooLarge { bytes })
    }

    /// Checks an address to be freed and returns its offset in the arena.
    fn check_free(&self, ptr: DevicePtr, stream: StreamId) -> Result<u64, AllocError> {
        if self.is_poisoned {
            return Err(AllocError::Poisoned);
        }
        if !self.arena.contains(AddressRange::new(ptr, 1)) {
            return Err(AllocError::NotAllocated(ptr));
        }
        if stream != self.order.stream() {
            return Err(AllocError::OtherStream(stream));
        }
        Ok(ptr - self.arena.start)
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
        let at = at.map_err(|error| self.failed(error, bytes))?;
        let c = &mut self.counters;
        c.n_allocations += 1;
        c.requested_bytes += bytes;
        c.allocated_bytes += rounded;
        c.peak_requested_bytes = c.peak_requested_bytes.max(c.requested_bytes);
        c.peak_allocated_bytes = c.peak_allocated_bytes.max(c.allocated_bytes);
        self.spent.n_ops += 1;
        Ok(Allocation { ptr: self.arena.start + at, bytes, stream })
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let at = self.check_free(ptr, stream)?;
        let unit = self.slots.slot(page_of(at)).unit;
        let freed = if unit == NONE { self.free_large(at) } else { self.free_small(unit, at % PAGE) };
        let freed = freed.ok_or(AllocError::NotAllocated(ptr))?;
        self.counters.n_frees += 1;
        self.counters.requested_bytes -= freed.requested_bytes;
        self.counters.allocated_bytes -= freed.allocated_bytes;
        self.spent.n_ops += 1;
        Ok(())
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let at = self.check_free(ptr, stream)?;
        let unit = self.slots.slot(page_of(at)).unit;
        let is_live = if unit == NONE {
            let block = self.blocks.starting_at(at, &self.slots);
            block.is_some_and(|block| matches!(self.blocks.get(block).kind, Kind::Live { .. }))
        } else {
            self.small.find(unit, at % PAGE).is_some()
        };
        if is_live { Ok(()) } else { Err(AllocError::NotAllocated(ptr)) }
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.trim_to(keep_bytes)
    }

    fn stats(&self) -> Stats {
        let c = &self.counters;
        Stats {
            requested_bytes: c.requested_bytes,
            allocated_bytes: c.allocated_bytes,
            reserved_bytes: self.physical_bytes(),
            peak_requested_bytes: c.peak_requested_bytes,
            peak_allocated_bytes: c.peak_allocated_bytes,
            peak_reserved_bytes: c.peak_reserved_bytes,
            stitchable_bytes: self.blocks.clean_bytes(),
            largest_free_bytes: self.blocks.largest_bytes(),
            stale_bytes: self.slots.n_stale_pages() * PAGE,
            hole_bytes: self.slots.n_hole_pages() * PAGE,
            n_live: c.n_allocations - c.n_frees,
            n_allocations: c.n_allocations,
            n_frees: c.n_frees,
            n_misses: c.n_misses,
            n_stitches: c.n_stitches,
            stitched_bytes: c.stitched_bytes,
            n_revived: c.n_revived,
            n_failures: c.n_failures,
        }
    }
}

/// Addresses for a device of `device_bytes`: so many that holes are seldom filled for lack of
/// others.
fn arena_bytes(device_bytes: u64) -> u64 {
    device_bytes.saturating_mul(16).clamp(1 << 40, 16 << 40).next_multiple_of(PAGE_BYTES)
}
