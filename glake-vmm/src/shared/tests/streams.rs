//! Objects that several streams use, streams that end, and captures.

use glake_core::units::StreamId;

use super::rig::{KIB, MIB, Rig};

/// Fills the unit of stream 0 but for `hole`, which is the only room for 200 KiB there.
fn unit_with_room(rig: &Rig) -> (Vec<glake_core::alloc::Allocation>, glake_core::alloc::Allocation) {
    let mut all: Vec<_> = (0..10).map(|_| rig.allocate(0, 204 * KIB)).collect();
    let hole = all.pop().unwrap();
    (all, hole)
}

#[test]
fn an_object_freed_on_another_stream_is_held_until_that_is_done() {
    let rig = Rig::new(2, 1 << 30);
    let (all, hole) = unit_with_room(&rig);
    enqueue(&rig, 1);
    rig.free(hole, 1);
    let elsewhere = rig.allocate(0, 204 * KIB);
    assert_ne!(elsewhere.ptr, hole.ptr, "stream 1 may still use it");
    rig.sim.complete_all();
    // The second unit has room for nine more; the next look is when it is full.
    let more: Vec<_> = (0..10).map(|_| rig.allocate(0, 204 * KIB)).collect();
    assert_eq!(more[9].ptr, hole.ptr);
    for allocation in all.into_iter().chain(more).chain([elsewhere]) {
        rig.free(allocation, 0);
    }
    rig.finish();
}

/// Work on a stream that is not done by itself.
fn enqueue(rig: &Rig, stream: usize) {
    use glake_core::driver::DeviceOps;
    let at = rig.allocate(stream, MIB);
    let range = glake_core::units::AddressRange::new(at.ptr, 64);
    rig.sim.fill_pattern(range, 1, rig.streams[stream]).unwrap();
    rig.free(at, stream);
}

#[test]
fn an_object_that_another_stream_uses_is_held_until_that_is_done() {
    let rig = Rig::new(2, 1 << 30);
    let (all, hole) = unit_with_room(&rig);
    rig.record_use(hole, 1);
    rig.record_use(hole, 0);
    rig.pool.check_invariants();
    enqueue(&rig, 1);
    rig.free(hole, 0);
    assert_eq!(rig.pool.n_units_and_held(rig.streams[0]), (1, 1));
    assert_ne!(rig.allocate(0, 204 * KIB).ptr, hole.ptr);
    rig.pool.check_invariants();
    drop(all);
}

#[test]
fn memory_that_its_own_stream_is_said_to_use_and_another_frees_waits_for_both() {
    let rig = Rig::new(2, 1 << 30);
    let object = rig.allocate(0, 4 * MIB);
    rig.record_use(object, 0);
    enqueue(&rig, 0);
    rig.free(object, 1);
    // The oracle looks whether stream 1 runs behind stream 0, if it is given the same memory.
    let other = rig.allocate(1, 4 * MIB);
    assert_ne!(other.ptr, object.ptr, "stream 0 may still use it");
    rig.free(other, 1);
    rig.sim.complete_all();
    rig.finish();
}

#[test]
fn an_object_freed_from_anywhere_is_held_until_the_device_is_done() {
    let rig = Rig::new(2, 1 << 30);
    let object = rig.allocate(0, KIB);
    enqueue(&rig, 1);
    rig.oracle.lock().unwrap().freed(object.ptr, rig.streams[0]);
    rig.pool.free_from_anywhere(object.ptr).unwrap();
    assert_eq!(rig.pool.n_units_and_held(rig.streams[0]), (1, 1));
    let mark = rig.pool.mark().unwrap();
    rig.sim.complete_all();
    rig.pool.synchronized(mark).unwrap();
    assert_eq!(rig.pool.n_units_and_held(rig.streams[0]), (1, 0));
    rig.finish();
}

#[test]
fn the_default_stream_of_each_thread_is_another_one() {
    let rig = Rig::new(1, 1 << 30);
    let request = glake_core::alloc::Request::new(KIB, StreamId::PER_THREAD);
    let mine = rig.pool.allocate(request).unwrap();
    let free_mine = || rig.pool.free(mine.ptr, StreamId::PER_THREAD).unwrap();
    std::thread::scope(|scope| {
        let theirs = scope.spawn(|| rig.pool.allocate(request).unwrap()).join().unwrap();
        assert_ne!(theirs.ptr.0 >> 21, mine.ptr.0 >> 21, "they lie in units of their own");
        rig.pool.free(theirs.ptr, StreamId::PER_THREAD).unwrap();
        scope.spawn(free_mine).join().unwrap();
    });
    assert_eq!(rig.pool.n_units_and_held(StreamId::PER_THREAD), (1, 1));
    rig.pool.check_invariants();
    rig.finish();
}

#[test]
fn a_stream_that_ends_leaves_its_name() {
    use glake_core::driver::StreamOrder;
    let rig = Rig::new(2, 1 << 30);
    let first = rig.allocate(0, KIB);
    let before = rig.pool.index_of(rig.streams[0]).unwrap();
    rig.pool.stream_ends(rig.streams[0]).unwrap();
    assert_ne!(rig.pool.index_of(rig.streams[0]).unwrap(), before, "what was told of the name is void");
    rig.free(first, 1);
    rig.sim.complete_all();
    rig.sim.destroy_stream(rig.streams[0]).unwrap();
    rig.pool.check_invariants();
}

#[test]
fn small_objects_of_a_capture_lie_in_units_of_the_graph() {
    let rig = Rig::new(1, 1 << 30);
    let before = rig.allocate(0, KIB);
    let memory = rig.pool.begin_capture(rig.streams[0]).unwrap();
    let captured = rig.allocate(0, KIB);
    assert_ne!(captured.ptr.0 >> 21, before.ptr.0 >> 21);
    rig.free(captured, 0);
    let again = rig.allocate(0, KIB);
    assert_eq!(again.ptr, captured.ptr, "the graph uses its memory again");
    rig.free(again, 0);
    rig.pool.end_capture(rig.streams[0]).unwrap();
    let after = rig.allocate(0, KIB);
    assert_eq!(after.ptr.0 >> 21, before.ptr.0 >> 21, "the stream is what it was");
    assert_eq!(rig.pool.n_units(), 2);
    rig.pool.check_invariants();
    memory.finished();
    rig.free(before, 0);
    rig.free(after, 0);
    rig.finish();
}
