//! Fault sweep: every driver call of programs that take every path fails once, in every way.

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::{Call, Driver, DriverError};
use glake_core::sim::{Completion, Fault, SimConfig, Target};
use glake_core::stats::Stats;
use glake_core::units::{DevicePtr, PAGE_BYTES};

use super::rig::{DEVICE, MIB, Rig};
use crate::{Config, Mode};

/// An operation of a program in which allocations are numbered in order of request.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate(u64),
    Aligned(u64, u64),
    Free(usize),
    /// Everything enqueued so far is done.
    Done,
    Trim(u64),
    Limit(u64),
    Defragment,
}

use Op::{Aligned, Allocate, Defragment, Done, Free, Limit, Trim};

/// A rig and the addresses of the program's allocations: none where a request failed.
struct Run {
    rig: Rig,
    made: Vec<Option<DevicePtr>>,
}

impl Run {
    fn new(mode: Mode) -> Self {
        let sim = SimConfig::h200(1).memory_bytes(64 * MIB).completion(Completion::Manual);
        Self { rig: Rig::new(sim, |config: Config| config.mode(mode)), made: Vec::new() }
    }

    fn act(&mut self, op: Op) -> Result<(), AllocError> {
        match op {
            Allocate(bytes) => self.allocate(bytes, 512),
            Aligned(bytes, align_bytes) => self.allocate(bytes, align_bytes),
            Free(n) => match self.made[n].take() {
                Some(ptr) => self.rig.try_free(ptr),
                None => Ok(()),
            },
            Done => {
                self.rig.sim.complete_all();
                Ok(())
            }
            Trim(keep_bytes) => self.rig.pool.trim(keep_bytes).map(drop),
            Limit(bytes) => self.rig.pool.set_limit_bytes(bytes).map(drop),
            Defragment => self.rig.pool.defragment().map(drop),
        }
    }

    fn allocate(&mut self, bytes: u64, align_bytes: u64) -> Result<(), AllocError> {
        let request = self.rig.request(bytes).aligned(align_bytes);
        let outcome = self.rig.try_allocate(request);
        self.made.push(outcome.as_ref().ok().map(|a| a.ptr));
        outcome.map(drop)
    }
}

/// Small, large and aligned objects, growth, gathers behind the tail, into holes and apart, stale
/// mappings unmapped, every way to give memory back, exhaustion.
const PROGRAM: &[Op] = &[
    Allocate(1000),
    Allocate(5 * MIB),
    Allocate(300 << 10),
    Allocate(6 * MIB),
    Aligned(3 * MIB, PAGE_BYTES),
    Allocate(4 * MIB),
    Free(1),
    Free(3),
    // Behind the tail, with handles from two places.
    Allocate(9 * MIB),
    Allocate(200 << 10),
    Free(0),
    Free(7),
    // The spare unit is given up for it.
    Allocate(2 * MIB),
    Free(5),
    Free(6),
    // Into holes whose mappings are not unmapped yet, so apart; then into holes that can be.
    Allocate(14 * MIB),
    Done,
    Free(8),
    Free(9),
    Allocate(18 * MIB),
    Allocate(7 * MIB),
    Free(10),
    Defragment,
    Allocate(10 * MIB),
    Free(11),
    Trim(20 * MIB),
    Allocate(12 * MIB),
    // Not to be had.
    Allocate(60 * MIB),
    Free(12),
    Limit(12 * MIB),
    Allocate(11 * MIB),
    Limit(u64::MAX),
    Allocate(8 * MIB),
    Free(15),
    Trim(0),
    Allocate(1 << 10),
];

/// A run that is stitched, taken apart and revived where it was.
const REVIVING: &[Op] = &[
    Allocate(8 * MIB),
    Allocate(4 * MIB),
    Allocate(2 * MIB),
    Allocate(4 * MIB),
    Allocate(2 * MIB),
    Allocate(4 * MIB),
    Allocate(2 * MIB),
    Free(1),
    Free(3),
    Free(5),
    Allocate(10 * MIB),
    Free(7),
    Allocate(10 * MIB),
    // A spare unit in a handle that may return to its first home.
    Allocate(1000),
    Free(8),
    Free(9),
    // Not to be had.
    Allocate(60 * MIB),
    Allocate(12 * MIB),
    Free(11),
    Done,
    Defragment,
    Allocate(14 * MIB),
    Trim(0),
];

#[test]
fn the_program_takes_every_path() {
    for mode in [Mode::Default, Mode::Compact] {
        takes_every_path(mode);
        assert!(without_faults(REVIVING, mode).n_revived > 0);
    }
}

/// The figures at the end.
fn without_faults(program: &[Op], mode: Mode) -> Stats {
    let mut run = Run::new(mode);
    for &op in program {
        let outcome = run.act(op);
        assert!(matches!(outcome, Ok(()) | Err(AllocError::OutOfMemory(_))), "{op:?}: {outcome:?}");
        run.rig.check();
    }
    let stats = run.rig.pool.stats();
    run.rig.finish();
    stats
}

fn takes_every_path(mode: Mode) {
    assert!(without_faults(PROGRAM, mode).n_stitches >= 2);
    let mut run = Run::new(mode);
    for &op in PROGRAM {
        let _ = run.act(op);
    }
    let ledger = run.rig.sim.ledger(DEVICE).unwrap();
    for call in [Call::Create, Call::Map, Call::SetAccess, Call::Record, Call::Unmap, Call::Release] {
        assert!(ledger.n(call) > 5, "{call:?} is not taken");
    }
    run.rig.finish();
}

/// Runs the program with `fault`; `Err` has to leave everything as it was. Whether a call was hit.
fn with_fault(program: &[Op], mode: Mode, fault: Fault, what: &str) -> bool {
    let mut run = Run::new(mode);
    run.rig.sim.plan(fault);
    for &op in program {
        let before = run.rig.pool.snapshot();
        let outcome = run.act(op);
        let what = format!("{what} in {op:?}: {outcome:?}");
        if run.rig.pool.is_poisoned {
            poisoned(run, &what);
            return true;
        }
        match (op, outcome) {
            (Trim(_) | Limit(_) | Defragment, Err(error)) => {
                assert!(matches!(error, AllocError::Driver(_)), "{what}");
                // What was done stays done; what is live stays as it is.
                run.rig.pool.snapshot().assert_same_live(&before, &what);
            }
            (_, Err(error)) => {
                assert!(matches!(error, AllocError::Driver(_) | AllocError::OutOfMemory(_)), "{what}");
                run.rig.pool.snapshot().assert_follows(&before, &what);
            }
            (_, Ok(())) => continue,
        }
        run.rig.check();
    }
    run.rig.check();
    run.rig.sim.clear_faults();
    let is_hit = run.rig.sim.n_faults() > 0;
    run.rig.finish();
    is_hit
}

/// An undo failed. Only drop is allowed, and gives everything back.
fn poisoned(mut run: Run, what: &str) {
    let (request, stream) = (run.rig.request(MIB), run.rig.stream);
    assert_eq!(run.rig.pool.allocate(request), Err(AllocError::Poisoned), "{what}");
    assert_eq!(run.rig.pool.trim(0), Err(AllocError::Poisoned), "{what}");
    assert_eq!(run.rig.pool.defragment(), Err(AllocError::Poisoned), "{what}");
    if let Some(live) = run.rig.live.first() {
        assert_eq!(run.rig.pool.free(live.ptr, stream), Err(AllocError::Poisoned), "{what}");
    }
    run.rig.sim.clear_faults();
    run.rig.finish();
}

/// More than any program makes.
const MOST_CALLS: u64 = 10_000;

/// Fails call after call until none is hit any more.
fn sweep(mut fails_at: impl FnMut(u64) -> bool) {
    let n = (0..MOST_CALLS).take_while(|&k| fails_at(k)).count();
    assert!(n > 20, "{n} calls were hit");
}

#[test]
fn any_call_may_fail() {
    for (program, mode) in runs() {
        sweep(|k| with_fault(program, mode, Fault::nth(k), &format!("call {k}")));
    }
}

#[test]
fn memory_may_run_out_at_any_call() {
    for (program, mode) in runs() {
        let fault = |k| Fault::nth(k).error(DriverError::OutOfMemory);
        sweep(|k| with_fault(program, mode, fault(k), &format!("out of memory at call {k}")));
    }
}

#[test]
fn all_calls_may_fail_from_one_on() {
    for (program, mode) in runs() {
        sweep(|k| with_fault(program, mode, Fault::nth(k).from_then_on(), &format!("from call {k} on")));
    }
}

fn runs() -> impl Iterator<Item = (&'static [Op], Mode)> {
    [PROGRAM, REVIVING].into_iter().flat_map(|program| [(program, Mode::Default), (program, Mode::Compact)])
}

#[test]
fn calls_of_one_kind_may_fail_from_one_on() {
    let calls = [Call::Create, Call::Map, Call::SetAccess, Call::Record, Call::Query, Call::Unmap];
    for call in calls.into_iter().chain([Call::Release, Call::Synchronize]) {
        let fault = |k| Fault::nth(k).of(Target::One(call)).from_then_on();
        let what = |k| format!("{call:?} fails from number {k} on");
        let _ =
            (0..MOST_CALLS).take_while(|&k| with_fault(PROGRAM, Mode::Default, fault(k), &what(k))).count();
    }
}

#[test]
fn an_undo_may_fail() {
    // A call fails, and so does every unmapping or release: the way back is closed.
    for call in [Call::Create, Call::Map, Call::SetAccess, Call::Record] {
        for undo in [Call::Unmap, Call::Release] {
            let mut n_poisoned = 0;
            for k in 0..40 {
                let mut run = Run::new(Mode::Compact);
                run.rig.sim.plan(Fault::nth(k).of(Target::One(call)).from_then_on());
                run.rig.sim.plan(Fault::nth(0).of(Target::One(undo)).from_then_on());
                let fails = |op| run.act(op) == Err(AllocError::Poisoned);
                if PROGRAM.iter().copied().any(fails) {
                    n_poisoned += 1;
                    poisoned(run, &format!("{call:?} {k}, then {undo:?}"));
                }
            }
            let can = undo == Call::Release || call != Call::Create;
            assert_eq!(n_poisoned > 0, can, "{call:?}, then {undo:?}");
        }
    }
}

#[test]
fn the_device_may_be_lost_at_any_call() {
    sweep(|k| {
        let mut run = Run::new(Mode::Default);
        run.rig.sim.plan(Fault::nth(k).lose(DEVICE));
        for &op in PROGRAM {
            let n_live = run.rig.pool.stats().n_live;
            let outcome = run.act(op);
            let is_typed = matches!(
                outcome,
                Ok(())
                    | Err(AllocError::OutOfMemory(_)
                        | AllocError::Poisoned
                        | AllocError::Driver(DriverError::DeviceLost))
            );
            assert!(is_typed, "call {k} in {op:?}: {outcome:?}");
            if outcome.is_err() {
                assert_eq!(run.rig.pool.stats().n_live, n_live, "call {k} in {op:?}");
            }
        }
        run.rig.sim.n_faults() > 0
    });
}
