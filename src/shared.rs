//! What the handles of a pool and its buffers share.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use glake_core::adapt::Locked;
use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::Driver;
use glake_core::stats::Stats;
use glake_core::units::StreamId;
use glake_vmm::StitchPool;

/// A locked pool, and the buffers that were dropped since its last call.
///
/// A call may hold the pool's lock for as long as the device works (`trim` does), and a drop must
/// not wait for that. So a drop leaves the buffer in a list, under a lock that is held for a push
/// only, and the next call of the pool frees what is in it, in the order of the drops. As a free
/// makes no driver call and returns nothing to the device, no memory is missing in between.
pub(crate) struct Shared {
    pool: Locked<StitchPool>,
    dropped: Mutex<Vec<Allocation>>,
    driver: Arc<dyn Driver>,
    /// Dropped behind the pool, which records its last event on it.
    stream: PoolStream,
}

impl Shared {
    pub(crate) fn new(pool: StitchPool, driver: Arc<dyn Driver>, stream: PoolStream) -> Self {
        Self { pool: Locked::new(pool), dropped: Mutex::default(), driver, stream }
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream.id
    }

    pub(crate) fn allocate(&self, request: Request) -> Result<Allocation, AllocError> {
        self.with(|pool| pool.allocate(request))?
    }

    /// Frees `allocation` at the next call of the pool. Never waits for one, never fails.
    pub(crate) fn free_later(&self, allocation: Allocation) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(allocation);
    }

    /// Runs `work` on the pool, where all buffers dropped until then are free.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut StitchPool) -> T) -> Result<T, AllocError> {
        self.pool.with(|pool| {
            self.free_dropped(pool);
            work(pool)
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        self.with(|pool| pool.stats()).unwrap_or_else(|_| self.pool.stats())
    }

    /// Waits for the device and gives everything back, what was dropped but not freed included.
    pub(crate) fn close(self) -> Result<(), AllocError> {
        let Self { pool, stream, .. } = self;
        let closed = pool.into_inner()?.close();
        drop(stream);
        closed
    }

    /// Frees what was dropped. The caller holds the lock of `pool`: if the list were emptied
    /// without it, another thread's call could come before the frees and miss the memory.
    fn free_dropped(&self, pool: &mut StitchPool) {
        let dropped = mem::take(&mut *self.dropped.lock().unwrap_or_else(PoisonError::into_inner));
        for allocation in dropped {
            // Fails only where the pool is poisoned: then nothing can be freed but by dropping it.
            let _ = pool.free(allocation.ptr, allocation.stream);
        }
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

    pub(crate) fn id(&self) -> StreamId {
        self.id
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
