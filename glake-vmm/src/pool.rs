//! The pool: where requests become addresses.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::{Driver, DriverError};
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES, StreamId};

use crate::blocks::{Blocks, Kind};
use crate::capture::Gone;
use crate::config::Config;
use crate::counters::Counters;
use crate::free::{Last, Users};
use crate::held::Held;
use crate::homing::Homing;
use crate::order::{Order, StreamIndex, Taker, Waiting};
use crate::room::Found;
use crate::shared::Figures;
use crate::sizing::Spent;
use crate::slots::Slots;
use crate::small::SMALL_BYTES;
use crate::spare::Small;
use crate::stale::Stale;
use crate::units::{GRANULE_BYTES, PAGE};

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
/// let mut pool = StitchPool::new(driver, Config::new(DeviceId(0)))?;
/// let a = pool.allocate(Request::new(3 << 20, stream))?;
/// pool.free(a.ptr, stream)?;
/// assert_eq!(pool.stats().allocated_bytes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StitchPool {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) config: Config,
    /// Who may read and write the memory: the pool's own device first.
    pub(crate) devices: Vec<DeviceId>,
    /// All memory of the device.
    pub(crate) device_bytes: u64,
    /// The addresses reserved for the pool.
    pub(crate) arena: AddressRange,
    pub(crate) slots: Slots,
    pub(crate) blocks: Blocks,
    /// By stream.
    pub(crate) smalls: Vec<Small>,
    pub(crate) order: Order,
    /// Streams that were told to use an allocation, by its offset.
    pub(crate) users: HashMap<u64, Users>,
    pub(crate) gone: Gone,
    /// The oldest first.
    pub(crate) held: VecDeque<Held>,
    pub(crate) stale: Stale,
    pub(crate) spent: Spent,
    pub(crate) homing: Homing,
    /// Where the latest runs were stitched: their first pages, oldest first.
    pub(crate) stitched: VecDeque<usize>,
    pub(crate) counters: Counters,
    /// What shards serve from pages of this pool, as they reported it last.
    pub(crate) shards: Figures,
    /// An undo failed: the tables may not say what the driver has mapped.
    pub(crate) is_poisoned: bool,
    /// Somebody calls `step`.
    pub(crate) is_stepped: bool,
    /// The device is done with everything, and nothing more will be enqueued.
    pub(crate) is_idle: bool,
}

/// A request that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    /// Bytes to set aside.
    pub(crate) rounded: u64,
    pub(crate) stream: StreamIndex,
}

impl StitchPool {
    /// A pool without memory; reserves its addresses.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if the device does not exist or has no addresses left.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self, AllocError> {
        let device_bytes = driver.memory_info(config.device)?.total_bytes;
        let arena = driver.reserve(arena_bytes(device_bytes), PAGE_BYTES)?;
        let order = Order::new(config.device);
        Ok(Self {
            driver,
            devices: vec![config.device],
            config,
            device_bytes,
            arena,
            slots: Slots::default(),
            blocks: Blocks::new(),
            smalls: Vec::new(),
            order,
            users: HashMap::new(),
            gone: Gone::default(),
            held: VecDeque::new(),
            stale: Stale::default(),
            spent: Spent::default(),
            homing: Homing::new(),
            stitched: VecDeque::new(),
            counters: Counters::default(),
            shards: Figures::default(),
            is_poisoned: false,
            is_stepped: false,
            is_idle: false,
        })
    }

    #[inline]
    fn allocate_small(&mut self, bytes: u64, taker: Taker) -> Result<u64, AllocError> {
        let small = self.small(taker.stream);
        if let Some((at, unit)) = small.pool.allocate(bytes) {
            if small.spare == Some(unit) {
                small.spare = None;
            }
            return Ok(at);
        }
        let found = match self.page_for_unit(taker) {
            Ok(found) => found,
            Err(error) => return self.allocate_apart(bytes, error, taker),
        };
        self.add_unit(found, taker.stream);
        // A fresh unit fits every small request.
        self.small(taker.stream).pool.allocate(bytes).map(|(at, _)| at).ok_or(AllocError::Poisoned)
    }

    /// A free page that the taker may have.
    pub(crate) fn page_for_unit(&mut self, taker: Taker) -> Result<Found, AllocError> {
        let found = self.room_for_unit(taker)?;
        self.wait_for(found, PAGE, taker)?;
        Ok(found)
    }

    /// A small object in any free bytes that hold it, where `error` says that no unit is to be had.
    pub(crate) fn allocate_apart(
        &mut self,
        requested_bytes: u64,
        error: AllocError,
        taker: Taker,
    ) -> Result<u64, AllocError> {
        let bytes = requested_bytes.next_multiple_of(GRANULE_BYTES);
        let AllocError::OutOfMemory(_) = error else { return Err(error) };
        let found = self.fit(bytes, GRANULE_BYTES, taker).ok_or(error)?;
        self.take(found, requested_bytes, bytes, taker)
    }

    #[inline]
    fn allocate_large(
        &mut self,
        requested_bytes: u64,
        bytes: u64,
        align_bytes: u64,
        taker: Taker,
    ) -> Result<u64, AllocError> {
        let found = self.room_for(bytes, align_bytes, taker)?;
        self.take(found, requested_bytes, bytes, taker)
    }

    /// Makes free bytes an allocation, behind the work that still uses them.
    #[inline]
    fn take(
        &mut self,
        found: Found,
        requested_bytes: u64,
        bytes: u64,
        taker: Taker,
    ) -> Result<u64, AllocError> {
        self.wait_for(found, bytes, taker)?;
        let (block, at) = found;
        let kind = Kind::Live { requested_bytes, owner: taker.stream };
        self.blocks.carve(block, at, bytes, kind, &mut self.slots);
        Ok(at)
    }

    /// Serves a checked request for `rounded` bytes.
    #[inline]
    fn serve(&mut self, request: Request, rounded: u64, taker: Taker) -> Result<u64, AllocError> {
        let Request { bytes, align_bytes, .. } = request;
        if bytes < SMALL_BYTES && align_bytes <= GRANULE_BYTES {
            self.allocate_small(bytes, taker)
        } else {
            self.allocate_large(bytes, rounded, align_bytes, taker)
        }
    }

    /// Serves a request; where that needs a wait that cannot be had, without one. The host waits only where
    /// there is no more memory.
    #[inline]
    pub(crate) fn serve_or_else<T>(
        &mut self,
        stream: StreamIndex,
        serve: impl Fn(&mut Self, Taker) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let waiting = if self.order.is_host(stream) { Waiting::Refused } else { Waiting::Allowed };
        match serve(self, Taker { stream, waiting }) {
            Err(error) => self.serve_otherwise(Taker { stream, waiting }, error, serve),
            served => served,
        }
    }

    /// Serves a request that failed for `taker` with `error` the other way, if there is one.
    #[cold]
    fn serve_otherwise<T>(
        &mut self,
        taker: Taker,
        error: AllocError,
        serve: impl Fn(&mut Self, Taker) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        match (taker.waiting, &error) {
            (Waiting::Allowed, refused) if cannot_wait(refused) => {
                serve(self, Taker { waiting: Waiting::Refused, ..taker })
            }
            (Waiting::Refused, AllocError::OutOfMemory(_)) => {
                let served = serve(self, Taker { waiting: Waiting::Allowed, ..taker });
                served.map_err(|other| if cannot_wait(&other) { error } else { other })
            }
            _ => Err(error),
        }
    }

    /// Serves an admitted request.
    #[inline]
    pub(crate) fn grant(&mut self, request: Request, admitted: Admitted) -> Result<u64, AllocError> {
        let Admitted { rounded, stream } = admitted;
        self.serve_or_else(stream, |pool, taker| pool.serve(request, rounded, taker))
    }

    /// As [`grant`](Self::grant); waits for the device before it says that there is no memory.
    #[inline]
    pub(crate) fn grant_at_last(&mut self, request: Request, admitted: Admitted) -> Result<u64, AllocError> {
        match self.grant(request, admitted) {
            Err(error @ AllocError::OutOfMemory(_)) if self.may_waiting_help(admitted.stream) => {
                if !could_wait(self.order.synchronize(&*self.driver).map_err(AllocError::from))? {
                    return Err(error);
                }
                self.release_held();
                self.grant(request, admitted)
            }
            granted => granted,
        }
    }

    /// Whether there is free memory that a request on `stream` can only have when the device is done.
    pub(crate) fn may_waiting_help(&self, stream: StreamIndex) -> bool {
        !self.held.is_empty() || self.order.has_unreachable(stream)
    }

    /// The index of a stream.
    #[inline]
    pub(crate) fn index_of(&mut self, stream: StreamId) -> Result<StreamIndex, AllocError> {
        if let Some(index) = self.order.index_of(stream) {
            return Ok(index);
        }
        self.find_ended_streams();
        self.order.index_of(stream).ok_or(AllocError::TooManyStreams)
    }

    /// Looks for streams that ended and are done by now, where there are too many.
    pub(crate) fn find_ended_streams(&mut self) {
        self.collect_graphs();
        self.order.find_ended(&*self.driver);
    }

    #[inline]
    pub(crate) fn physical_bytes(&self) -> u64 {
        self.slots.n_home_pages() * PAGE
    }

    /// Checks a request.
    #[inline]
    pub(crate) fn admit(&mut self, request: Request) -> Result<Admitted, AllocError> {
        self.check_sound()?;
        let rounded = checked(request, self.arena)?;
        let stream = self.index_of(request.stream)?;
        Ok(Admitted { rounded, stream })
    }

    /// Checks an address to be freed and returns its offset in the arena.
    #[inline]
    pub(crate) fn check_free(&self, ptr: DevicePtr) -> Result<u64, AllocError> {
        self.check_sound()?;
        offset_in(self.arena, ptr)
    }
}

impl Allocator for StitchPool {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let admitted = self.admit(request)?;
        let Request { bytes, stream, .. } = request;
        let granted = self.grant_at_last(request, admitted);
        let at = granted.map_err(|error| self.failed(error, bytes))?;
        self.count(bytes, admitted.rounded);
        Ok(Allocation { ptr: self.arena.start + at, bytes, stream })
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let at = self.check_free(ptr)?;
        let stream = self.index_of(stream)?;
        self.freed(ptr, at, Last::On(stream))
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let at = self.check_free(ptr)?;
        if !self.is_live(at) {
            return Err(AllocError::NotAllocated(ptr));
        }
        let user = self.index_of(stream)?;
        let users = self.users.entry(at).or_default();
        if !users.contains(&user) {
            users.push(user);
        }
        Ok(())
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.trim_to(keep_bytes)
    }

    fn stats(&self) -> Stats {
        self.memory_stats()
    }
}

/// Whether a request failed for a wait that cannot be had.
fn cannot_wait(error: &AllocError) -> bool {
    matches!(error, AllocError::Driver(DriverError::Capturing(_) | DriverError::NotSupported(_)))
}

/// Whether the device was waited for: not where a capture forbids it.
pub(crate) fn could_wait(waited: Result<(), AllocError>) -> Result<bool, AllocError> {
    match waited {
        Err(AllocError::Driver(DriverError::Capturing(_))) => Ok(false),
        waited => waited.map(|()| true),
    }
}

/// Checks a request against an arena and returns the bytes to set aside.
#[inline]
pub(crate) fn checked(request: Request, arena: AddressRange) -> Result<u64, AllocError> {
    let Request { bytes, align_bytes, .. } = request;
    if bytes == 0 {
        return Err(AllocError::ZeroBytes);
    }
    if !align_bytes.is_power_of_two() || align_bytes > PAGE {
        return Err(AllocError::BadAlignment { align_bytes });
    }
    let rounded = bytes.checked_next_multiple_of(GRANULE_BYTES);
    rounded.filter(|&n| n <= arena.bytes / 2).ok_or(AllocError::TooLarge { bytes })
}

/// The offset of an address in an arena.
#[inline]
pub(crate) fn offset_in(arena: AddressRange, ptr: DevicePtr) -> Result<u64, AllocError> {
    let is_inside = arena.contains(AddressRange::new(ptr, 1));
    if is_inside { Ok(ptr - arena.start) } else { Err(AllocError::NotAllocated(ptr)) }
}

/// Addresses for a device of `device_bytes`: so many that holes are seldom filled for lack of
/// others.
fn arena_bytes(device_bytes: u64) -> u64 {
    device_bytes.saturating_mul(16).clamp(1 << 40, 16 << 40).next_multiple_of(PAGE_BYTES)
}
