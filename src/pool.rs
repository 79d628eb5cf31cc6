//! The pool as programs use it.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Driver, DriverError, IntoDriver};
use glake_core::stats::Stats;
use glake_core::typed::Values;
use glake_core::units::{DeviceId, StreamId};
use glake_vmm::Defragmented;

use crate::buffer::Buffer;
use crate::builder::PoolBuilder;
use crate::shared::Shared;

/// A pool of a GPU's memory, for many threads and one stream.
///
/// Clones are handles of one pool, and every [`Buffer`] holds one too. When the last is dropped,
/// the memory goes back to the device once the stream's work is done; nothing waits for that, and
/// [`close`](Self::close) does.
///
/// A pool serves one stream so far. Give each stream a pool of its own.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    device: DeviceId,
}

impl Pool {
    /// Sets up a pool on `device` of a driver: a [`SimDriver`](crate::sim::SimDriver), a
    /// `cuda::CudaDriver`, or an `Arc` of a driver that others use too.
    pub fn builder(driver: impl IntoDriver, device: DeviceId) -> PoolBuilder {
        PoolBuilder::new(driver.into_driver(), device)
    }

    pub(crate) fn new(shared: Shared, device: DeviceId) -> Self {
        Self { shared: Arc::new(shared), device }
    }

    /// Allocates `len` values of type `T`, used first on `stream`, the pool's. What they are is
    /// not said. The memory is valid for work enqueued on the stream from now on.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with the figures to act on; [`AllocError::ZeroBytes`] for no
    /// values; [`AllocError::TooLarge`]; [`AllocError::Driver`]. The
    /// pool is as before.
    pub fn alloc<T: Pod>(&self, len: usize, stream: StreamId) -> Result<Buffer<T>, AllocError> {
        let bytes = Values::<T>::n_bytes(len).ok_or(AllocError::TooLarge { bytes: u64::MAX })?;
        let align_bytes = Request::MIN_ALIGN_BYTES.max(align_of::<T>() as u64);
        let allocation = self.shared.allocate(Request::new(bytes, stream).aligned(align_bytes))?;
        Ok(Buffer::new(self.clone(), allocation, len))
    }

    /// The stream that the pool's memory is used on. On CUDA the number is the value of the
    /// `CUstream`.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.shared.stream()
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.shared.driver()
    }

    /// Figures of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The share of the free bytes that no request can get; see [`Stats::fragmentation_ratio`].
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        self.stats().fragmentation_ratio()
    }

    /// Gives physical memory back to the device until at most `keep_bytes` are reserved or nothing
    /// more is free, and returns how many bytes went back. Waits for the stream's work so far.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was given back until then stays given back.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.shared.with(|pool| pool.trim(keep_bytes))?
    }

    /// Moves free memory into one run of addresses and removes mappings that are no longer
    /// needed. Live memory stays where it is. Waits for the stream's work so far.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was done until then stays done.
    pub fn defragment(&self) -> Result<Defragmented, AllocError> {
        self.shared.with(glake_vmm::StitchPool::defragment)?
    }

    /// The most physical bytes that the pool may hold from now on. If it holds more, it gives back
    /// what is free, as [`trim`](Self::trim) does, and returns how many bytes went back; what is
    /// live stays.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; the limit is set all the same.
    pub fn set_limit_bytes(&self, limit_bytes: u64) -> Result<u64, AllocError> {
        self.shared.with(|pool| pool.set_limit_bytes(limit_bytes))?
    }

    /// Waits for the stream's work so far and gives everything back to the device.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if buffers or other handles of the pool are alive: this
    /// handle is only dropped. [`AllocError::Driver`] if the device is lost.
    pub fn close(self) -> Result<(), AllocError> {
        const STILL_USED: DriverError =
            DriverError::InvalidValue("the pool is still used: drop its buffers and other handles first");
        Arc::into_inner(self.shared).ok_or(STILL_USED)?.close()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("device", &self.device)
            .field("stream", &self.stream())
            .finish_non_exhaustive()
    }
}
