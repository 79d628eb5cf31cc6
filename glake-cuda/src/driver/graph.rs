//! What happens when a graph is gone.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;
use glake_core::driver::{DriverError, Result};

use super::{CudaDriver, lock};
use crate::call::graph;

/// What is left to be done, empty where it is not to be done after all.
type Last<F> = Mutex<Option<F>>;

/// The destructor of a user object: does what is left to be done.
///
/// # Safety
/// `data` is a share of a `Last<F>` that nobody else gives up.
unsafe extern "C" fn end<F: FnOnce() + Send>(data: *mut c_void) {
    // SAFETY: the caller hands over a share.
    let last = unsafe { Arc::from_raw(data.cast_const().cast::<Last<F>>()) };
    let act = lock(&last).take();
    // A panic must not go through the driver.
    let _ = catch_unwind(AssertUnwindSafe(|| act.map(|act| act())));
}

impl CudaDriver {
    /// Calls `act` when `graph` is gone: destroyed, with all that was instantiated from it, and no launch
    /// pending. So memory that the graph uses lives as long as the graph may use it, whoever destroys it.
    ///
    /// To be called before the graph is instantiated, because what was instantiated before does not count.
    /// `act` runs on a thread of the driver's own, or where the graph is destroyed, and must not call
    /// CUDA: it may leave a note, as `glake_vmm::GraphMemory::finished` does.
    ///
    /// ```no_run
    /// # use cudarc::driver::sys;
    /// # use glake_core::alloc::{Allocator, Request};
    /// # use glake_core::units::StreamId;
    /// # fn example(
    /// #     driver: &glake_cuda::CudaDriver, pool: &mut glake_vmm::StitchPool, stream: StreamId,
    /// #     begin: fn(StreamId), end: fn(StreamId) -> sys::CUgraph,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let memory = pool.begin_capture(stream)?;
    /// begin(stream); // cuStreamBeginCapture
    /// let scratch = pool.allocate(Request::new(64 << 20, stream))?;
    /// // ... kernels that use it ...
    /// pool.free(scratch.ptr, stream)?;
    /// let graph = end(stream); // cuStreamEndCapture
    /// pool.end_capture(stream);
    /// // SAFETY: the graph was just made, and nobody else has it.
    /// unsafe { driver.when_graph_ends(graph, || memory.finished()) }?;
    /// // ... instantiate and launch it; when it is destroyed, the memory is the pool's again.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DriverError::NotSupported`] where the driver has no user objects; others of the native driver. `act`
    /// is dropped and not called then, and nothing is left behind: with a `GraphMemory` in it, destroy the
    /// graph without launching it.
    ///
    /// # Safety
    /// `graph` is a graph that is not destroyed, and no other thread changes it during the call.
    pub unsafe fn when_graph_ends<F: FnOnce() + Send + 'static>(
        &self,
        graph: sys::CUgraph,
        act: F,
    ) -> Result<()> {
        if !self.shared.has_user_objects {
            return Err(DriverError::NotSupported("cuUserObjectCreate"));
        }
        let _entered = self.shared.first()?.enter()?;
        let last = Arc::new(Mutex::new(Some(act)));
        let data = Arc::into_raw(Arc::clone(&last));
        // SAFETY: `end` gets the one share that `data` is; `F` may go to another thread.
        let object = match unsafe { graph::create_object(data.cast_mut().cast(), end::<F>) } {
            Ok(object) => object,
            Err(error) => {
                // SAFETY: no object came to hold the share.
                drop(unsafe { Arc::from_raw(data) });
                return Err(error);
            }
        };
        // SAFETY: the caller vouches for the graph, the object was just made.
        unsafe { graph::move_object(graph, object) }.inspect_err(|_| {
            drop(lock(&last).take());
            // SAFETY: the object is still held here. A failure leaves an empty object behind.
            let _ = unsafe { graph::release_object(object) };
        })
    }
}
