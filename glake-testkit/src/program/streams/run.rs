//! A run of a program of several streams beside a model, the oracle and real bytes.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::{Driver, DriverError, StreamOrder as _};
use glake_core::sim::Fault;
use glake_core::units::{AddressRange, StreamId};

use super::super::{Outcomes, check_order, live_part};
use super::{Action, DEVICE, Machine, StreamNames};
use crate::oracle::{Findings, Oracle};

/// Streams of a program: the legacy stream, the thread's own, and four that come and go.
const N_STREAMS: usize = 6;
/// Streams that cannot be destroyed.
const N_DEFAULT: usize = 2;
/// So many bytes of an allocation bear a pattern.
const PATTERN_BYTES: u64 = 4096;
/// How long the device works on each pattern.
const WORK_NS: u64 = 10_000;

/// A live allocation of a program.
#[derive(Clone, Copy, Debug)]
struct Live {
    allocation: Allocation,
    /// One of the streams: where its work is.
    on: usize,
    seed: u64,
}

/// Runs programs on a [`Machine`] beside a model that knows what must come out.
#[derive(Debug)]
pub struct Runner {
    machine: Machine,
    oracle: Oracle,
    streams: Vec<StreamId>,
    live: Vec<Live>,
    requested_bytes: u64,
    n_allocations: u64,
    /// Planned for the next operation of the allocator.
    fault: Option<Fault>,
    outcomes: Outcomes,
    /// Words that were wrong before.
    wrong: u64,
}

impl Runner {
    /// A runner of programs on `machine`.
    #[must_use]
    pub fn new(machine: Machine) -> Self {
        let mut streams = vec![StreamId::LEGACY, StreamId::PER_THREAD];
        streams.resize_with(N_STREAMS, || machine.spy.create_stream(DEVICE).unwrap());
        Self {
            oracle: Oracle::over(Arc::clone(&machine.spy)),
            wrong: machine.gpu.mismatches(StreamId::LEGACY).unwrap(),
            machine,
            streams,
            live: Vec::new(),
            requested_bytes: 0,
            n_allocations: 0,
            fault: None,
            outcomes: Vec::new(),
        }
    }

    /// Runs `program`, then frees everything and gives all memory back.
    ///
    /// # Panics
    /// If the allocator breaks the contract.
    #[allow(clippy::must_use_candidate, reason = "it may be run for its checks alone")]
    pub fn run(mut self, program: &[Action]) -> Outcomes {
        for &action in program {
            self.act(action);
            self.check_stats();
        }
        self.fault = None;
        while let Some(live) = self.live.pop() {
            self.free(live, live.on);
        }
        self.check_stats();
        assert_eq!(self.oracle.findings(), Findings::default());
        let stats = self.machine.allocator.stats();
        assert_eq!((stats.requested_bytes, stats.allocated_bytes, stats.n_live), (0, 0, 0), "all is free");
        self.trim(0);
        self.machine.control.complete_all();
        self.machine.gpu.synchronize_all(DEVICE).unwrap();
        let wrong = self.machine.gpu.mismatches(StreamId::LEGACY);
        assert_eq!(wrong, Ok(self.wrong), "no byte was overwritten");
        self.outcomes
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Allocate { on, bytes } => self.allocate(of(on, N_STREAMS), bytes),
            Action::Trim { keep_bytes } => self.trim(keep_bytes),
            Action::Replace { pick } => self.replace(N_DEFAULT + of(pick, N_STREAMS - N_DEFAULT)),
            Action::Complete { on, n } => {
                self.machine.control.complete(self.streams[of(on, N_STREAMS)], n as usize);
                self.machine.control.advance(n * WORK_NS);
            }
            Action::Fail { after } => self.fault = Some(Fault::nth(after)),
            _ if self.live.is_empty() => {}
            Action::Use { pick, on } => {
                let live = self.live[of(pick, self.live.len())];
                self.use_elsewhere(live, of(on, N_STREAMS));
            }
            Action::Free { pick } => {
                let live = self.live.swap_remove(of(pick, self.live.len()));
                self.free(live, live.on);
            }
            Action::FreeElsewhere { pick, on } => {
                let live = self.live.swap_remove(of(pick, self.live.len()));
                let on = of(on, N_STREAMS);
                self.order(live.on, on);
                self.free(live, on);
            }
        }
    }

    /// One operation of the allocator, with the planned fault. Says whether the fault struck.
    fn operate<T>(
        &mut self,
        operation: impl FnOnce(&mut dyn Allocator) -> Result<T, AllocError>,
    ) -> (Result<T, AllocError>, bool) {
        let before = self.machine.control.n_faults();
        if let Some(fault) = self.fault.take() {
            self.machine.control.plan(fault);
        }
        let outcome = operation(&mut *self.machine.allocator);
        self.machine.control.clear_faults();
        (outcome, self.machine.control.n_faults() > before)
    }

    fn allocate(&mut self, on: usize, bytes: u64) {
        let before = self.machine.allocator.stats();
        let request = Request::new(bytes, self.streams[on]);
        let (outcome, struck) = self.operate(|allocator| allocator.allocate(request));
        match &outcome {
            Ok(allocation) => {
                assert_eq!((allocation.bytes, allocation.stream), (bytes, request.stream));
                assert!(allocation.ptr.is_aligned(Request::MIN_ALIGN_BYTES));
                self.oracle.allocated(allocation);
                assert_eq!(self.oracle.findings(), Findings::default(), "{allocation:?}");
                self.n_allocations += 1;
                self.requested_bytes += bytes;
                let live = Live { allocation: *allocation, on, seed: self.n_allocations };
                self.live.push(live);
                if let Some(range) = pattern(&live) {
                    self.work(live.on, |gpu, stream| gpu.fill_pattern(range, live.seed, stream));
                }
            }
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!(report.requested_bytes, bytes);
                assert_eq!(live_part(&before), live_part(&self.machine.allocator.stats()));
            }
            Err(AllocError::Driver(_)) if struck => {
                assert_eq!(live_part(&before), live_part(&self.machine.allocator.stats()));
            }
            Err(error) => panic!("{request:?}: {error}"),
        }
        self.outcomes.push(outcome.map(|allocation| allocation.ptr));
    }

    fn use_elsewhere(&mut self, live: Live, on: usize) {
        self.order(live.on, on);
        self.check(&live, on);
        let (ptr, stream) = (live.allocation.ptr, self.streams[on]);
        let (outcome, struck) = self.operate(|allocator| allocator.record_use(ptr, stream));
        match outcome {
            Err(AllocError::Driver(_)) if struck => {
                self.machine.allocator.record_use(ptr, stream).unwrap();
            }
            outcome => outcome.unwrap(),
        }
        self.oracle.used(ptr, stream);
    }

    fn free(&mut self, live: Live, on: usize) {
        self.check(&live, on);
        let (ptr, stream) = (live.allocation.ptr, self.streams[on]);
        let before = self.machine.allocator.stats();
        self.oracle.freed(ptr, stream);
        let (outcome, struck) = self.operate(|allocator| allocator.free(ptr, stream));
        match outcome {
            Err(AllocError::Driver(_)) if struck => {
                assert_eq!(live_part(&before), live_part(&self.machine.allocator.stats()));
                // What was freed is free from then on: work enqueued in between would count.
                self.machine.allocator.free(ptr, stream).unwrap();
            }
            outcome => outcome.unwrap(),
        }
        self.requested_bytes -= live.allocation.bytes;
    }

    fn trim(&mut self, keep_bytes: u64) {
        let before = self.machine.allocator.stats().reserved_bytes;
        let (outcome, struck) = self.operate(|allocator| allocator.trim(keep_bytes));
        let after = self.machine.allocator.stats().reserved_bytes;
        match outcome {
            Err(AllocError::Driver(_)) if struck => assert!(after <= before),
            outcome => assert_eq!(before - after, outcome.unwrap(), "trim says what went back"),
        }
    }

    fn replace(&mut self, on: usize) {
        let spy = &self.machine.spy;
        let (old, new) = (self.streams[on], spy.create_stream(DEVICE).unwrap());
        let event = spy.record(old).unwrap();
        spy.wait(new, event).unwrap();
        spy.forget(event);
        if self.machine.control.stream_names() == StreamNames::Unique {
            spy.destroy_stream(old).unwrap();
        }
        self.streams[on] = new;
    }

    /// Makes one stream wait for another, as a program does that hands memory over.
    fn order(&self, first: usize, then: usize) {
        let spy = &self.machine.spy;
        let event = spy.record(self.streams[first]).unwrap();
        spy.wait(self.streams[then], event).unwrap();
        spy.forget(event);
    }

    /// The device finds the pattern of an allocation.
    fn check(&self, live: &Live, on: usize) {
        if let Some(range) = pattern(live) {
            self.work(on, |gpu, stream| gpu.check_pattern(range, live.seed, stream));
        }
    }

    fn work(&self, on: usize, work: impl FnOnce(&dyn Driver, StreamId) -> Result<(), DriverError>) {
        let stream = self.streams[on];
        self.machine.gpu.delay(stream, WORK_NS).unwrap();
        work(&*self.machine.gpu, stream).unwrap();
    }

    fn check_stats(&self) {
        let stats = self.machine.allocator.stats();
        assert_eq!(stats.requested_bytes, self.requested_bytes);
        assert_eq!(stats.n_live, self.live.len() as u64);
        assert_eq!(stats.n_allocations, self.n_allocations);
        assert_eq!(stats.n_frees, self.n_allocations - stats.n_live);
        check_order(&stats);
    }
}

fn of(pick: u64, n: usize) -> usize {
    (pick % n as u64) as usize
}

/// The whole words at the beginning of an allocation.
fn pattern(live: &Live) -> Option<AddressRange> {
    let bytes = live.allocation.bytes.min(PATTERN_BYTES) / 8 * 8;
    (bytes > 0).then_some(AddressRange::new(live.allocation.ptr, bytes))
}
