//! Fault sweep: every driver call of a program of several streams fails, once and from then on.

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Call, DriverError};
use glake_core::sim::{Fault, Target};
use glake_core::units::{DevicePtr, StreamId};

use super::bench::Bench;
use crate::Mode;
use crate::tests::rig::MIB;

/// An operation; streams and allocations by number, those in order of request.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate(u64, usize),
    ForAll(u64),
    Free(usize, usize),
    Use(usize, usize),
    Anywhere(usize),
    /// The stream ends, announced, and another has its number.
    Replace(usize),
    Done,
    Trim,
    Defragment,
}

use Op::{Allocate, Anywhere, Defragment, Done, ForAll, Free, Replace, Trim, Use};

/// Waits for one stream and for two, stitched runs of pieces of several, held blocks and objects, frees from
/// anywhere, a stream that ends, exhaustion.
const PROGRAM: &[Op] = &[
    Allocate(4 * MIB, 0),
    Allocate(4 * MIB, 1),
    Allocate(20 * MIB, 0),
    Allocate(1000, 0),
    Allocate(1000, 1),
    Free(0, 0),
    Free(1, 1),
    // Behind two streams, in one piece.
    Allocate(8 * MIB, 2),
    Use(2, 1),
    Free(2, 0),
    Use(3, 2),
    Free(3, 0),
    Anywhere(4),
    Allocate(1000, 1),
    Allocate(20 * MIB, 1),
    Free(5, 2),
    Allocate(3 * MIB, 0),
    Allocate(3 * MIB, 1),
    Anywhere(7),
    // More than one run has: stitched.
    Allocate(28 * MIB, 2),
    Free(8, 0),
    Replace(1),
    Allocate(6 * MIB, 1),
    Done,
    Free(10, 2),
    Allocate(30 * MIB, 0),
    // Not to be had.
    Allocate(60 * MIB, 1),
    Free(12, 0),
    Defragment,
    Allocate(36 * MIB, 2),
    Free(14, 2),
    Trim,
    Allocate(5 * MIB, 1),
];

/// Memory for all: what is done with, new, stitched, behind waits of the host; freed on a stream, from
/// anywhere, behind uses; exhaustion.
const FOR_ALL: &[Op] = &[
    ForAll(4 * MIB),
    Allocate(12 * MIB, 0),
    ForAll(1000),
    Allocate(4 * MIB, 1),
    Allocate(20 * MIB, 2),
    Free(1, 0),
    // New, with work of a stream pending.
    ForAll(4 * MIB),
    // Behind it.
    ForAll(8 * MIB),
    Free(3, 1),
    Anywhere(2),
    Use(0, 1),
    Free(0, 0),
    Free(4, 2),
    // Stitched, behind three streams.
    ForAll(26 * MIB),
    ForAll(1000),
    ForAll(60 * MIB),
    Anywhere(5),
    Done,
    Allocate(6 * MIB, 1),
    Anywhere(7),
    ForAll(30 * MIB),
    Defragment,
    Trim,
    ForAll(2000),
];

struct Run {
    bench: Bench,
    streams: Vec<StreamId>,
    made: Vec<Option<DevicePtr>>,
}

impl Run {
    fn new() -> Self {
        let (bench, streams) = Bench::busy::<3>(|config| config.mode(Mode::Compact).limit_bytes(48 * MIB));
        Self { bench, streams: streams.to_vec(), made: Vec::new() }
    }

    fn act(&mut self, op: Op) -> Result<(), AllocError> {
        let bench = &mut self.bench;
        match op {
            Allocate(bytes, on) => {
                let outcome = bench.pool.allocate(Request::new(bytes, self.streams[on]));
                if let Ok(allocation) = &outcome {
                    bench.oracle.allocated(allocation);
                    assert_eq!(bench.oracle.findings(), glake_testkit::oracle::Findings::default());
                }
                self.made.push(outcome.as_ref().ok().map(|allocation| allocation.ptr));
                outcome.map(drop)
            }
            ForAll(bytes) => {
                let outcome = bench.pool.allocate_for_all(bytes);
                if let Ok(allocation) = &outcome {
                    bench.oracle.allocated_for_all(allocation);
                    assert_eq!(bench.oracle.findings(), glake_testkit::oracle::Findings::default());
                }
                self.made.push(outcome.as_ref().ok().map(|allocation| allocation.ptr));
                outcome.map(drop)
            }
            Free(n, on) => {
                let Some(ptr) = self.made[n].take() else { return Ok(()) };
                bench.oracle.freed(ptr, self.streams[on]);
                bench.pool.free(ptr, self.streams[on])
            }
            Use(n, on) => {
                let Some(ptr) = self.made[n] else { return Ok(()) };
                bench.oracle.used(ptr, self.streams[on]);
                bench.pool.record_use(ptr, self.streams[on])
            }
            Anywhere(n) => {
                let Some(ptr) = self.made[n].take() else { return Ok(()) };
                bench.oracle.freed(ptr, self.streams[0]);
                bench.pool.free_from_anywhere(ptr)
            }
            Replace(on) => {
                let new = bench.stream();
                bench.delay(new);
                let old = std::mem::replace(&mut self.streams[on], new);
                bench.pool.stream_ends(old)
            }
            Done => {
                bench.sim.complete_all();
                Ok(())
            }
            Trim => bench.pool.trim(0).map(drop),
            Defragment => bench.pool.defragment().map(drop),
        }
    }
}

/// Whether the fault, planned after the set-up, was hit.
fn with_fault(program: &[Op], fault: Fault, what: &str) -> bool {
    let mut run = Run::new();
    run.bench.sim.plan(fault);
    for &op in program {
        if matches!(op, Replace(_)) {
            // Making a stream is a call, too, but not the pool's.
            continue;
        }
        let before = run.bench.pool.snapshot();
        let outcome = run.act(op);
        let what = format!("{what} in {op:?}: {outcome:?}");
        match outcome {
            Ok(()) => continue,
            Err(AllocError::Driver(_) | AllocError::OutOfMemory(_)) => {
                assert!(!matches!(op, Free(..) | Use(..) | Anywhere(_)), "{what}");
                run.bench.pool.snapshot().assert_same_live(&before, &what);
            }
            Err(error) => panic!("{what}: {error}"),
        }
        run.bench.check();
    }
    run.bench.check();
    let is_hit = run.bench.sim.n_faults() > 0;
    run.bench.sim.clear_faults();
    run.bench.sim.complete_all();
    for n in 0..run.made.len() {
        run.act(Free(n, 0)).unwrap();
    }
    let reserved = run.bench.physical_bytes();
    assert_eq!(run.bench.pool.trim(0), Ok(reserved), "{what}: nothing is lost");
    run.bench.finish();
    is_hit
}

#[test]
fn the_program_waits_stitches_and_holds() {
    let mut run = Run::new();
    for &op in PROGRAM {
        let outcome = run.act(op);
        assert!(matches!(outcome, Ok(()) | Err(AllocError::OutOfMemory(_))), "{op:?}: {outcome:?}");
        run.bench.check();
    }
    assert!(run.bench.pool.counters.n_stitches > 0 && run.bench.n(Call::Wait) > 3);
    run.bench.finish();
}

#[test]
fn the_program_for_all_waits_on_the_host_and_stitches() {
    let mut run = Run::new();
    for &op in FOR_ALL {
        let outcome = run.act(op);
        assert!(matches!(outcome, Ok(()) | Err(AllocError::OutOfMemory(_))), "{op:?}: {outcome:?}");
        run.bench.check();
    }
    assert!(run.bench.pool.counters.n_stitches > 0 && run.bench.n(Call::Synchronize) > 3);
    run.bench.finish();
}

#[test]
fn any_call_of_several_streams_may_fail() {
    any_call_may_fail(PROGRAM);
}

#[test]
fn any_call_for_all_may_fail() {
    any_call_may_fail(FOR_ALL);
}

fn any_call_may_fail(program: &[Op]) {
    let targets = [Call::Record, Call::Wait, Call::Query, Call::Synchronize, Call::Unmap].map(Target::One);
    for target in targets.into_iter().chain([Target::All]) {
        let is_record = target == Target::One(Call::Record);
        let errors = [DriverError::Planned, DriverError::NotSupported("an old driver")];
        for &error in &errors[..=usize::from(is_record)] {
            let fault = |k| Fault::nth(k).of(target).error(error);
            let mut n = 0;
            while with_fault(program, fault(n), &format!("{target:?} {n}, {error:?}")) {
                n += 1;
            }
            assert!(n > 0, "{target:?} is not called");
            if is_record {
                for k in 0..n {
                    with_fault(
                        program,
                        fault(k).from_then_on(),
                        &format!("{target:?} from {k} on, {error:?}"),
                    );
                }
            }
        }
    }
}
