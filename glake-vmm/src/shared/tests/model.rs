//! The whole pool in a model checker: every order in which few threads may take the locks and see the
//! table of pages. CONTRIBUTING.md says how it is run.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::driver::StreamOrder;
use glake_core::sim::SimConfig;
use glake_core::units::StreamId;
use loom::thread;

use super::rig::{DEVICE, KIB, MIB};
use crate::{Config, SharedPool};

/// Bytes of which one unit holds ten, and no other request.
const TENTH: u64 = 204 * KIB;

/// Runs `program` on a pool and two streams in every order, with up to two threads cut off while they
/// could go on.
fn in_every_order(program: impl Fn(Arc<SharedPool>, [StreamId; 2]) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.max_branches = 10_000;
    model.check(move || {
        let sim = Arc::new(SimConfig::h200(1).memory_bytes(8 * MIB).build());
        let streams = [sim.create_stream(DEVICE).unwrap(), sim.create_stream(DEVICE).unwrap()];
        let pool = Arc::new(SharedPool::new(sim, Config::new(DEVICE)).unwrap());
        program(Arc::clone(&pool), streams);
        pool.check_invariants();
        let stats = pool.stats();
        assert_eq!((stats.n_live, stats.allocated_bytes), (0, 0));
        pool.trim(0).unwrap();
        assert_eq!(pool.stats().reserved_bytes, 0);
        pool.check_invariants();
    });
}

fn allocate(pool: &SharedPool, stream: StreamId, bytes: u64) -> Allocation {
    pool.allocate(Request::new(bytes, stream)).unwrap()
}

#[test]
fn an_object_of_a_fresh_unit_is_freed_by_another_thread() {
    in_every_order(|pool, [first, second]| {
        let (to, from) = loom::sync::mpsc::channel();
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                let allocation: Allocation = from.recv().unwrap();
                pool.free(allocation.ptr, second).unwrap();
            }
        });
        let kept = allocate(&pool, first, KIB);
        to.send(kept).unwrap();
        let mine = allocate(&pool, first, KIB);
        assert_ne!(mine.ptr, kept.ptr);
        pool.free(mine.ptr, first).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn a_refill_runs_beside_frees_on_another_stream() {
    in_every_order(|pool, [first, second]| {
        let full: Vec<_> = (0..10).map(|_| allocate(&pool, first, TENTH)).collect();
        let other = thread::spawn({
            let (pool, freed) = (Arc::clone(&pool), full[0].ptr);
            move || pool.free(freed, second).unwrap()
        });
        let more = allocate(&pool, first, TENTH);
        assert!(full[1..].iter().all(|live| live.ptr != more.ptr));
        other.join().unwrap();
        for allocation in full.into_iter().skip(1).chain([more]) {
            pool.free(allocation.ptr, first).unwrap();
        }
    });
}

#[test]
fn a_unit_goes_back_beside_a_trim_and_a_request() {
    in_every_order(|pool, [first, second]| {
        let mine = allocate(&pool, first, KIB);
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                let theirs = allocate(&pool, second, 6 * MIB);
                pool.trim(0).unwrap();
                pool.free(theirs.ptr, second).unwrap();
            }
        });
        pool.free_soon(mine.ptr, first).unwrap();
        let again = allocate(&pool, first, KIB);
        pool.free(again.ptr, first).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn an_object_for_all_is_freed_by_another_thread_while_more_are_allocated() {
    in_every_order(|pool, [first, _]| {
        let full: Vec<_> = (0..10).map(|_| pool.allocate_for_all(TENTH).unwrap()).collect();
        let other = thread::spawn({
            let (pool, freed) = (Arc::clone(&pool), full[0].ptr);
            move || pool.free_from_anywhere(freed).unwrap()
        });
        let more = pool.allocate_for_all(TENTH).unwrap();
        assert!(full[1..].iter().all(|live| live.ptr != more.ptr));
        assert_eq!(pool.allocation_at(more.ptr + (TENTH - 1)).map(|range| range.start), Some(more.ptr));
        other.join().unwrap();
        for allocation in full.into_iter().skip(1).chain([more]) {
            pool.free(allocation.ptr, first).unwrap();
        }
    });
}

#[test]
fn of_two_frees_of_an_object_one_is_refused() {
    in_every_order(|pool, [first, second]| {
        let object = allocate(&pool, first, KIB);
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.free(object.ptr, second)
        });
        let here = pool.free(object.ptr, first);
        let outcomes = [here, other.join().unwrap()];
        let refused = Err(AllocError::NotAllocated(object.ptr));
        assert_eq!(outcomes.iter().filter(|outcome| **outcome == refused).count(), 1, "{outcomes:?}");
    });
}
