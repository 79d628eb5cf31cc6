//! Streams that end, announced or not, and names that are used again.

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Call, StreamOrder};
use glake_core::units::StreamId;

use super::bench::Bench;
use crate::order::MAX_STREAMS;
use crate::tests::rig::{DEVICE, MIB};

#[test]
fn memory_of_a_destroyed_stream_comes_behind_its_work() {
    for is_announced in [true, false] {
        let (mut bench, [a, gone]) = Bench::busy(|config| config);
        bench.allocate(MIB, a);
        let ptr = bench.allocate(4 * MIB, gone);
        bench.free(ptr, gone);
        let end = bench.spy.moment(gone);
        if is_announced {
            bench.pool.stream_ends(gone).unwrap();
        }
        bench.spy.destroy_stream(gone).unwrap();
        let n_waits = bench.n(Call::Wait);
        assert_eq!(bench.allocate(4 * MIB, a), ptr);
        assert_eq!(bench.n(Call::Wait) - n_waits, 1);
        assert!(bench.spy.is_behind(a, end));
        bench.finish();
    }
}

#[test]
fn a_destroyed_stream_makes_room_for_another_when_its_work_is_done() {
    for is_announced in [true, false] {
        let (mut bench, [a, gone]) = Bench::busy(|config| config);
        bench.allocate(MIB, a);
        let index = bench.pool.order.index_of(gone).unwrap();
        let ptr = bench.allocate(4 * MIB, gone);
        bench.free(ptr, gone);
        if is_announced {
            bench.pool.stream_ends(gone).unwrap();
        }
        bench.spy.destroy_stream(gone).unwrap();
        bench.allocate(4 * MIB, a);
        let early = bench.stream();
        assert_ne!(bench.pool.order.index_of(early), Some(index), "its work is pending");
        bench.sim.complete_all();
        bench.allocate(40 * MIB, a);
        let late = bench.stream();
        assert_eq!(bench.pool.order.index_of(late), Some(index));
        bench.finish();
    }
}

/// The pool has no other way to tell.
#[test]
fn a_name_that_is_used_again_is_another_stream() {
    let (mut bench, [a, name]) = Bench::busy(|config| config);
    bench.allocate(MIB, a);
    let ptr = bench.allocate(4 * MIB, name);
    bench.free(ptr, name);
    bench.pool.stream_ends(name).unwrap();
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(4 * MIB, name), ptr);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    bench.finish();
}

/// Freed under its name, memory of a stream that ended may be in use by that one or by the next.
#[test]
fn what_is_freed_under_a_name_that_is_used_again_comes_behind_both_streams() {
    let (mut bench, [a, name]) = Bench::busy(|config| config);
    bench.allocate(MIB, a);
    let ptr = bench.allocate(4 * MIB, name);
    bench.pool.stream_ends(name).unwrap();
    let other = bench.allocate(6 * MIB, name);
    bench.free(ptr, name);
    let n_waits = bench.n(Call::Wait);
    let got = bench.allocate(4 * MIB, name);
    assert!(got != ptr || bench.n(Call::Wait) > n_waits, "the first stream's work is pending");
    bench.free(other, name);
    bench.finish();
}

/// A new stream has the place of one that ended, though something allocated there lives.
#[test]
fn a_use_by_a_stream_in_the_place_of_the_owner_is_a_use() {
    for bytes in [1000, 4 * MIB] {
        let (mut bench, [a, gone]) = Bench::busy(|config| config);
        bench.allocate(MIB, a);
        let index = bench.pool.order.index_of(gone).unwrap();
        let ptr = bench.allocate(bytes, gone);
        bench.pool.stream_ends(gone).unwrap();
        bench.spy.destroy_stream(gone).unwrap();
        bench.sim.complete_all();
        bench.pool.order.poll(&*bench.spy);
        let heir = bench.stream();
        bench.delay(heir);
        assert_eq!(bench.pool.order.index_of(heir), Some(index));
        bench.use_on(ptr, heir);
        bench.free(ptr, a);
        assert!(!bench.gets(ptr, bytes, a), "{bytes} bytes are in use");
        bench.finish();
    }
}

#[test]
fn streams_beyond_the_most_are_refused_until_some_end() {
    let mut bench = Bench::new(|config| config);
    let streams: Vec<StreamId> = (1..MAX_STREAMS).map(|_| bench.stream()).collect();
    for &stream in &streams {
        bench.pool.allocate(Request::new(512, stream)).unwrap();
    }
    let more = bench.stream();
    assert_eq!(bench.pool.allocate(Request::new(512, more)), Err(AllocError::TooManyStreams));
    for &stream in &streams[..2] {
        bench.pool.stream_ends(stream).unwrap();
        bench.spy.destroy_stream(stream).unwrap();
    }
    assert_eq!(bench.pool.allocate(Request::new(512, more)), Err(AllocError::TooManyStreams), "pending");
    bench.sim.complete_all();
    let got = bench.pool.allocate(Request::new(512, more)).unwrap();
    bench.pool.free(got.ptr, more).unwrap();
    bench.check();
    bench.finish();
}

#[test]
fn a_mark_covers_what_came_before_and_no_more() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    bench.allocate(MIB, b);
    let before = bench.allocate(4 * MIB, a);
    bench.allocate(MIB, a);
    let after = bench.allocate(5 * MIB, a);
    bench.free(before, a);
    let mark = bench.pool.mark();
    bench.sim.complete_all();
    bench.spy.synchronize_all(DEVICE).unwrap();
    bench.work(after, a);
    bench.free(after, a);
    bench.pool.synchronized(mark);
    let n_waits = bench.n(Call::Wait);
    assert!(bench.gets(before, 4 * MIB, b));
    assert_eq!(bench.n(Call::Wait), n_waits);
    assert!(bench.gets(after, 5 * MIB, b));
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    bench.finish();
}

#[test]
fn a_stream_may_end_more_than_once_or_unseen() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    bench.allocate(MIB, a);
    bench.pool.stream_ends(b).unwrap();
    bench.pool.stream_ends(a).unwrap();
    bench.pool.stream_ends(a).unwrap();
    bench.allocate(MIB, a);
    bench.finish();
}
