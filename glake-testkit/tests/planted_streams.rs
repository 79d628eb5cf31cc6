//! Bugs planted in an allocator of several streams: the oracle and the programs find each of them.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, OutOfMemory, Request};
use glake_core::driver::{Access, DriverError, StreamOrder, VirtualMemory};
use glake_core::sim::{Completion, SimDriver};
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DevicePtr, EventId, PAGE_BYTES, StreamId};
use glake_testkit::oracle::{Findings, Oracle};
use glake_testkit::program::streams::{Action, DEVICE, Machine, Runner, seeded};
use glake_testkit::spy::Spy;

/// The shelf's unit of memory.
const CHUNK_BYTES: u64 = 1 << 20;
const N_CHUNKS: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// None: the shelf is right.
    None,
    /// Memory goes to another stream without a wait.
    NoWait,
    /// The wait is for an event recorded before the free.
    OldEvent,
    /// Uses on other streams are forgotten.
    ForgottenUse,
    /// A free counts on the allocation's stream, wherever it was made.
    WrongFreeStream,
    /// A wait is taken for a wait for all that the other stream waits for by now.
    LaterClock,
    /// Joined memory counts as free since the earliest of its frees.
    OldestEpoch,
    /// A stream that waits for another counts as behind what the host asked about it, passed or not.
    AskedIsPassed,
}

/// Up to which epoch of each stream something is known to be done.
type Clock = BTreeMap<StreamId, u64>;

/// An event and what is done when it has passed.
#[derive(Clone, Debug)]
struct Mark {
    event: EventId,
    clock: Clock,
}

/// A small allocator that is exact about streams: chunks of one mapping, each tagged with the epochs of
/// the streams that used it last. An epoch of a stream ends with an event.
#[derive(Debug)]
struct Shelf {
    spy: Arc<Spy>,
    bug: Bug,
    region: AddressRange,
    /// The tag of each chunk that is free.
    free: Vec<Option<Clock>>,
    live: HashMap<DevicePtr, (Allocation, Vec<StreamId>)>,
    open: Clock,
    known: HashMap<StreamId, Clock>,
    /// The last event of each stream.
    marks: BTreeMap<StreamId, Mark>,
    stats: Stats,
}

impl Shelf {
    fn new(spy: Arc<Spy>, bug: Bug) -> Self {
        let bytes = CHUNK_BYTES * N_CHUNKS as u64;
        let region = spy.reserve(bytes, PAGE_BYTES).unwrap();
        let handle = spy.create(DEVICE, bytes).unwrap();
        spy.map(region.start, handle).unwrap();
        spy.set_access(region, &[DEVICE], Access::ReadWrite).unwrap();
        let stats = Stats { reserved_bytes: bytes, peak_reserved_bytes: bytes, ..Stats::default() };
        let free = vec![Some(Clock::new()); N_CHUNKS];
        let (open, known, marks) = (Clock::new(), HashMap::new(), BTreeMap::new());
        Self { spy, bug, region, free, live: HashMap::new(), open, known, marks, stats }
    }

    /// What has to be done before a run of chunks is used: the latest epoch of each stream.
    fn joined(&self, chunks: &[usize]) -> Clock {
        let mut joined = Clock::new();
        for (&stream, &epoch) in chunks.iter().filter_map(|&chunk| self.free[chunk].as_ref()).flatten() {
            let known = joined.entry(stream).or_insert(epoch);
            *known = if self.bug == Bug::OldestEpoch { epoch.min(*known) } else { epoch.max(*known) };
        }
        joined
    }

    /// A mark that covers `epoch` of `stream`: the last one, or a new one.
    fn mark(&mut self, stream: StreamId, epoch: u64) -> Result<Mark, DriverError> {
        if let Some(mark) = self.marks.get(&stream)
            && (mark.clock[&stream] >= epoch || self.bug == Bug::OldEvent)
        {
            return Ok(mark.clone());
        }
        let open = self.open.entry(stream).or_default();
        let mut clock = self.known.get(&stream).cloned().unwrap_or_default();
        clock.insert(stream, *open);
        let event = match self.spy.record(stream) {
            Err(DriverError::UnknownStream(_)) => self.spy.record_all(DEVICE),
            recorded => recorded,
        }?;
        *open += 1;
        let mark = Mark { event, clock };
        if let Some(old) = self.marks.insert(stream, mark.clone()) {
            self.spy.forget(old.event);
        }
        Ok(mark)
    }

    /// Makes `stream` run behind `needed`.
    fn order(&mut self, stream: StreamId, needed: &Clock) -> Result<(), DriverError> {
        for (&other, &epoch) in needed.iter().filter(|need| *need.0 != stream) {
            let is_behind =
                |known: &Clock| known.get(&other).is_some_and(|&known_epoch| known_epoch >= epoch);
            if self.bug == Bug::NoWait || self.known.get(&stream).is_some_and(is_behind) {
                continue;
            }
            let mark = self.mark(other, epoch)?;
            if self.bug == Bug::AskedIsPassed {
                self.spy.query(mark.event)?;
            } else {
                self.spy.wait(stream, mark.event)?;
            }
            let mut clock = mark.clock;
            if self.bug == Bug::LaterClock {
                clock.extend(self.known.get(&other).cloned().unwrap_or_default());
            }
            let known = self.known.entry(stream).or_default();
            for (of, epoch) in clock {
                let at = known.entry(of).or_default();
                *at = epoch.max(*at);
            }
        }
        Ok(())
    }
}

fn n_chunks(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(CHUNK_BYTES)).unwrap()
}

impl Allocator for Shelf {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let n = n_chunks(request.bytes);
        let run = self.free.windows(n.min(N_CHUNKS)).position(|run| run.iter().all(Option::is_some));
        let Some(first) = run.filter(|_| n <= N_CHUNKS) else {
            let report = OutOfMemory { requested_bytes: request.bytes, ..OutOfMemory::default() };
            return Err(AllocError::OutOfMemory(Box::new(report)));
        };
        let chunks: Vec<_> = (first..first + n).collect();
        let needed = self.joined(&chunks);
        self.order(request.stream, &needed)?;
        self.free[first..first + n].fill(None);
        let ptr = self.region.start + first as u64 * CHUNK_BYTES;
        let allocation = Allocation { ptr, bytes: request.bytes, stream: request.stream };
        self.live.insert(ptr, (allocation, Vec::new()));
        self.stats.n_allocations += 1;
        self.stats.n_live += 1;
        self.stats.requested_bytes += request.bytes;
        self.stats.allocated_bytes += n as u64 * CHUNK_BYTES;
        self.stats.peak_requested_bytes = self.stats.peak_requested_bytes.max(self.stats.requested_bytes);
        self.stats.peak_allocated_bytes = self.stats.peak_allocated_bytes.max(self.stats.allocated_bytes);
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let (allocation, used_on) = self.live.remove(&ptr).ok_or(AllocError::NotAllocated(ptr))?;
        let stream = if self.bug == Bug::WrongFreeStream { allocation.stream } else { stream };
        let used_on = used_on.into_iter().chain([stream]);
        let tag: Clock =
            used_on.map(|stream| (stream, self.open.get(&stream).copied().unwrap_or_default())).collect();
        let n = n_chunks(allocation.bytes);
        let first = usize::try_from((ptr - self.region.start) / CHUNK_BYTES).unwrap();
        for chunk in first..first + n {
            self.free[chunk] = Some(tag.clone());
        }
        self.stats.n_live -= 1;
        self.stats.n_frees += 1;
        self.stats.requested_bytes -= allocation.bytes;
        self.stats.allocated_bytes -= n as u64 * CHUNK_BYTES;
        Ok(())
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let (_, used_on) = self.live.get_mut(&ptr).ok_or(AllocError::NotAllocated(ptr))?;
        if self.bug != Bug::ForgottenUse {
            used_on.push(stream);
        }
        Ok(())
    }

    fn trim(&mut self, _: u64) -> Result<u64, AllocError> {
        Ok(0)
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

fn run(bug: Bug, completion: Completion, program: &[Action]) {
    Runner::new(Machine::new(completion, |spy| Box::new(Shelf::new(spy, bug)))).run(program);
}

/// The shelf itself is right: what is found is the bug.
#[test]
fn a_right_allocator_passes() {
    for completion in [Completion::Immediate, Completion::Manual, Completion::Lag(100_000)] {
        for seed in 0..4 {
            run(Bug::None, completion, &seeded(seed, 1500));
        }
    }
}

macro_rules! found {
    ($($name:ident $bug:ident)*) => {$(
        #[test]
        #[should_panic(expected = "n_out_of_order_reuses: 1")]
        fn $name() {
            for seed in 0..8 {
                run(Bug::$bug, Completion::Manual, &seeded(seed, 1500));
            }
        }
    )*};
}

found! {
    a_reuse_without_a_wait_is_found NoWait
    a_wait_for_an_event_before_the_free_is_found OldEvent
    a_forgotten_use_is_found ForgottenUse
    a_free_that_counts_on_the_wrong_stream_is_found WrongFreeStream
    a_clock_later_than_its_event_is_found LaterClock
    memory_joined_to_its_oldest_epoch_is_found OldestEpoch
    an_event_that_was_asked_for_and_had_not_passed_is_found AskedIsPassed
}

/// Memory under an oracle, on a driver with two streams.
struct Watched {
    spy: Arc<Spy>,
    oracle: Oracle,
    ptr: DevicePtr,
    a: StreamId,
    b: StreamId,
}

impl Watched {
    fn new() -> Self {
        let spy = Spy::new(Arc::new(SimDriver::h200(1)));
        let ptr = Shelf::new(Arc::clone(&spy), Bug::None).region.start;
        let [a, b] = [(); 2].map(|()| spy.create_stream(DEVICE).unwrap());
        Self { oracle: Oracle::over(Arc::clone(&spy)), spy, ptr, a, b }
    }

    /// Frees and reuses memory with `between` in between; whether that is in order.
    fn in_order(&mut self, free_on: StreamId, reuse_on: StreamId, between: impl FnOnce(&Spy) + Send) -> bool {
        let at = |stream| Allocation { ptr: self.ptr, bytes: 4096, stream };
        let n_before = self.oracle.findings().n_out_of_order_reuses;
        self.oracle.allocated(&at(free_on));
        let n_between = self.oracle.findings().n_out_of_order_reuses;
        assert_eq!(n_between, n_before, "the first use is in order");
        self.oracle.freed(self.ptr, free_on);
        between(&self.spy);
        self.oracle.allocated(&at(reuse_on));
        let is_in_order = self.oracle.findings().n_out_of_order_reuses == n_before;
        self.oracle.freed(self.ptr, reuse_on);
        self.spy.synchronize_all(DEVICE).unwrap();
        is_in_order
    }
}

#[test]
fn an_event_of_the_device_orders_what_was_freed_before_it() {
    let mut watched = Watched::new();
    let (a, b) = (watched.a, watched.b);
    let early = watched.spy.record_all(DEVICE).unwrap();
    assert!(!watched.in_order(a, b, |_| {}));
    assert!(!watched.in_order(a, b, |spy| spy.wait(b, early).unwrap()));
    assert!(watched.in_order(a, b, |spy| {
        let event = spy.record_all(DEVICE).unwrap();
        spy.wait(b, event).unwrap();
    }));
    assert!(watched.in_order(a, b, |spy| {
        let event = spy.record_all(DEVICE).unwrap();
        assert_eq!(spy.query(event), Ok(true));
    }));
    assert!(watched.in_order(a, b, |spy| spy.synchronize_all(DEVICE).unwrap()));
}

#[test]
fn a_default_stream_is_another_on_another_thread() {
    const OWN: StreamId = StreamId::PER_THREAD;
    for waits in [None, Some(())] {
        let mut watched = Watched::new();
        assert!(watched.in_order(OWN, OWN, |_| {}));
        let at = Allocation { ptr: watched.ptr, bytes: 4096, stream: OWN };
        watched.oracle.allocated(&at);
        watched.oracle.freed(at.ptr, OWN);
        let event = watched.spy.record(OWN).unwrap();
        let Watched { spy, oracle, .. } = &mut watched;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if waits.is_some() {
                    spy.wait(OWN, event).unwrap();
                }
                oracle.allocated(&at);
            });
        });
        assert_eq!(oracle.findings().n_out_of_order_reuses, u64::from(waits.is_none()));
    }
}

/// A graph may be launched at any time: what was freed in its capture is free in that capture only.
#[test]
fn what_is_freed_in_a_capture_stays_there() {
    let mut watched = Watched::new();
    let a = watched.a;
    watched.spy.begin_capture(a);
    let in_capture = Allocation { ptr: watched.ptr, bytes: 4096, stream: a };
    for _ in 0..2 {
        watched.oracle.allocated(&in_capture);
        watched.oracle.freed(in_capture.ptr, a);
    }
    assert_eq!(watched.oracle.findings(), Findings::default());
    watched.spy.end_capture(a);
    watched.spy.synchronize_all(DEVICE).unwrap();
    watched.oracle.allocated(&in_capture);
    assert_eq!(watched.oracle.findings(), Findings { n_out_of_order_reuses: 1, ..Findings::default() });
}
