//! Device memory: what every entry point that allocates or frees comes to.
//!
//! A function returns `None` where the driver is to answer: for what is not the pool's, and where the
//! pool cannot serve for another reason than a lack of memory.

use std::ptr;
use std::sync::atomic::Ordering;

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::units::{DevicePtr, StreamId};

use crate::captures::{BesideCaptures, Capturing};
use crate::device::{Device, DevicePool, InContext};
use crate::hook::{Hook, lock};
use crate::real::{Code, INVALID_VALUE, OUT_OF_MEMORY, Ptr, SUCCESS};
use crate::streams::raw;

/// `CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT` and the like are at most this on all GPUs.
const PITCH_BYTES: u64 = 512;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED_NOW: i32 = 5;

impl Hook {
    /// Memory for work on `stream`.
    #[inline]
    pub(crate) fn allocate(&'static self, bytes: usize, stream: StreamId) -> Option<Result<Ptr, Code>> {
        let device = self.device_of_stream(stream)?;
        if device.is_async_served.load(Ordering::Relaxed) {
            self.allocate_on(device, bytes, stream)
        } else {
            None
        }
    }

    /// Memory for work on `stream`, which is known to be the device's.
    #[inline]
    pub(crate) fn allocate_on(
        &'static self,
        device: &Device,
        bytes: usize,
        stream: StreamId,
    ) -> Option<Result<Ptr, Code>> {
        let bytes = bytes as u64;
        if bytes == 0 {
            return None;
        }
        let _in_context = InContext::enter(self.real, device.context()?);
        self.answered(device, bytes, self.allocate_request(device, Request::new(bytes, stream))?)
    }

    /// Asks the pool. The context is current, and the stream is known to be the device's. None where the driver
    /// is to answer.
    #[inline]
    pub(crate) fn allocate_request(
        &'static self,
        device: &Device,
        request: Request,
    ) -> Option<Result<DevicePtr, AllocError>> {
        let pool = device.pool(self)?;
        let Request { bytes, stream, .. } = request;
        if self.capturing(device, pool, stream) == Capturing::Unserved {
            return None;
        }
        let allocated = self.with_retry(device, || pool.pool.allocate(request));
        Some(allocated.map(|Allocation { ptr, .. }| self.noted(device, ptr, bytes, stream)))
    }

    /// Writes an allocation into the books.
    #[inline]
    fn noted(&self, device: &Device, ptr: DevicePtr, bytes: u64, stream: StreamId) -> DevicePtr {
        device.note_allocated(ptr.0, bytes, stream);
        self.note_tag(ptr.0, bytes);
        ptr
    }

    /// Memory that everybody may use at once: the host, and all streams.
    pub(crate) fn allocate_for_all(&'static self, bytes: u64) -> Option<Result<Ptr, Code>> {
        let device = self.device_of(self.current_context())?;
        if bytes == 0 {
            return None;
        }
        let pool = device.pool(self)?;
        let allocated = self.with_retry(device, || pool.pool.allocate_for_all(bytes));
        let allocated =
            allocated.map(|Allocation { ptr, .. }| self.noted(device, ptr, bytes, StreamId::LEGACY));
        self.answered(device, bytes, allocated)
    }

    /// Rows of `width` bytes, each at a multiple of the pitch.
    pub(crate) fn allocate_pitched(
        &'static self,
        width: usize,
        height: usize,
    ) -> Option<Result<(Ptr, usize), Code>> {
        let pitch = (width as u64).checked_next_multiple_of(PITCH_BYTES)?;
        let bytes = pitch.checked_mul(height as u64)?;
        let pitch = usize::try_from(pitch).ok()?;
        Some(self.allocate_for_all(bytes)?.map(|ptr| (ptr, pitch)))
    }

    /// Tries again once where the device is full: the driver's own pool may hold memory that nobody uses.
    fn with_retry<T>(
        &self,
        device: &Device,
        mut act: impl FnMut() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        match act() {
            Err(AllocError::OutOfMemory(_)) if self.trim_default_mempool(device) => act(),
            done => done,
        }
    }

    fn answered(
        &self,
        device: &Device,
        bytes: u64,
        allocated: Result<DevicePtr, AllocError>,
    ) -> Option<Result<Ptr, Code>> {
        match allocated {
            Ok(DevicePtr(ptr)) => Some(Ok(ptr)),
            Err(AllocError::OutOfMemory(mut report)) => {
                report.top_tags = lock(&self.tags).top(5);
                tracing::warn!(device = device.id.0, "{report}");
                Some(Err(OUT_OF_MEMORY))
            }
            Err(AllocError::TooLarge { .. }) => Some(Err(OUT_OF_MEMORY)),
            Err(error) => {
                tracing::warn!(device = device.id.0, bytes, %error, "the driver's own allocator serves a request");
                None
            }
        }
    }

    /// Gives back what the driver's default pool holds and nobody uses; says whether that was anything.
    fn trim_default_mempool(&self, device: &Device) -> bool {
        let _beside = BesideCaptures::enter(self.real);
        let mut pool = ptr::null_mut();
        // SAFETY: writes a pool.
        let code = unsafe { (self.real.cuDeviceGetDefaultMemPool)(&raw mut pool, device.cu) };
        if code != SUCCESS {
            return false;
        }
        let reserved = || {
            let mut bytes = 0u64;
            // SAFETY: the attribute is a number of 64 bits, of the device's default pool.
            let code =
                unsafe { (self.real.cuMemPoolGetAttribute)(pool, RESERVED_NOW, (&raw mut bytes).cast()) };
            if code == SUCCESS { bytes } else { 0 }
        };
        let before = reserved();
        // SAFETY: the device's default pool, which lives as long as the device.
        before > 0 && unsafe { (self.real.cuMemPoolTrimTo)(pool, 0) } == SUCCESS && reserved() < before
    }

    /// Frees what lies at `ptr`, if it is the pool's, behind the work of `stream`.
    #[inline]
    pub(crate) fn free(&'static self, ptr: Ptr, stream: StreamId) -> Option<Code> {
        let (device, pool) = self.owner(ptr)?;
        let on = self.device_of_stream(stream);
        let is_default = stream.0 <= StreamId::PER_THREAD.0;
        if on.is_none_or(|on| is_default && on.id != device.id) {
            // A stream of another kind of context, or the default one of another device.
            return Some(self.free_behind_other(device, pool, ptr, stream));
        }
        let _in_context = InContext::enter(self.real, device.context()?);
        let _ = self.capturing(device, pool, stream);
        device.note_freed(ptr);
        self.forget_tag(ptr);
        Some(freed(ptr, pool.pool.free(DevicePtr(ptr), stream)))
    }

    /// Frees what lies at `ptr`, if it is the pool's, whoever used it.
    pub(crate) fn free_from_anywhere(&'static self, ptr: Ptr) -> Option<Code> {
        let (device, pool) = self.owner(ptr)?;
        let _in_context = InContext::enter(self.real, device.context()?);
        Some(self.let_go(device, pool, ptr))
    }

    /// Frees behind a stream that the pool cannot name: its work is waited for.
    fn free_behind_other(&self, device: &Device, pool: &DevicePool, ptr: Ptr, stream: StreamId) -> Code {
        let _beside = BesideCaptures::enter(self.real);
        // SAFETY: the program names a stream, and would have the driver use it. A failure means that it
        // has no work.
        let _ = unsafe { (self.real.cuStreamSynchronize)(raw(stream)) };
        let _in_context = device.context().map(|context| InContext::enter(self.real, context));
        self.let_go(device, pool, ptr)
    }

    fn let_go(&self, device: &Device, pool: &DevicePool, ptr: Ptr) -> Code {
        device.note_freed(ptr);
        self.forget_tag(ptr);
        freed(ptr, pool.pool.free_from_anywhere(DevicePtr(ptr)))
    }

    /// Counts what the driver's allocator is asked for.
    pub(crate) fn pass_on(&self, bytes: usize) {
        if bytes > 0 {
            self.passed_on.allocation(bytes);
        }
    }

    /// Counts a free that the driver's allocator is asked for.
    pub(crate) fn pass_on_free(&self, ptr: Ptr) {
        if ptr != 0 {
            self.passed_on.n_frees.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The answer to a free. A driver's trouble is none of the program's, which would take an error for one
/// of its next call.
fn freed(ptr: Ptr, freed: Result<(), AllocError>) -> Code {
    match freed {
        Ok(()) => SUCCESS,
        Err(AllocError::NotAllocated(_)) => INVALID_VALUE,
        Err(error) => {
            tracing::warn!(ptr = %DevicePtr(ptr), %error, "memory is lost until the process ends");
            SUCCESS
        }
    }
}
