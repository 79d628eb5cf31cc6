//! Random programs of everything that several streams can do, beside the oracle and real bytes.

use std::thread;

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{DeviceOps, StreamOrder};
use glake_core::sim::{Completion, Fault, GraphId, SimConfig};
use glake_core::units::{AddressRange, DevicePtr, StreamId};
use glake_testkit::oracle::Findings;
use glake_testkit::rng::Rng;
use glake_testkit::spy::Moment;

use super::bench::Bench;
use crate::tests::rig::{DEVICE, MIB};
use crate::{Config, GraphMemory, Mode};

const MEMORY_BYTES: u64 = 192 * MIB;
/// Streams of a program: the legacy stream, the thread's own, and four that come and go.
const N_STREAMS: u64 = 6;
const N_GRAPHS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Live {
    ptr: DevicePtr,
    bytes: u64,
    /// Where its work is.
    on: StreamId,
    /// The pattern in it, where every launch and every thread leaves it alone.
    seed: Option<u64>,
    /// Whether the work of another thread may use it.
    is_foreign: bool,
}

#[derive(Debug)]
struct Graph {
    memory: GraphMemory,
    graph: GraphId,
    moment: Moment,
}

#[derive(Debug)]
struct Program {
    bench: Bench,
    rng: Rng,
    streams: Vec<StreamId>,
    live: Vec<Live>,
    /// A stream under capture.
    capture: Option<(StreamId, GraphMemory, Moment)>,
    graphs: Vec<Graph>,
    n_allocated: u64,
    /// Whether some memory is for every stream.
    has_for_all: bool,
    /// Whether this is a thread that ends: the oracle does not know that its default stream does.
    is_away: bool,
}

impl Program {
    fn new(seed: u64, completion: Completion, mode: Mode) -> Self {
        let sim = SimConfig::h200(1).memory_bytes(MEMORY_BYTES).completion(completion);
        let bench = Bench::over(sim, |config: Config| config.mode(mode));
        let mut streams = vec![StreamId::LEGACY, StreamId::PER_THREAD];
        streams.resize_with(N_STREAMS as usize, || bench.stream());
        let rng = Rng::new(seed);
        Self {
            bench,
            rng,
            streams,
            live: Vec::new(),
            capture: None,
            graphs: Vec::new(),
            n_allocated: 0,
            has_for_all: false,
            is_away: false,
        }
    }

    fn is_captured(&self, stream: StreamId) -> bool {
        self.capture.as_ref().is_some_and(|(captured, ..)| *captured == stream)
    }

    fn any_stream(&mut self) -> StreamId {
        self.streams[self.rng.below(N_STREAMS) as usize]
    }

    fn take_any(&mut self) -> Option<Live> {
        let n = self.live.len() as u64;
        (n > 0).then(|| self.live.swap_remove(self.rng.below(n) as usize))
    }

    /// Plans a fault for one operation, now and then.
    fn plan_fault(&mut self) {
        if self.rng.below(24) == 0 {
            self.bench.sim.plan(Fault::nth(self.rng.below(8)));
        }
    }

    fn step(&mut self) {
        match self.rng.below(200) {
            0 => self.trim(),
            1 => self.limit(),
            2 => self.defragment(),
            3..6 => self.replace(),
            6..8 => self.begin_capture(),
            8..14 => self.end_capture(),
            14..18 => self.launch(),
            18..20 => self.end_graph(),
            20..22 => self.mark(),
            22..50 => self.complete(),
            50..65 => self.use_elsewhere(),
            65..70 => self.free_from_anywhere(),
            70..85 => self.free(true),
            85..130 => self.free(false),
            _ => self.allocate(),
        }
    }

    fn allocate(&mut self) {
        let on = self.any_stream();
        let bytes = match self.rng.below(16) {
            0..5 => self.rng.log_between(1, 64 << 10),
            5..10 => MIB << self.rng.below(4),
            10..15 => self.rng.log_between(MIB, 20 * MIB),
            _ => self.rng.log_between(20 * MIB, MEMORY_BYTES),
        };
        // The pool would not know that a graph uses it.
        let is_for_all = self.has_for_all && !self.is_captured(on) && self.rng.below(3) == 0;
        self.plan_fault();
        let before = self.bench.pool.counters.requested_bytes;
        let outcome = if is_for_all {
            self.bench.pool.allocate_for_all(bytes)
        } else {
            self.bench.pool.allocate(Request::new(bytes, on))
        };
        self.bench.sim.clear_faults();
        match outcome {
            Ok(allocation) => {
                if is_for_all {
                    self.bench.oracle.allocated_for_all(&allocation);
                } else {
                    self.bench.oracle.allocated(&allocation);
                }
                assert_eq!(self.bench.oracle.findings(), Findings::default(), "{allocation:?}");
                self.n_allocated += 1;
                let seed = self.n_allocated;
                let live = Live { ptr: allocation.ptr, bytes, on, seed: Some(seed), is_foreign: false };
                if let Some(range) = pattern(&live) {
                    self.bench.sim.fill_pattern(range, seed, on).unwrap();
                }
                self.live.push(live);
            }
            Err(AllocError::OutOfMemory(_) | AllocError::Driver(_)) => {
                assert_eq!(self.bench.pool.counters.requested_bytes, before);
            }
            Err(error) => panic!("{bytes} bytes on {on:?}: {error}"),
        }
    }

    fn free(&mut self, is_elsewhere: bool) {
        let Some(mut live) = self.take_any() else { return };
        if live.is_foreign {
            return self.free_anywhere(live);
        }
        let to = self.any_stream();
        if is_elsewhere && !self.is_captured(live.on) && !self.is_captured(to) {
            self.bench.order(live.on, to);
            live.on = to;
        }
        self.check_pattern(&live);
        self.bench.oracle.freed(live.ptr, live.on);
        self.plan_fault();
        self.bench.pool.free(live.ptr, live.on).unwrap();
        self.bench.sim.clear_faults();
    }

    fn free_from_anywhere(&mut self) {
        match self.take_any() {
            // The pool would not know that the graph uses it.
            Some(live) if self.is_captured(live.on) => self.live.push(live),
            Some(live) => self.free_anywhere(live),
            None => {}
        }
    }

    fn free_anywhere(&mut self, live: Live) {
        if !live.is_foreign {
            self.check_pattern(&live);
        }
        self.bench.oracle.freed(live.ptr, live.on);
        self.plan_fault();
        self.bench.pool.free_from_anywhere(live.ptr).unwrap();
        self.bench.sim.clear_faults();
    }

    fn check_pattern(&self, live: &Live) {
        if let (Some(range), Some(seed)) = (pattern(live), live.seed) {
            self.bench.sim.check_pattern(range, seed, live.on).unwrap();
        }
    }

    fn use_elsewhere(&mut self) {
        let to = self.any_stream();
        let n = self.live.len() as u64;
        if n == 0 || self.is_captured(to) || (self.is_away && to == StreamId::PER_THREAD) {
            return;
        }
        let live = self.live[self.rng.below(n) as usize];
        if live.is_foreign || self.is_captured(live.on) {
            return;
        }
        self.bench.order(live.on, to);
        self.check_pattern(&Live { on: to, ..live });
        self.bench.pool.record_use(live.ptr, to).unwrap();
        self.bench.oracle.used(live.ptr, to);
    }

    fn trim(&mut self) {
        let keep_bytes = self.rng.below(2) * self.rng.below(MEMORY_BYTES);
        let before = self.bench.physical_bytes();
        self.plan_fault();
        let returned = self.bench.pool.trim(keep_bytes);
        self.bench.sim.clear_faults();
        if let Ok(returned) = returned {
            assert_eq!(self.bench.physical_bytes(), before - returned);
        }
    }

    fn limit(&mut self) {
        let limit_bytes = self.rng.between(MEMORY_BYTES / 8, 2 * MEMORY_BYTES);
        self.bench.pool.set_limit_bytes(limit_bytes).unwrap();
    }

    fn defragment(&mut self) {
        self.bench.pool.defragment().unwrap();
    }

    /// A stream ends, announced or not; another takes its allocations over.
    fn replace(&mut self) {
        let i = self.rng.between(2, N_STREAMS - 1) as usize;
        let old = self.streams[i];
        if self.is_captured(old) {
            return;
        }
        let new = self.bench.stream();
        self.bench.order(old, new);
        if self.rng.below(2) == 0 {
            self.bench.pool.stream_ends(old).unwrap();
        }
        self.bench.spy.destroy_stream(old).unwrap();
        self.streams[i] = new;
        self.live.iter_mut().filter(|live| live.on == old).for_each(|live| live.on = new);
    }

    fn begin_capture(&mut self) {
        let i = self.rng.between(1, N_STREAMS - 1) as usize;
        if self.capture.is_some() || self.graphs.len() == N_GRAPHS {
            return;
        }
        let stream = self.streams[i];
        let memory = self.bench.begin_capture(stream);
        let moment = self.bench.spy.moment(stream);
        // What the capture uses of what there was is not launched in order with other streams.
        self.capture = Some((stream, memory, moment));
        self.live.iter_mut().filter(|live| live.on == stream).for_each(|live| live.seed = None);
    }

    fn end_capture(&mut self) {
        let Some((stream, memory, moment)) = self.capture.take() else { return };
        let graph = self.bench.end_capture(stream);
        self.graphs.push(Graph { memory, graph, moment });
        // No launch has written there yet, and each will.
        self.live.iter_mut().filter(|live| live.on == stream).for_each(|live| live.seed = None);
    }

    fn launch(&mut self) {
        let to = self.any_stream();
        let n = self.graphs.len() as u64;
        if n > 0 && !self.is_captured(to) {
            let graph = self.graphs[self.rng.below(n) as usize].graph;
            // One launch at a time.
            if self.capture.is_none() {
                let all = self.bench.spy.record_all(DEVICE).unwrap();
                self.bench.spy.wait(to, all).unwrap();
                self.bench.spy.forget(all);
                self.bench.sim.launch(graph, to).unwrap();
            }
        }
    }

    fn end_graph(&mut self) {
        let n = self.graphs.len() as u64;
        if n == 0 || self.capture.is_some() {
            return;
        }
        let Graph { memory, graph, moment } = self.graphs.swap_remove(self.rng.below(n) as usize);
        self.bench.sim.destroy_graph(graph).unwrap();
        self.bench.spy.graph_ends(moment, DEVICE);
        if self.rng.below(2) == 0 {
            self.bench.spy.synchronize_all(DEVICE).unwrap();
            memory.finished();
        } else {
            drop(memory);
        }
    }

    fn mark(&mut self) {
        if self.capture.is_none() {
            let mark = self.bench.pool.mark();
            self.bench.spy.synchronize_all(DEVICE).unwrap();
            self.bench.pool.synchronized(mark);
        }
    }

    fn complete(&mut self) {
        let (on, n) = (self.any_stream(), self.rng.below(24));
        self.bench.sim.complete(on, n as usize).unwrap();
        self.bench.sim.advance(n * 1000);
    }

    /// Runs `n` operations, the last fifth of each thousand on another thread.
    fn run(mut self, n: u64, check_every: u64) {
        for i in 1..=n {
            if i % 1000 == 800 && self.capture.is_none() {
                self = self.elsewhere(check_every);
            }
            self.step();
            if i % check_every == 0 {
                self.bench.check();
            }
        }
        self.end_capture();
        while !self.graphs.is_empty() {
            self.end_graph();
        }
        self.bench.pool.set_limit_bytes(u64::MAX).unwrap();
        while !self.live.is_empty() {
            self.free(false);
        }
        self.bench.check();
        let reserved = self.bench.physical_bytes();
        assert_eq!(self.bench.pool.trim(0), Ok(reserved), "everything is free");
        self.bench.sim.complete_all();
        assert_eq!(self.bench.sim.mismatches(StreamId::LEGACY), Ok(0), "no byte was overwritten");
        self.bench.finish();
    }

    /// Some operations of a thread that ends, with a default stream of its own.
    fn elsewhere(mut self, check_every: u64) -> Self {
        let mine = StreamId::PER_THREAD;
        let leave = move |program: &mut Self| {
            program.live.iter_mut().filter(|live| live.on == mine).for_each(|live| {
                (live.on, live.seed, live.is_foreign) = (StreamId::LEGACY, None, true);
            });
        };
        leave(&mut self);
        let thread = thread::spawn(move || {
            self.is_away = true;
            for i in 1..=200 {
                self.step();
                if i % check_every == 0 {
                    self.bench.check();
                }
            }
            self.end_capture();
            leave(&mut self);
            self.bench.pool.stream_ends(mine).unwrap();
            self.is_away = false;
            self
        });
        thread.join().unwrap()
    }
}

/// The whole words at the beginning of an allocation.
fn pattern(live: &Live) -> Option<AddressRange> {
    let bytes = live.bytes.min(64) / 8 * 8;
    (bytes > 0).then_some(AddressRange::new(live.ptr, bytes))
}

const KINDS: [(Completion, Mode); 4] = [
    (Completion::Manual, Mode::Default),
    (Completion::Manual, Mode::Compact),
    (Completion::Lag(100_000), Mode::Default),
    (Completion::Immediate, Mode::Compact),
];

#[test]
fn random_programs_of_several_streams_keep_every_invariant() {
    for (seed, (completion, mode)) in (0..).zip(KINDS) {
        Program::new(seed, completion, mode).run(1_000, 10);
        Program::new(100 + seed, completion, mode).run(6_000, 1000);
    }
}

#[test]
fn random_programs_with_memory_for_all_keep_every_invariant() {
    for (seed, (completion, mode)) in (0..).zip(KINDS) {
        for (seed, n, check_every) in [(200 + seed, 1_000, 10), (300 + seed, 6_000, 1000)] {
            let mut program = Program::new(seed, completion, mode);
            program.has_for_all = true;
            program.run(n, check_every);
        }
    }
}

/// Says at a panic which program it was.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the program of seed {} failed", self.0);
        }
    }
}

/// `cargo test --release -p glake-vmm --lib -- --ignored --nocapture a_hundred_million`
#[test]
#[ignore = "takes long"]
fn a_hundred_million_operations_keep_every_invariant() {
    const N_OPS: u64 = 100_000_000;
    const EACH: u64 = 5_000;
    let n_threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for first in 0..n_threads as u64 {
            scope.spawn(move || {
                for seed in (first..N_OPS / EACH).step_by(n_threads) {
                    let (completion, mode) = KINDS[(seed % 4) as usize];
                    let _named = Named(1000 + seed);
                    Program::new(1000 + seed, completion, mode).run(EACH, 1_000);
                }
            });
        }
    });
}

/// It found that a stream whose last event had passed was taken for one at work.
#[test]
fn a_stream_that_is_done_with_stays_so() {
    let (completion, mode) = KINDS[3];
    Program::new(17_471, completion, mode).run(5_000, 1_000);
}
