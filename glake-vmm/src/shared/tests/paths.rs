//! What waits for whom, and what is told.

use glake_core::alloc::{AllocError, Request};
use glake_core::driver::Driver;
use glake_core::units::DevicePtr;

use super::rig::{DEVICE, KIB, MIB, Rig};

/// Runs `work` in another thread that has used stream 0, while this one holds the central lock.
fn while_the_pool_is_locked(rig: &Rig, work: impl FnOnce() + Send) {
    let (go, wait) = std::sync::mpsc::channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            rig.free(rig.allocate(0, KIB), 0);
            ready.send(()).unwrap();
            wait.recv().unwrap();
            work();
        });
        is_ready.recv().unwrap();
        let locked = rig.pool.central.lock().unwrap();
        go.send(()).unwrap();
        thread.join().unwrap();
        drop(locked);
    });
}

#[test]
fn small_objects_of_a_stream_need_no_central_lock_and_no_driver() {
    let rig = Rig::new(1, 1 << 30);
    rig.free(rig.allocate(0, KIB), 0);
    let calls = || rig.sim.ledger(DEVICE).unwrap();
    let before = calls();
    while_the_pool_is_locked(&rig, || {
        let all: Vec<_> = (1..100).map(|i| rig.allocate(0, i * 100)).collect();
        all.into_iter().for_each(|allocation| rig.free(allocation, 0));
    });
    assert_eq!(calls(), before);
    rig.finish();
}

#[test]
fn a_unit_too_many_goes_back_when_the_pool_can_be_had() {
    let rig = Rig::new(1, 1 << 30);
    let all: Vec<_> = (0..40).map(|_| rig.allocate(0, 200 * KIB)).collect();
    assert_eq!(rig.pool.n_units(), 4);
    while_the_pool_is_locked(&rig, || all.iter().for_each(|&allocation| rig.free(allocation, 0)));
    assert_eq!(rig.pool.n_units(), 4);
    rig.allocate(0, MIB);
    assert_eq!(rig.pool.n_units(), 4, "it is no matter");
    let mut small = vec![rig.allocate(0, KIB)];
    rig.free(small.pop().unwrap(), 0);
    assert_eq!(rig.pool.n_units(), 1);
}

#[test]
fn a_free_that_must_not_wait_is_done_by_the_next_call() {
    let rig = Rig::new(2, 1 << 30);
    let large = rig.allocate(0, 5 * MIB);
    let (small, other) = (rig.allocate(0, KIB), rig.allocate(1, KIB));
    while_the_pool_is_locked(&rig, || {
        for allocation in [large, small, other] {
            rig.pool.free_soon(allocation.ptr, allocation.stream).unwrap();
        }
        let again = rig.pool.free_soon(small.ptr, small.stream);
        assert_eq!(again, Err(AllocError::NotAllocated(small.ptr)), "it was freed at once");
    });
    assert_eq!(rig.pool.stats().n_live, 0);
    for allocation in [large, small, other] {
        let again = rig.pool.free_soon(allocation.ptr, allocation.stream);
        assert_eq!(again, Err(AllocError::NotAllocated(allocation.ptr)));
    }
}

#[test]
fn wrong_frees_are_refused() {
    let rig = Rig::new(2, 1 << 30);
    let object = rig.allocate(0, 3 * KIB);
    let kept = rig.allocate(0, KIB);
    let [own, other] = [rig.streams[0], rig.streams[1]];
    let before = rig.pool.stats();
    let inside = object.ptr + 512;
    for ptr in [inside, object.ptr + 1, DevicePtr(0), DevicePtr(u64::MAX), object.ptr + 64 * MIB] {
        for stream in [own, other] {
            assert_eq!(rig.pool.free(ptr, stream), Err(AllocError::NotAllocated(ptr)));
            assert_eq!(rig.pool.free_soon(ptr, stream), Err(AllocError::NotAllocated(ptr)));
            assert_eq!(rig.pool.record_use(ptr, stream), Err(AllocError::NotAllocated(ptr)));
        }
        assert_eq!(rig.pool.free_from_anywhere(ptr), Err(AllocError::NotAllocated(ptr)));
    }
    assert_eq!(rig.pool.stats(), before);
    rig.free(object, 1);
    for stream in [own, other] {
        assert_eq!(rig.pool.free(object.ptr, stream), Err(AllocError::NotAllocated(object.ptr)));
        assert_eq!(rig.pool.record_use(object.ptr, stream), Err(AllocError::NotAllocated(object.ptr)));
    }
    rig.free(kept, 0);
    rig.sim.complete_all();
    rig.finish();
}

#[test]
fn free_units_of_others_are_had_before_memory_runs_out() {
    let rig = Rig::new(2, 16 * MIB);
    rig.free(rig.allocate(0, KIB), 0);
    rig.free(rig.allocate(1, KIB), 1);
    rig.sim.complete_all();
    assert_eq!(rig.pool.n_units(), 2);
    let all = rig.allocate(0, 16 * MIB);
    assert_eq!(rig.pool.n_units(), 0);
    let error = rig.try_allocate(1, KIB).unwrap_err();
    let AllocError::OutOfMemory(report) = error else { panic!("{error}") };
    assert_eq!((report.requested_bytes, report.free_bytes, report.reserved_bytes), (KIB, 0, 16 * MIB));
    assert_eq!(rig.pool.stats().n_failures, 1);
    rig.free(all, 0);
    rig.finish();
}

#[test]
fn a_small_object_lies_apart_where_no_page_is_free() {
    let rig = Rig::new(1, 4 * MIB);
    let large = rig.allocate(0, 3 * MIB - 512);
    let small = rig.allocate(0, KIB);
    assert_eq!(rig.pool.n_units(), 0);
    rig.pool.check_invariants();
    rig.free(large, 0);
    rig.free(small, 0);
    rig.finish();
}

#[test]
fn a_trim_takes_what_is_held_when_the_device_is_done() {
    let rig = Rig::new(2, 1 << 30);
    let all: Vec<_> = (0..20).map(|_| rig.allocate(0, 200 * KIB)).collect();
    all.into_iter().for_each(|allocation| rig.free(allocation, 1));
    assert_eq!(rig.pool.n_units_and_held(rig.streams[0]), (2, 20));
    assert_eq!(rig.pool.stats().allocated_bytes, 0);
    assert_eq!(rig.pool.trim(0).unwrap(), 4 * MIB);
    rig.finish();
}

#[test]
fn a_panic_inside_poisons_the_pool() {
    let rig = Rig::new(1, 1 << 30);
    let object = rig.allocate(0, KIB);
    let index = rig.pool.index_of(rig.streams[0]).unwrap();
    std::thread::scope(|scope| {
        let panics = || {
            let _locked = rig.pool.state(index).unwrap();
            panic!("inside");
        };
        scope.spawn(panics).join().unwrap_err();
    });
    let request = Request::new(KIB, rig.streams[0]);
    assert_eq!(rig.pool.allocate(request), Err(AllocError::Poisoned));
    assert_eq!(rig.pool.free(object.ptr, rig.streams[0]), Err(AllocError::Poisoned));
    assert_eq!(rig.pool.trim(0), Err(AllocError::Poisoned));
    assert_eq!(rig.pool.stats().requested_bytes, KIB, "figures can still be read");
}
