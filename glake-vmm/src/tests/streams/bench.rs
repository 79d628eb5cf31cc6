//! A pool that several streams share, with an oracle beside it, on a device that works when told to.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Call, DeviceOps, Driver, StreamOrder};
use glake_core::sim::{Completion, GraphId, SimConfig, SimDriver};
use glake_core::units::{AddressRange, DevicePtr, StreamId};
use glake_testkit::oracle::{Findings, Oracle};
use glake_testkit::spy::Spy;

use crate::tests::rig::DEVICE;
use crate::{Config, GraphMemory, StitchPool};

#[derive(Debug)]
pub(super) struct Bench {
    pub(super) sim: Arc<SimDriver>,
    pub(super) spy: Arc<Spy>,
    pub(super) pool: StitchPool,
    pub(super) oracle: Oracle,
    /// Whether the oracle is asked: it does not know when a graph is gone.
    pub(super) is_watched: bool,
}

impl Bench {
    pub(super) fn new(set: impl FnOnce(Config) -> Config) -> Self {
        Self::over(SimConfig::h200(1).completion(Completion::Manual), set)
    }

    pub(super) fn over(sim: SimConfig, set: impl FnOnce(Config) -> Config) -> Self {
        let sim = Arc::new(sim.build());
        let spy = Spy::new(Arc::clone(&sim) as Arc<dyn Driver>);
        let pool = StitchPool::new(spy.clone(), set(Config::new(DEVICE))).unwrap();
        Self { oracle: Oracle::over(spy.clone()), sim, spy, pool, is_watched: true }
    }

    /// One with so many streams, each of which has work that is not done.
    pub(super) fn busy<const N: usize>(set: impl FnOnce(Config) -> Config) -> (Self, [StreamId; N]) {
        let bench = Self::new(set);
        let streams = [(); N].map(|()| bench.stream());
        streams.iter().for_each(|&stream| bench.delay(stream));
        (bench, streams)
    }

    pub(super) fn stream(&self) -> StreamId {
        self.spy.create_stream(DEVICE).unwrap()
    }

    /// Keeps a stream busy until it is told to get on.
    pub(super) fn delay(&self, stream: StreamId) {
        self.sim.delay(stream, 1).unwrap();
    }

    pub(super) fn try_allocate(&mut self, bytes: u64, stream: StreamId) -> Result<DevicePtr, AllocError> {
        let allocation = self.pool.allocate(Request::new(bytes, stream))?;
        self.oracle.allocated(&allocation);
        assert!(!self.is_watched || self.oracle.findings() == Findings::default(), "{allocation:?}");
        self.work(allocation.ptr, stream);
        self.check();
        Ok(allocation.ptr)
    }

    /// Allocates, and enqueues work that writes there.
    pub(super) fn allocate(&mut self, bytes: u64, stream: StreamId) -> DevicePtr {
        self.try_allocate(bytes, stream).unwrap()
    }

    /// Allocates for every stream and the host.
    pub(super) fn try_allocate_for_all(&mut self, bytes: u64) -> Result<DevicePtr, AllocError> {
        let allocation = self.pool.allocate_for_all(bytes)?;
        self.oracle.allocated_for_all(&allocation);
        assert!(!self.is_watched || self.oracle.findings() == Findings::default(), "{allocation:?}");
        self.check();
        Ok(allocation.ptr)
    }

    pub(super) fn allocate_for_all(&mut self, bytes: u64) -> DevicePtr {
        self.try_allocate_for_all(bytes).unwrap()
    }

    /// Frees what any of `streams` may have used.
    pub(super) fn free_from_anywhere(&mut self, ptr: DevicePtr, streams: &[StreamId]) {
        streams.iter().for_each(|&stream| self.oracle.used(ptr, stream));
        self.oracle.freed(ptr, streams[0]);
        self.pool.free_from_anywhere(ptr).unwrap();
        self.check();
    }

    pub(super) fn work(&self, ptr: DevicePtr, stream: StreamId) {
        self.sim.fill_pattern(AddressRange::new(ptr, 8), 1, stream).unwrap();
    }

    pub(super) fn free(&mut self, ptr: DevicePtr, stream: StreamId) {
        self.oracle.freed(ptr, stream);
        self.pool.free(ptr, stream).unwrap();
        self.check();
    }

    /// Enqueues work there on `stream`, and tells the pool.
    pub(super) fn use_on(&mut self, ptr: DevicePtr, stream: StreamId) {
        self.work(ptr, stream);
        self.pool.record_use(ptr, stream).unwrap();
        self.oracle.used(ptr, stream);
    }

    /// Makes `then` wait for what is on `first` now, without the pool.
    pub(super) fn order(&self, first: StreamId, then: StreamId) {
        let event = self.spy.record(first).unwrap();
        self.spy.wait(then, event).unwrap();
        self.spy.forget(event);
    }

    /// Says whether `allocate` there would hand out those bytes.
    pub(super) fn gets(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamId) -> bool {
        let got = self.allocate(bytes, stream);
        self.free(got, stream);
        got == ptr
    }

    /// How often the driver was called so far.
    pub(super) fn n(&self, call: Call) -> u64 {
        self.sim.ledger(DEVICE).unwrap().n(call)
    }

    pub(super) fn n_calls(&self) -> u64 {
        self.sim.ledger(DEVICE).unwrap().n_calls()
    }

    pub(super) fn physical_bytes(&self) -> u64 {
        self.sim.ledger(DEVICE).unwrap().physical_bytes
    }

    pub(super) fn check(&self) {
        self.pool.check_invariants();
        self.pool.check_mappings(&self.spy);
    }

    /// Captures `stream`, in the eyes of all.
    pub(super) fn begin_capture(&mut self, stream: StreamId) -> GraphMemory {
        let memory = self.pool.begin_capture(stream).unwrap();
        self.spy.begin_capture(stream);
        self.sim.begin_capture(stream).unwrap();
        memory
    }

    pub(super) fn end_capture(&mut self, stream: StreamId) -> GraphId {
        let graph = self.sim.end_capture(stream).unwrap();
        self.spy.end_capture(stream);
        self.pool.end_capture(stream);
        graph
    }

    /// Drops the pool while everything is pending; then all work has to run, on memory that is there.
    pub(super) fn finish(self) {
        let Self { sim, pool, .. } = self;
        drop(pool);
        sim.complete_all();
        sim.synchronize_all(DEVICE).expect("nothing was unmapped under work");
        assert_eq!(sim.ledger(DEVICE).unwrap().physical_bytes, 0, "memory leaks");
    }
}
