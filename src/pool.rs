//! The pool as programs use it.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use glake_core::alloc::{AllocError, Request};
use glake_core::driver::{Driver, DriverError, IntoDriver};
use glake_core::stats::Stats;
use glake_core::typed::Values;
use glake_core::units::{DeviceId, StreamId};
use glake_vmm::Defragmented;

use crate::buffer::Buffer;
use crate::builder::PoolBuilder;
use crate::capture::Capture;
use crate::shared::Shared;

/// A pool of a GPU's memory, for many threads and streams.
///
/// Memory that was used on one stream goes to another as soon as the device is done with it, or behind
/// a wait of that stream for an event; the host never waits. Threads that allocate and free small
/// buffers (below 256 KiB) on streams of their own do not get in each other's way.
///
/// Clones are handles of one pool, and every [`Buffer`] holds one too. When the last is dropped,
/// the memory goes back to the device once the work of the streams is done; nothing waits for that, and
/// [`close`](Self::close) does. Tell the pool of streams that are destroyed before it, by
/// [`stream_ends`](Self::stream_ends).
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

    pub(crate) const fn new(shared: Arc<Shared>, device: DeviceId) -> Self {
        Self { shared, device }
    }

    /// Allocates `len` values of type `T`, used first on `stream`: the pool's own or any other of the
    /// device. What they are is not said. The memory is valid for work enqueued on the stream from
    /// now on.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] with the figures to act on; [`AllocError::ZeroBytes`] for no
    /// values; [`AllocError::TooLarge`]; [`AllocError::TooManyStreams`]; [`AllocError::Driver`]. The
    /// pool is as before.
    pub fn alloc<T: Pod>(&self, len: usize, stream: StreamId) -> Result<Buffer<T>, AllocError> {
        let bytes = Values::<T>::n_bytes(len).ok_or(AllocError::TooLarge { bytes: u64::MAX })?;
        let align_bytes = Request::MIN_ALIGN_BYTES.max(align_of::<T>() as u64);
        let allocation = self.shared.pool.allocate(Request::new(bytes, stream).aligned(align_bytes))?;
        Ok(Buffer::new(self.clone(), allocation, len))
    }

    /// The pool's own stream, for programs that need but one. On CUDA the number is the value of the
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
        &self.shared.driver
    }

    /// Figures of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.pool.stats()
    }

    /// The share of the free bytes that no request can get; see [`Stats::fragmentation_ratio`].
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        self.stats().fragmentation_ratio()
    }

    /// Gives physical memory back to the device until at most `keep_bytes` are reserved or nothing
    /// more is free, and returns how many bytes went back. Waits for the work enqueued so far.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was given back until then stays given back.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.shared.pool.trim(keep_bytes)
    }

    /// Moves free memory into one run of addresses and removes mappings that are no longer
    /// needed. Live memory stays where it is. Waits for the work enqueued so far.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was done until then stays done.
    pub fn defragment(&self) -> Result<Defragmented, AllocError> {
        self.shared.pool.defragment()
    }

    /// The most physical bytes that the pool may hold from now on. If it holds more, it gives back
    /// what is free, as [`trim`](Self::trim) does, and returns how many bytes went back; what is
    /// live stays.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; the limit is set all the same.
    pub fn set_limit_bytes(&self, limit_bytes: u64) -> Result<u64, AllocError> {
        self.shared.pool.set_limit_bytes(limit_bytes)
    }

    /// Tells that `stream` is about to be destroyed. What it used can be used again when its work is
    /// done, and a later stream of the same name is another one.
    ///
    /// A stream that vanishes without this is noticed when it refuses an event. But a new stream that
    /// gets its name before is taken for it, and would be given memory that the old one still uses.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if no event can be recorded; the pool notices later.
    pub fn stream_ends(&self, stream: StreamId) -> Result<(), AllocError> {
        self.shared.pool.stream_ends(stream)
    }

    /// Sets memory apart for a graph that is captured from `stream`; to be called before the capture
    /// begins. A graph keeps the addresses that it was captured with, so until its
    /// [`GraphMemory`](crate::GraphMemory) is given up, nobody else gets what the stream allocates or
    /// frees until the capture [ends](Capture::end). The pool has to outlive the graph's launches.
    ///
    /// # Errors
    /// [`AllocError::TooManyStreams`]; [`DriverError::Capturing`] if the stream takes part in a capture
    /// already.
    pub fn capture(&self, stream: StreamId) -> Result<Capture, AllocError> {
        Capture::begin(self, stream)
    }

    /// Waits for the work enqueued so far and gives everything back to the device.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if buffers or other handles of the pool are alive: this
    /// handle is only dropped. [`AllocError::Driver`] if the device is lost.
    pub fn close(self) -> Result<(), AllocError> {
        const STILL_USED: DriverError =
            DriverError::InvalidValue("the pool is still used: drop its buffers and other handles first");
        // The background thread holds the pool, too, for a step.
        let had_worker = Arc::strong_count(&self.shared) <= 2 && self.shared.stop_worker();
        match Arc::try_unwrap(self.shared) {
            Ok(shared) => shared.close(),
            Err(shared) => {
                if had_worker {
                    shared.start_worker()?;
                }
                Err(STILL_USED.into())
            }
        }
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
