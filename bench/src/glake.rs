//! glake's pool over the ledger driver.

use std::sync::Arc;

use glake_core::alloc::{Allocator, Request};
use glake_core::driver::StreamOrder;
use glake_core::units::{DeviceId, DevicePtr, StreamId};
use glake_vmm::{Config, SharedPool, StitchPool};

use crate::contest::Pool;
use crate::ledger::LedgerDriver;

const DEVICE: DeviceId = DeviceId(0);

/// A pool of one thread's own.
pub(crate) struct Own {
    driver: Arc<LedgerDriver>,
    stream: StreamId,
    pool: StitchPool,
}

/// `n` pools.
pub(crate) fn own(n: usize) -> Vec<Own> {
    (0..n).map(|_| one()).collect()
}

fn one() -> Own {
    let driver = Arc::new(LedgerDriver::new());
    let stream = driver.create_stream(DEVICE).unwrap();
    let pool = StitchPool::new(driver.clone(), Config::new(DEVICE)).unwrap();
    Own { driver, stream, pool }
}

impl Pool for Own {
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

/// One thread's handle of a pool that all threads share, with a stream of its own.
pub(crate) struct Shared {
    driver: Arc<LedgerDriver>,
    stream: StreamId,
    pool: Arc<SharedPool>,
}

/// `n` handles of one pool. The only place that knows how threads share it.
pub(crate) fn shared(n: usize) -> Vec<Shared> {
    let driver = Arc::new(LedgerDriver::new());
    let pool = Arc::new(SharedPool::new(driver.clone(), Config::new(DEVICE)).unwrap());
    let handle = |_| {
        let stream = driver.create_stream(DEVICE).unwrap();
        Shared { driver: driver.clone(), stream, pool: pool.clone() }
    };
    (0..n).map(handle).collect()
}

impl Pool for Shared {
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
