//! A pool over a simulated driver, with an oracle, a spy and work on real bytes beside it.

use std::collections::HashSet;
use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::{DeviceOps, Driver, StreamOrder};
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};
use glake_testkit::oracle::{Findings, Oracle};
use glake_testkit::program::Action;
use glake_testkit::rng::Rng;
use glake_testkit::spy::Spy;

use crate::{Config, StitchPool};

pub(crate) const DEVICE: DeviceId = DeviceId(0);
pub(crate) const MIB: u64 = 1 << 20;

/// The pool and those who look on.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) sim: Arc<SimDriver>,
    pub(crate) spy: Arc<Spy>,
    pub(crate) stream: StreamId,
    pub(crate) pool: StitchPool,
    pub(crate) oracle: Oracle,
    pub(crate) live: Vec<Allocation>,
    /// When work is done, where a test needs to know.
    pub(crate) completion: Completion,
    /// Those whose bytes were written: a fault may hit that, too.
    written: HashSet<DevicePtr>,
}

impl Rig {
    pub(crate) fn new(sim: SimConfig, set: impl FnOnce(Config) -> Config) -> Self {
        let sim = Arc::new(sim.build());
        let spy = Spy::new(sim.clone());
        let stream = spy.create_stream(DEVICE).unwrap();
        let pool = StitchPool::new(spy.clone(), set(Config::new(DEVICE))).unwrap();
        let oracle = Oracle::over(spy.clone());
        Self {
            sim,
            stream,
            pool,
            oracle,
            spy,
            live: Vec::new(),
            completion: Completion::Immediate,
            written: HashSet::new(),
        }
    }

    /// One whose work is done at once.
    pub(crate) fn immediate(set: impl FnOnce(Config) -> Config) -> Self {
        Self::new(SimConfig::h200(1), set)
    }

    /// One whose work is done when the test says so.
    pub(crate) fn manual(set: impl FnOnce(Config) -> Config) -> Self {
        Self::new(SimConfig::h200(1).completion(Completion::Manual), set)
    }

    pub(crate) fn request(&self, bytes: u64) -> Request {
        Request::new(bytes, self.stream)
    }

    /// Allocates, and enqueues work that writes both ends of the memory.
    pub(crate) fn try_allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let allocation = self.pool.allocate(request)?;
        self.oracle.allocated(&allocation);
        assert_eq!(self.oracle.findings(), Findings::default(), "{allocation:?}");
        self.live.push(allocation);
        if self.each_end(&allocation, DeviceOps::fill_pattern) {
            self.written.insert(allocation.ptr);
        }
        Ok(allocation)
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> DevicePtr {
        self.try_allocate(self.request(bytes)).unwrap().ptr
    }

    /// Enqueues a check of both ends, and frees.
    pub(crate) fn try_free(&mut self, ptr: DevicePtr) -> Result<(), AllocError> {
        let at = self.live.iter().position(|a| a.ptr == ptr).expect("live");
        let allocation = self.live[at];
        if self.written.remove(&ptr) {
            self.each_end(&allocation, DeviceOps::check_pattern);
        }
        self.oracle.freed(ptr, self.stream);
        self.live.swap_remove(at);
        self.pool.free(ptr, self.stream)
    }

    pub(crate) fn free(&mut self, ptr: DevicePtr) {
        self.try_free(ptr).unwrap();
    }

    pub(crate) fn free_all(&mut self) {
        while let Some(allocation) = self.live.last() {
            self.free(allocation.ptr);
        }
    }

    /// Enqueues work on up to 64 bytes at both ends; whether that was possible.
    fn each_end(
        &self,
        allocation: &Allocation,
        work: impl Fn(&SimDriver, AddressRange, u64, StreamId) -> glake_core::driver::Result<()>,
    ) -> bool {
        let n_bytes = (allocation.bytes / 16 * 8).min(64);
        let last = allocation.bytes / 8 * 8 - n_bytes;
        [0, last].into_iter().all(|at| {
            let range = AddressRange::new(allocation.ptr + at, n_bytes);
            n_bytes > 0 && work(&self.sim, range, allocation.ptr.0 ^ allocation.bytes, self.stream).is_ok()
        })
    }

    pub(crate) fn check(&self) {
        self.pool.check_invariants();
        self.pool.check_mappings(&self.spy);
        assert_eq!(self.oracle.findings(), Findings::default());
        assert_eq!(self.pool.stats().n_live, self.live.len() as u64);
        let requested_bytes: u64 = self.live.iter().map(|a| a.bytes).sum();
        assert_eq!(self.pool.stats().requested_bytes, requested_bytes);
        self.check_addresses();
    }

    /// Every live allocation is found from its bytes, and nothing from those in between.
    fn check_addresses(&self) {
        let rounded = |a: &Allocation| AddressRange::new(a.ptr, a.bytes.next_multiple_of(512));
        let mut live: Vec<AddressRange> = self.live.iter().map(rounded).collect();
        live.sort_unstable_by_key(|range| range.start);
        let mut behind = self.pool.arena.start;
        for range in live {
            let gap = range.start - behind;
            if gap > 0 {
                let inside = [behind, behind + gap / 2, behind + (gap - 1)];
                assert_eq!(inside.map(|at| self.pool.allocation_at(at)), [None; 3], "before {range:?}");
            }
            let inside = [range.start, range.start + range.bytes / 2, range.start + (range.bytes - 1)];
            assert_eq!(inside.map(|at| self.pool.allocation_at(at)), [Some(range); 3]);
            behind = range.end();
        }
        let outside = [behind, self.pool.arena.end(), DevicePtr(0), DevicePtr(u64::MAX)];
        assert_eq!(outside.map(|at| self.pool.allocation_at(at)), [None; 4]);
    }

    pub(crate) fn physical_bytes(&self) -> u64 {
        self.sim.ledger(DEVICE).unwrap().physical_bytes
    }

    /// Drops the pool and lets the device finish; nothing may be left, nothing have gone wrong.
    pub(crate) fn finish(self) {
        let Self { sim, pool, stream, .. } = self;
        drop(pool);
        sim.complete_all();
        assert_eq!(sim.mismatches(stream), Ok(0), "bytes were lost");
        assert_eq!(sim.ledger(DEVICE).unwrap().physical_bytes, 0, "memory leaks");
    }
}

/// An operation of a program: the test kit's, and those that only this pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Common(Action),
    Limit(u64),
    Defragment,
    Complete(usize),
}

/// The step for an action and two random numbers: sizes go up to `max_bytes`.
pub(crate) fn step(action: Action, kind: u64, detail: u64, max_bytes: u64) -> Step {
    match kind % 40 {
        0 => Step::Limit(Rng::new(detail).log_between(max_bytes / 16, 4 * max_bytes)),
        1 => Step::Limit(u64::MAX),
        2 => Step::Defragment,
        3..12 => Step::Complete((detail % 64) as usize),
        _ => Step::Common(match action {
            Action::Allocate { bytes, align_bytes } if bytes > max_bytes => {
                Action::Allocate { bytes: bytes % max_bytes, align_bytes }
            }
            Action::Trim { keep_bytes } => Action::Trim { keep_bytes: keep_bytes % (2 * max_bytes) },
            action => action,
        }),
    }
}

impl Rig {
    /// Runs one step; the address or the error of an allocation.
    pub(crate) fn step(&mut self, step: Step) -> Option<Result<DevicePtr, AllocError>> {
        match step {
            Step::Common(Action::Allocate { bytes, align_bytes }) => {
                let request = self.request(bytes).aligned(align_bytes);
                return Some(self.try_allocate(request).map(|a| a.ptr));
            }
            Step::Common(Action::Free { pick }) if !self.live.is_empty() => {
                let at = (pick % self.live.len() as u64) as usize;
                self.free(self.live[at].ptr);
            }
            Step::Common(Action::Trim { keep_bytes }) => {
                let before = self.pool.stats().reserved_bytes;
                let returned = self.pool.trim(keep_bytes).unwrap();
                assert_eq!(self.pool.stats().reserved_bytes, before - returned);
            }
            Step::Common(_) => {}
            Step::Limit(bytes) => {
                self.pool.set_limit_bytes(bytes).unwrap();
            }
            Step::Defragment => {
                self.pool.defragment().unwrap();
                assert_eq!(self.pool.stats().stale_bytes, 0);
            }
            Step::Complete(n) => {
                self.sim.complete(self.stream, n).unwrap();
            }
        }
        None
    }
}
