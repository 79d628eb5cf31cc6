//! Fault sweep: every driver call of a program on two streams fails once, or from then on.

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::driver::{DeviceOps, Driver, DriverError};
use glake_core::sim::Fault;

use super::rig::{DEVICE, KIB, MIB, Rig};

#[derive(Clone, Copy, Debug)]
enum Op {
    /// On a stream.
    Allocate(usize, u64),
    ForAll(u64),
    /// The allocation of that number on a stream.
    Free(usize, usize),
    Use(usize, usize),
    Anywhere(usize),
    Done,
    Trim(u64),
    Defragment,
}

use Op::{Allocate, Anywhere, Defragment, Done, ForAll, Free, Trim, Use};

/// Units come and go, objects are freed on other streams and held, memory runs out.
const PROGRAM: &[Op] = &[
    Allocate(0, KIB),
    Allocate(1, KIB),
    Allocate(0, 6 * MIB),
    Allocate(1, 200 * KIB),
    Free(0, 1),
    Use(1, 0),
    Free(1, 1),
    Free(2, 1),
    Allocate(0, 4 * MIB),
    Anywhere(3),
    // The room that is left is held.
    Allocate(0, 14 * MIB),
    Allocate(1, 8 * MIB),
    Done,
    Allocate(1, KIB),
    Free(4, 0),
    Defragment,
    Allocate(0, 100 * KIB),
    Trim(4 * MIB),
    Free(5, 1),
    Allocate(1, 12 * MIB),
    Free(7, 1),
    Trim(0),
];

/// The same with memory for all: small objects in a unit of their own, behind waits of the host.
const FOR_ALL: &[Op] = &[
    ForAll(KIB),
    Allocate(0, 6 * MIB),
    ForAll(200 * KIB),
    ForAll(6 * MIB),
    Free(0, 1),
    Use(2, 1),
    Free(2, 0),
    Free(1, 0),
    Anywhere(3),
    ForAll(16 * MIB),
    ForAll(8 * MIB),
    ForAll(KIB),
    Anywhere(4),
    Done,
    Allocate(1, 12 * MIB),
    ForAll(100 * KIB),
    Free(7, 1),
    Defragment,
    ForAll(2 * MIB),
    Trim(0),
];

fn act(rig: &Rig, made: &mut Vec<Option<Allocation>>, op: Op) -> Result<(), AllocError> {
    match op {
        Allocate(stream, bytes) => {
            let outcome = rig.try_allocate(stream, bytes);
            made.push(outcome.as_ref().ok().copied());
            outcome.map(drop)
        }
        ForAll(bytes) => {
            let outcome = rig.try_allocate_for_all(bytes);
            made.push(outcome.as_ref().ok().copied());
            outcome.map(drop)
        }
        Free(n, stream) => {
            if let Some(allocation) = made[n].take() {
                rig.free(allocation, stream);
            }
            Ok(())
        }
        Use(n, stream) => {
            if let Some(allocation) = made[n] {
                rig.record_use(allocation, stream);
            }
            Ok(())
        }
        Anywhere(n) => {
            if let Some(allocation) = made[n].take() {
                rig.free_from_anywhere(allocation)?;
            }
            Ok(())
        }
        Done => {
            rig.sim.complete_all();
            Ok(())
        }
        Trim(keep_bytes) => rig.pool.trim(keep_bytes).map(drop),
        Defragment => rig.pool.defragment().map(drop),
    }
}

/// Runs the program with `fault`; `Err` leaves what is live as it was. Whether a call was hit.
fn with_fault(program: &[Op], fault: Fault, what: &str) -> bool {
    let rig = Rig::new(2, 20 * MIB);
    let mut made = Vec::new();
    rig.sim.plan(fault);
    for &op in program {
        let before = rig.pool.stats();
        let outcome = act(&rig, &mut made, op);
        let what = format!("{what} in {op:?}: {outcome:?}");
        let Err(error) = outcome else { continue };
        if error == AllocError::Poisoned {
            poisoned(rig);
            return true;
        }
        let is_typed = matches!(
            error,
            AllocError::OutOfMemory(_) | AllocError::Driver(DriverError::Planned | DriverError::OutOfMemory)
        );
        assert!(is_typed, "{what}");
        let after = rig.pool.stats();
        let live = glake_testkit::program::live_part;
        assert_eq!(live(&after), live(&before), "{what}");
        rig.pool.check_invariants();
    }
    rig.pool.check_invariants();
    let is_hit = rig.sim.n_faults() > 0;
    rig.sim.clear_faults();
    made.into_iter().flatten().for_each(|allocation| rig.free(allocation, 0));
    rig.sim.complete_all();
    rig.finish();
    is_hit
}

/// An undo failed. Only drop is allowed, and gives everything back.
fn poisoned(rig: Rig) {
    let request = Request::new(KIB, rig.streams[0]);
    assert_eq!(rig.pool.allocate(request), Err(AllocError::Poisoned));
    assert_eq!(rig.pool.trim(0), Err(AllocError::Poisoned));
    rig.sim.clear_faults();
    drop(rig.pool);
    rig.sim.complete_all();
    // A call in which the driver comes to what it could not do before.
    assert_eq!(rig.sim.mismatches(rig.streams[0]), Ok(0));
    assert_eq!(rig.sim.ledger(DEVICE).unwrap().physical_bytes, 0);
}

/// Runs both programs with the fault at each call in turn.
fn sweep(what: &str, fault: impl Fn(u64) -> Fault) {
    for program in [PROGRAM, FOR_ALL] {
        let n = (0..10_000).take_while(|&k| with_fault(program, fault(k), &format!("{what} {k}"))).count();
        assert!(n > 20, "{n} calls were hit");
    }
}

#[test]
fn any_call_may_fail() {
    sweep("call", Fault::nth);
}

#[test]
fn all_calls_may_fail_from_one_on() {
    sweep("from call", |k| Fault::nth(k).from_then_on());
}

#[test]
fn memory_may_run_out_at_any_call() {
    sweep("no memory at", |k| Fault::nth(k).error(DriverError::OutOfMemory));
}
