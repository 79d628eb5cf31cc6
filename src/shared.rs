//! What the handles of a pool and its buffers share.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use glake_core::alloc::AllocError;
use glake_core::driver::{Driver, DriverError};
use glake_core::units::StreamId;
use glake_vmm::{SharedPool, Worker};

/// A pool, its driver and its own stream.
pub(crate) struct Shared {
    pub(crate) pool: SharedPool,
    pub(crate) driver: Arc<dyn Driver>,
    /// Dropped behind the pool, which records its last event on it.
    stream: PoolStream,
    worker: Mutex<Option<Worker>>,
}

impl Shared {
    pub(crate) fn new(pool: SharedPool, driver: Arc<dyn Driver>, stream: PoolStream) -> Self {
        Self { pool, driver, stream, worker: Mutex::default() }
    }

    /// Starts a thread that does the pool's background work until the pool is gone.
    pub(crate) fn start_worker(self: &Arc<Self>) -> Result<(), AllocError> {
        const NO_THREAD: DriverError =
            DriverError::NotSupported("background work: the system has no thread left");
        self.pool.leave_to_steps()?;
        let shared = Arc::downgrade(self);
        let worker = Worker::spawn(move || shared.upgrade().map(|shared| shared.pool.step()));
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(worker.map_err(|_| NO_THREAD)?);
        Ok(())
    }

    /// Ends the thread, if there is one, and waits for it; says whether there was.
    pub(crate) fn stop_worker(&self) -> bool {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        worker.map(Worker::stop).is_some()
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream.id
    }

    /// Waits for the device and gives everything back.
    pub(crate) fn close(self) -> Result<(), AllocError> {
        self.pool.close()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("stream", &self.stream.id).finish_non_exhaustive()
    }
}

/// The stream of a pool, destroyed behind it if the pool made it.
pub(crate) struct PoolStream {
    id: StreamId,
    made_by: Option<Arc<dyn Driver>>,
}

impl PoolStream {
    /// A stream that somebody else keeps.
    pub(crate) fn given(id: StreamId) -> Self {
        Self { id, made_by: None }
    }

    /// A stream of the pool's own.
    pub(crate) fn own(id: StreamId, driver: &Arc<dyn Driver>) -> Self {
        Self { id, made_by: Some(Arc::clone(driver)) }
    }
}

impl Drop for PoolStream {
    fn drop(&mut self) {
        if let Some(driver) = &self.made_by {
            // Fails only on a lost device, which keeps nothing.
            let _ = driver.destroy_stream(self.id);
        }
    }
}
