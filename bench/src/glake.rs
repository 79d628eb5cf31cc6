//! glake's pool over the ledger driver.

use std::sync::Arc;

use glake_core::alloc::{Allocator, Request};
use glake_core::driver::StreamOrder;
use glake_core::units::{DeviceId, DevicePtr, StreamId};
use glake_vmm::{Config, SharedPool, StitchPool};

use crate::contest::Pool;
use crate::ledger::LedgerDriver;

const DEVICE: DeviceId = DeviceId(0);

/// A pool of one thread's own, or one thread's handle of a pool that all share, and a stream.
pub(crate) struct Handle<A> {
    driver: Arc<LedgerDriver>,
    stream: StreamId,
    pool: A,
}

pub(crate) type Own = Handle<StitchPool>;
pub(crate) type Shared = Handle<Arc<SharedPool>>;

/// `n` pools.
pub(crate) fn own(n: usize) -> Vec<Own> {
    let one = |_| {
        let driver = Arc::new(LedgerDriver::new());
        let pool = StitchPool::new(driver.clone(), Config::new(DEVICE)).unwrap();
        Handle::new(&driver, pool)
    };
    (0..n).map(one).collect()
}

/// `n` handles of one pool. The only place that knows how threads share it.
pub(crate) fn shared(n: usize) -> Vec<Shared> {
    let driver = Arc::new(LedgerDriver::new());
    let pool = Arc::new(SharedPool::new(driver.clone(), Config::new(DEVICE)).unwrap());
    (0..n).map(|_| Handle::new(&driver, pool.clone())).collect()
}

impl<A> Handle<A> {
    fn new(driver: &Arc<LedgerDriver>, pool: A) -> Self {
        Self { driver: driver.clone(), stream: driver.create_stream(DEVICE).unwrap(), pool }
    }
}

impl<A: Allocator + Send> Pool for Handle<A> {
    type Object = DevicePtr;

    fn allocate(&mut self, bytes: u64) -> DevicePtr {
        self.pool.allocate(Request::new(bytes, self.stream)).unwrap().ptr
    }

    fn free(&mut self, object: DevicePtr) {
        self.pool.free(object, self.stream).unwrap();
    }

    fn n_device_calls(&mut self) -> u64 {
        self.driver.n_calls()
    }
}
