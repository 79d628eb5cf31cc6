//! [`CudaDriver`]: the traits of `glake_core::driver` over CUDA.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cudarc::driver::sys::CUresult;
use glake_core::driver::{Access, Call, DeviceInfo, Driver, DriverError, Ledger, Result};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};

use crate::call::{self, Stream};
use crate::host::{PinnedBytes, PinnedPool};
use crate::probe::{self, CtxRecordEvent, OpenError};

mod close;
mod copies;
mod device;
mod graph;
mod held;
mod host;
mod ops;
mod order;
mod reaper;
mod sharing;
pub(crate) mod space;
mod stream;
mod vmm;

use copies::Reads;
use device::Device;
use held::Hosts;
use order::Events;
use reaper::Reaper;
use space::Space;
use stream::Streams;

/// The CUDA driver of this process, with all devices that the process may see.
///
/// Clones are cheap and share everything. Each call makes the right context current on the
/// calling thread and puts the thread's own back. The streams [`StreamId::LEGACY`] (and stream 0)
/// and [`StreamId::PER_THREAD`] are those of the context that is current on the calling thread if it
/// is a device's primary context, and of device 0 otherwise.
///
/// When the last clone is dropped, memory and addresses that are not mapped go back. What is mapped
/// stays, because work may still use it, and so do the contexts, pinned memory, and host memory that
/// copies may still use, until the process ends. [`close`](Self::close) waits and frees everything.
#[derive(Clone)]
pub struct CudaDriver {
    shared: Arc<Shared>,
}

/// What all clones of the driver share. Locks are taken one at a time.
pub(crate) struct Shared {
    devices: Vec<Device>,
    granularity_bytes: u64,
    record_context: Option<CtxRecordEvent>,
    has_user_objects: bool,
    space: Mutex<Space>,
    streams: Mutex<Streams>,
    events: Mutex<Events>,
    reads: Mutex<Reads>,
    n_reads: AtomicU64,
    hosts: Hosts,
    reaper: Reaper,
    pinned: Arc<PinnedPool>,
    opened: Instant,
}

/// Memory or a stream that something else made; see [`CudaDriver::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// Device memory.
    Memory {
        /// Where it lies; nothing of the driver's may lie there.
        range: AddressRange,
        /// The device that owns it.
        device: DeviceId,
        /// What that device may do with it.
        access: Access,
    },
    /// A stream, by the value of its `CUstream`.
    Stream {
        /// The stream.
        stream: StreamId,
        /// The device of the stream.
        device: DeviceId,
    },
}

const STILL_USED: DriverError =
    DriverError::InvalidValue("the driver is still used: drop its clones and buffers first");

/// Opens the CUDA driver. A device's primary context is retained at the first call on it.
///
/// # Errors
/// [`OpenError`], with advice.
#[allow(clippy::disallowed_methods, reason = "the driver's own clock begins here")]
pub fn open() -> Result<CudaDriver, OpenError> {
    probe::probe()?;
    call::device::init().map_err(|code| match code {
        CUresult::CUDA_ERROR_NO_DEVICE => OpenError::NoDevice,
        CUresult::CUDA_ERROR_STUB_LIBRARY => OpenError::Stub,
        code => OpenError::Driver(call::error("cuInit", code as u32)),
    })?;
    let n = call::device::count()?.unsigned_abs().min(u64::BITS);
    let devices = (0..n).map(|id| Device::open(DeviceId(id), n)).collect::<Result<Vec<_>, _>>()?;
    let granularity_bytes = devices.iter().map(|device| device.granularity_bytes).max();
    let granularity_bytes = granularity_bytes.ok_or(OpenError::NoDevice)?;
    tracing::debug!(n, granularity_bytes, "opened the CUDA driver");
    Ok(CudaDriver {
        shared: Arc::new(Shared {
            devices,
            granularity_bytes,
            record_context: probe::ctx_record_event(),
            has_user_objects: probe::has_user_objects(),
            space: Mutex::new(Space::new(granularity_bytes)),
            streams: Mutex::default(),
            events: Mutex::default(),
            reads: Mutex::default(),
            n_reads: AtomicU64::new(0),
            hosts: Hosts::default(),
            reaper: Reaper::default(),
            pinned: Arc::default(),
            opened: Instant::now(),
        }),
    })
}

impl CudaDriver {
    /// Makes foreign memory or a foreign stream known to the driver, so that its methods take it.
    /// Adopted memory can be copied, filled and given to kernels, never mapped or unmapped.
    ///
    /// # Errors
    /// [`DriverError::StillMapped`] if the range overlaps one that the driver knows;
    /// [`DriverError::InvalidDevice`]. Nothing is adopted then.
    ///
    /// # Safety
    /// The memory or stream exists, on that device and in its primary context, until it is
    /// disowned and all work that was enqueued with it is done. Nobody else accesses the memory
    /// in a way that conflicts with what is done through the driver.
    pub unsafe fn adopt(&self, foreign: Foreign) -> Result<()> {
        match foreign {
            Foreign::Memory { range, device, access } => {
                self.device(device)?;
                lock(&self.shared.space).adopt(range, device, access)
            }
            Foreign::Stream { stream, device } => {
                self.device(device)?;
                lock(&self.shared.streams).adopt(Stream(stream.0), device);
                Ok(())
            }
        }
    }

    /// Forgets adopted memory that starts at `start`.
    ///
    /// # Errors
    /// [`DriverError::UnknownAddress`] if no adopted memory starts there.
    pub fn disown_memory(&self, start: DevicePtr) -> Result<()> {
        lock(&self.shared.space).disown(start)
    }

    /// Forgets an adopted stream.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`] if it was not adopted.
    pub fn disown_stream(&self, stream: StreamId) -> Result<()> {
        lock(&self.shared.streams).disown(stream)
    }

    /// Pinned host memory of `n_bytes` zeros. Asynchronous writes from it need no staging copy.
    /// The first request of a size makes the driver pin memory, at about 0.4 ms per MiB; dropped
    /// memory is kept for the next request.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if the host has not that much left.
    pub fn pinned(&self, n_bytes: usize) -> Result<PinnedBytes> {
        let _entered = self.shared.first()?.enter_beside_captures()?;
        Ok(PinnedBytes::new(self.shared.pinned.take(n_bytes)?, n_bytes))
    }

    /// Frees idle pinned memory. May wait for device work.
    ///
    /// # Errors
    /// Those of the native driver.
    pub fn free_idle_pinned(&self) -> Result<()> {
        let _entered = self.shared.first()?.enter_beside_captures()?;
        self.shared.pinned.free_idle()
    }

    /// Waits for all work of all devices, then unmaps, releases and frees all that the driver
    /// made, and releases the contexts. Host memory that it still holds is dropped, like reads that
    /// nobody took.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if other clones, buffers or pinned bytes in anybody else's hands are
    /// alive: this clone is only dropped, having waited or not. [`DriverError::DeviceLost`] and others of the native driver:
    /// what could not be freed stays until the process ends.
    pub fn close(self) -> Result<()> {
        Arc::into_inner(self.shared).ok_or(STILL_USED)?.close()
    }

    /// Unmaps `range` when all work that may touch it is done. Does not block.
    pub(crate) fn unmap_later(&self, range: AddressRange) {
        self.shared.unmap_later(range);
    }

    /// Gives a reservation back when nothing is mapped in it any more. Does not block.
    pub(crate) fn unreserve_later(&self, range: AddressRange) {
        self.shared.unreserve_later(range);
    }

    fn device(&self, id: DeviceId) -> Result<&Device> {
        self.shared.device(id)
    }
}

impl Shared {
    /// A device by its id.
    fn device(&self, id: DeviceId) -> Result<&Device> {
        let index = usize::try_from(id.0).unwrap_or(usize::MAX);
        self.devices.get(index).ok_or(DriverError::InvalidDevice(id))
    }

    /// Counts a call that was refused before the driver was asked; on device 0, as the simulated
    /// driver does where it knows no better.
    fn checked<T>(&self, call: Call, result: Result<T>) -> Result<T> {
        if let (Err(_), Ok(device)) = (&result, self.first()) {
            device.note(|ledger| ledger.count(call, 0));
        }
        result
    }

    /// The device that stands in where none is named: the first that is in use, so that no
    /// context is made for it.
    fn first(&self) -> Result<&Device> {
        let used = self.devices.iter().find(|device| device.is_in_use());
        used.map_or_else(|| self.device(DeviceId(0)), Ok)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.give_up_hosts();
        self.poll_all();
        let (handles, reservations) = lock(&self.space).drain_idle();
        if handles.is_empty() && reservations.is_empty() {
            return;
        }
        let Ok(_entered) = self.first().and_then(Device::enter_beside_captures) else { return };
        for handle in handles {
            // SAFETY: the map says that the handle is ours and not released; it is not mapped.
            let _ = unsafe { call::vmm::release(handle) };
        }
        for range in reservations {
            // SAFETY: the map says that the reservation is ours and empty.
            let _ = unsafe { call::vmm::unreserve(range) };
        }
    }
}

impl Driver for CudaDriver {
    fn n_devices(&self) -> u32 {
        u32::try_from(self.shared.devices.len()).unwrap_or(u32::MAX)
    }

    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo> {
        Ok(self.device(device)?.info())
    }

    fn ledger(&self, device: DeviceId) -> Result<Ledger> {
        Ok(self.device(device)?.ledger())
    }

    /// Since the driver was opened.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.shared.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.shared;
        let devices = &shared.devices;
        f.debug_struct("CudaDriver")
            .field("devices", devices)
            .field("pinned", &shared.pinned)
            .finish_non_exhaustive()
    }
}

/// Locks, also where another thread panicked: every update under a lock is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
