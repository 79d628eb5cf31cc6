//! Checkpoints, loaded to the pools over all links of the machine.
//!
//! The engine is the one that copies of the program go through where [`Config::multipath`](crate::Config::multipath) is
//! set; loading uses it in any case. It reads files into pinned memory with several threads, and maps none.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::{DriverError, StreamOrder as _};
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};
use glake_multipath::checkpoint::{self, Checkpoint, Loaded, Loader, Tensor};
use glake_multipath::topology::TopologyError;
use glake_multipath::{Direction, Report};

use crate::captures::BesideCaptures;
use crate::device::{Device, InContext};
use crate::glake::{Glake, NO_POOL};
use crate::hook::{Hook, Inside};

/// Why a checkpoint was not loaded. What was allocated for it is freed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no memory for it, or the bytes of a file did not arrive.
    #[error(transparent)]
    Load(#[from] checkpoint::LoadError),
    /// There is no such device, it has no pool, or the stream is not one of its.
    #[error("nothing can be loaded to this device and stream")]
    Device(#[from] DriverError),
    /// A tensor's place is not inside of one of the pool's allocations. Nothing was copied.
    #[error(
        "{bytes} bytes at {ptr} are not inside of one allocation of the device's pool: free nothing before it is filled"
    )]
    Place {
        /// Where the tensor was to go.
        ptr: DevicePtr,
        /// Its bytes.
        bytes: u64,
    },
    /// The machine cannot be made out, and so there is no engine.
    #[error("there is no engine to load with")]
    Engine(#[source] Arc<TopologyError>),
}

const _: () = assert!(size_of::<LoadError>() <= 40);

impl Glake {
    /// Loads `checkpoint` to the pool of a device, for work on `stream`, and blocks until it is there. Each tensor is an
    /// allocation of its own, to be freed by [`free`](Self::free) or by the program's own calls; one of a page
    /// (2 MiB) or more has pages of its own.
    ///
    /// [`Checkpoint::only`] says which tensors. Each link of another GPU that relays costs a context there; see
    /// [`Multipath::n_links`](crate::Multipath::n_links).
    ///
    /// # Errors
    /// [`LoadError`]; nothing is allocated. A stream that is captured is refused.
    pub fn load(
        self,
        device: DeviceId,
        stream: StreamId,
        checkpoint: &Checkpoint,
    ) -> Result<Loaded, LoadError> {
        let on = Loading::enter(self.hook, self.device(device)?, stream)?;
        let mut memory = Memory { hook: self.hook, device: on.device };
        let loaded = on.loader()?.extent_bytes(0).load(checkpoint, &mut memory)?;
        on.count(loaded.reports());
        Ok(loaded)
    }

    /// Frees the tensors of a checkpoint that was loaded by [`load`](Self::load), behind the work of `stream`.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`] for the first that was freed before; the others are freed all the same.
    pub fn unload(self, loaded: &Loaded, stream: StreamId) -> Result<(), AllocError> {
        let free = |extent: &Allocation| self.free(extent.ptr, stream);
        loaded.extents().iter().map(free).fold(Ok(()), Result::and)
    }

    /// Loads the tensors of `checkpoint` to memory that the program has of the pool: each to where `place` says, behind
    /// what is enqueued on `stream`. Blocks until they are there. What shards report is returned.
    ///
    /// # Errors
    /// [`LoadError::Place`], nothing was copied; other [`LoadError`]s, what had arrived stays.
    pub fn fill(
        self,
        device: DeviceId,
        stream: StreamId,
        checkpoint: &Checkpoint,
        mut place: impl FnMut(&Tensor) -> DevicePtr,
    ) -> Result<Vec<Report>, LoadError> {
        let placed: Vec<_> =
            checkpoint.tensors().iter().map(|tensor| (place(tensor), tensor.bytes)).collect();
        let on = Loading::enter(self.hook, self.device(device)?, stream)?;
        let is_foreign = |(ptr, bytes): &&(DevicePtr, u64)| *bytes > 0 && !on.has(*ptr, *bytes);
        if let Some(&(ptr, bytes)) = placed.iter().find(is_foreign) {
            return Err(LoadError::Place { ptr, bytes });
        }
        let mut at = placed.iter().map(|(ptr, _)| *ptr);
        // Asked for once for each tensor.
        let reports = on.loader()?.fill(checkpoint, |_| at.next().unwrap_or_default())?;
        on.count(&reports);
        Ok(reports)
    }
}

/// The calling thread while it loads: inside of glake, in the device's context, breaking no capture.
struct Loading {
    hook: &'static Hook,
    device: &'static Device,
    stream: StreamId,
    _beside: BesideCaptures,
    _in_context: InContext,
    _inside: Inside,
}

impl Loading {
    fn enter(hook: &'static Hook, device: &'static Device, stream: StreamId) -> Result<Self, DriverError> {
        let inside = Inside::enter();
        let in_context = InContext::enter(hook.real, hook.retain(device).ok_or(NO_POOL)?);
        let on = hook.device_of_stream(stream).filter(|on| on.id == device.id);
        on.ok_or(DriverError::UnknownStream(stream))?;
        let beside = BesideCaptures::enter(hook.real);
        if hook.driver.is_capturing(stream)? {
            return Err(DriverError::Capturing(stream));
        }
        Ok(Self { hook, device, stream, _beside: beside, _in_context: in_context, _inside: inside })
    }

    fn loader(&self) -> Result<Loader<'static>, LoadError> {
        let engine = self.hook.engine().map_err(|error| LoadError::Engine(Arc::clone(error)))?;
        Ok(Loader::new(engine, self.device.id, self.stream))
    }

    /// Whether so many bytes lie in one allocation of the device's pool.
    fn has(&self, ptr: DevicePtr, bytes: u64) -> bool {
        let allocation = self.device.pool_if_any().and_then(|pool| pool.pool.allocation_at(ptr));
        allocation.is_some_and(|allocation| allocation.contains(AddressRange::new(ptr, bytes)))
    }

    fn count(&self, reports: &[Report]) {
        for report in reports {
            self.hook.copies.count(Direction::ToDevice, report);
        }
    }
}

/// A device's pool, with the hook's books. The thread is inside of glake and in the device's context.
struct Memory {
    hook: &'static Hook,
    device: &'static Device,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Allocator for Memory {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let allocated = self.hook.allocate_request(self.device, request);
        let ptr = allocated.unwrap_or(Err(NO_POOL.into()))?;
        Ok(Allocation { ptr, bytes: request.bytes, stream: request.stream })
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        Glake::of(self.hook).free(ptr, stream)
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        Glake::of(self.hook).record_use(ptr, stream)
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        Glake::of(self.hook).trim(self.device.id, keep_bytes)
    }

    fn stats(&self) -> Stats {
        Glake::of(self.hook).memory_stats(self.device.id)
    }
}
