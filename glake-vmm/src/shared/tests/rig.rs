//! A shared pool over a simulated driver, and an oracle beside it.

use std::sync::{Arc, Mutex};

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::driver::StreamOrder;
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::units::{DeviceId, StreamId};
use glake_testkit::oracle::{Findings, Oracle};
use glake_testkit::spy::Spy;

use crate::{Config, SharedPool};

pub(super) const DEVICE: DeviceId = DeviceId(0);
pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// The pool and those who look on.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) sim: Arc<SimDriver>,
    pub(super) streams: Vec<StreamId>,
    pub(super) pool: SharedPool,
    pub(super) oracle: Mutex<Oracle>,
}

impl Rig {
    /// A pool on a device of `memory_bytes` whose work is done when the test says so.
    pub(super) fn new(n_streams: usize, memory_bytes: u64) -> Self {
        let config = SimConfig::h200(1).memory_bytes(memory_bytes).completion(Completion::Manual);
        let sim = Arc::new(config.build());
        let spy = Spy::new(sim.clone());
        let streams = (0..n_streams).map(|_| spy.create_stream(DEVICE).unwrap()).collect();
        let pool = SharedPool::new(spy.clone(), Config::new(DEVICE)).unwrap();
        Self { sim, streams, pool, oracle: Mutex::new(Oracle::over(spy)) }
    }

    /// Allocates on the stream of that number.
    pub(super) fn try_allocate(&self, stream: usize, bytes: u64) -> Result<Allocation, AllocError> {
        let allocation = self.pool.allocate(Request::new(bytes, self.streams[stream]))?;
        let mut oracle = self.oracle.lock().unwrap();
        oracle.allocated(&allocation);
        assert_eq!(oracle.findings(), Findings::default(), "{allocation:?}");
        Ok(allocation)
    }

    pub(super) fn allocate(&self, stream: usize, bytes: u64) -> Allocation {
        self.try_allocate(stream, bytes).unwrap()
    }

    /// Allocates for every stream and the host.
    pub(super) fn try_allocate_for_all(&self, bytes: u64) -> Result<Allocation, AllocError> {
        let allocation = self.pool.allocate_for_all(bytes)?;
        let mut oracle = self.oracle.lock().unwrap();
        oracle.allocated_for_all(&allocation);
        assert_eq!(oracle.findings(), Findings::default(), "{allocation:?}");
        Ok(allocation)
    }

    /// Frees what any stream may have used.
    pub(super) fn free_from_anywhere(&self, allocation: Allocation) -> Result<(), AllocError> {
        let mut oracle = self.oracle.lock().unwrap();
        self.streams.iter().for_each(|&stream| oracle.used(allocation.ptr, stream));
        oracle.freed(allocation.ptr, self.streams[0]);
        drop(oracle);
        self.pool.free_from_anywhere(allocation.ptr)
    }

    pub(super) fn free(&self, allocation: Allocation, stream: usize) {
        self.oracle.lock().unwrap().freed(allocation.ptr, self.streams[stream]);
        self.pool.free(allocation.ptr, self.streams[stream]).unwrap();
    }

    pub(super) fn record_use(&self, allocation: Allocation, stream: usize) {
        self.oracle.lock().unwrap().used(allocation.ptr, self.streams[stream]);
        self.pool.record_use(allocation.ptr, self.streams[stream]).unwrap();
    }

    /// Everything is free: the pool's tables are in order, and a trim leaves nothing.
    pub(super) fn finish(self) {
        self.pool.check_invariants();
        let stats = self.pool.stats();
        assert_eq!((stats.n_live, stats.requested_bytes, stats.allocated_bytes), (0, 0, 0));
        self.pool.trim(0).unwrap();
        assert_eq!(self.pool.stats().reserved_bytes, 0, "{:?}", self.pool.stats());
        self.pool.check_invariants();
        assert_eq!(self.oracle.lock().unwrap().findings(), Findings::default());
        self.pool.close().unwrap();
        assert_eq!(glake_core::driver::Driver::ledger(&*self.sim, DEVICE).unwrap().physical_bytes, 0);
    }
}
