//! Which bytes a stream gets, and behind which waits.

use glake_core::driver::Call;
use glake_core::units::{DevicePtr, StreamId};

use super::bench::Bench;
use crate::Mode;
use crate::tests::rig::MIB;

/// Allocates one behind the other, with something live in between that keeps them apart.
fn apart<const N: usize>(bench: &mut Bench, asked: [(u64, StreamId); N]) -> [DevicePtr; N] {
    asked.map(|(bytes, stream)| {
        let ptr = bench.allocate(bytes, stream);
        bench.allocate(MIB, stream);
        ptr
    })
}

#[test]
fn own_bytes_are_reused_at_once_and_without_a_driver_call() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    for bytes in [1000, 5 * MIB] {
        let first = bench.allocate(bytes, a);
        bench.allocate(bytes, b);
        bench.free(first, a);
        let n_calls = bench.n_calls();
        assert_eq!(bench.allocate(bytes, a), first);
        assert_eq!(bench.n_calls(), n_calls);
    }
    bench.finish();
}

#[test]
fn pending_bytes_of_another_stream_come_behind_one_wait_for_each_stream() {
    let (mut bench, [a, b, c]) = Bench::busy(|config| config);
    let [first, second, third] = [a, b, a].map(|stream| bench.allocate(4 * MIB, stream));
    bench.allocate(MIB, c);
    bench.free(first, a);
    bench.free(second, b);
    bench.free(third, a);
    let (n_waits, reserved) = (bench.n(Call::Wait), bench.physical_bytes());
    assert_eq!(bench.allocate(12 * MIB, c), first, "all three");
    assert_eq!(bench.n(Call::Wait) - n_waits, 2, "two streams used them");
    assert_eq!(bench.physical_bytes(), reserved);
    bench.finish();
}

#[test]
fn bytes_that_are_ready_are_preferred_to_those_behind_a_wait() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let [pending, own] = apart(&mut bench, [(4 * MIB, a), (5 * MIB, b)]);
    bench.free(pending, a);
    bench.free(own, b);
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(4 * MIB, b), own, "the longer one, but without a wait");
    assert_eq!(bench.n(Call::Wait), n_waits);
    bench.finish();
}

#[test]
fn bytes_whose_work_is_done_need_no_wait() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    bench.allocate(MIB, b);
    let freed = bench.allocate(16 * MIB, a);
    bench.free(freed, a);
    bench.sim.complete_all();
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(16 * MIB, b), freed);
    assert_eq!(bench.n(Call::Wait), n_waits);
    bench.finish();
}

#[test]
fn a_wait_is_for_the_earliest_event_behind_the_free() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    bench.allocate(MIB, b);
    let [early, wanted, late] = apart(&mut bench, [(18 * MIB, a), (20 * MIB, a), (17 * MIB, a)]);
    bench.free(early, a);
    let freed = bench.spy.moment(a);
    bench.free(wanted, a);
    let before = bench.spy.moment(a);
    bench.delay(a);
    bench.free(late, a);
    assert!(!bench.spy.is_behind(b, freed));
    assert_eq!(bench.allocate(20 * MIB, b), wanted);
    assert!(bench.spy.is_behind(b, freed));
    assert!(!bench.spy.is_behind(b, before), "b waits for nothing that came after the free");
    bench.finish();
}

#[test]
fn what_was_waited_for_once_needs_no_other_wait() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    bench.allocate(MIB, b);
    let [first, second] = apart(&mut bench, [(4 * MIB, a), (5 * MIB, a)]);
    bench.free(first, a);
    bench.free(second, a);
    assert_eq!(bench.allocate(5 * MIB, b), second);
    let n_calls = bench.n_calls();
    assert_eq!(bench.allocate(4 * MIB, b), first);
    assert_eq!(bench.n_calls(), n_calls);
    // What is freed after the event is not behind the wait.
    let third = bench.allocate(7 * MIB, a);
    bench.allocate(MIB, a);
    bench.free(third, a);
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(7 * MIB, b), third);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    bench.finish();
}

#[test]
fn who_waits_for_a_stream_is_behind_what_that_has_waited_for() {
    let (mut bench, [a, b, c]) = Bench::busy(|config| config);
    let [first, second] = apart(&mut bench, [(4 * MIB, a), (5 * MIB, a)]);
    let [of_b] = apart(&mut bench, [(6 * MIB, b)]);
    bench.allocate(MIB, c);
    bench.free(first, a);
    bench.free(second, a);
    assert_eq!(bench.allocate(5 * MIB, b), second, "b waits for a");
    bench.free(of_b, b);
    assert_eq!(bench.allocate(6 * MIB, c), of_b, "c waits for b");
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(4 * MIB, c), first);
    assert_eq!(bench.n(Call::Wait), n_waits, "so it is behind a");
    bench.finish();
}

#[test]
fn an_event_tells_only_what_its_stream_had_waited_for_by_then() {
    let (mut bench, [a, b, c]) = Bench::busy(|config| config);
    let [first, second] = apart(&mut bench, [(6 * MIB, a), (9 * MIB, a)]);
    let of_b = apart(&mut bench, [(7 * MIB, b); 4]);
    bench.allocate(MIB, c);
    bench.free(first, a);
    bench.free(second, a);
    of_b.into_iter().for_each(|ptr| bench.free(ptr, b));
    assert_eq!(bench.allocate(9 * MIB, b), second, "b waits for a, after its event");
    // Those before the event.
    for _ in 0..3 {
        assert!(of_b.contains(&bench.allocate(7 * MIB, c)), "c waits for the event of b");
    }
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(6 * MIB, c), first);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1, "which is not behind a");
    bench.finish();
}

#[test]
fn an_event_is_recorded_for_16_mib_freed_and_none_where_there_is_one_stream() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let blocks: Vec<DevicePtr> = (0..20).map(|_| bench.allocate(4 * MIB, a)).collect();
    for &block in &blocks[..10] {
        bench.free(block, a);
    }
    assert_eq!(bench.n(Call::Record), 0, "nobody else is there");
    bench.allocate(1000, b);
    let n_records = bench.n(Call::Record);
    for (i, &block) in (1..).zip(&blocks[10..]) {
        bench.free(block, a);
        assert_eq!(bench.n(Call::Record) - n_records, i / 4, "after {i} times 4 MiB");
    }
    bench.finish();
}

#[test]
fn bytes_keep_their_tags_when_their_handles_move() {
    let (mut bench, [a, b, c]) = Bench::busy(|config| config.mode(Mode::Compact));
    bench.allocate(1000, c);
    let [of_a, of_b, pinned] = apart(&mut bench, [(3 * MIB, a), (3 * MIB, b), (2 * MIB, c)]);
    assert_ne!(of_a, pinned);
    let moments = [a, b].map(|stream| bench.spy.moment(stream));
    bench.free(of_a, a);
    bench.free(of_b, b);
    bench.pool.set_limit_bytes(bench.physical_bytes()).unwrap();
    let n_waits = bench.n(Call::Wait);
    let of_c = bench.allocate(4 * MIB, c);
    assert!(bench.pool.counters.n_stitches > 0, "{of_c:?} is stitched");
    assert_eq!(bench.n(Call::Wait) - n_waits, 2);
    assert!(moments.iter().all(|&moment| bench.spy.is_behind(c, moment)));
    bench.finish();
}

/// The donors are the stream's own handles, then those that are ready, then those used longest ago.
#[test]
fn donors_are_own_then_ready_then_oldest() {
    let (mut bench, [own, ready, old, young]) = Bench::busy(|config| config.mode(Mode::Compact));
    let at = apart(&mut bench, [own, young, ready, old].map(|stream| (3 * MIB, stream)));
    // What an allocation of 2 MiB and more has in whole pages of its own.
    let handles = at.map(|ptr| {
        let page = crate::units::page_of((ptr - bench.pool.arena.start).next_multiple_of(2 * MIB));
        bench.pool.slots.slot(page).home
    });
    bench.free(at[2], ready);
    let index = bench.pool.order.index_of(ready).unwrap();
    bench.pool.order.close_epoch(index, &*bench.spy).unwrap();
    bench.sim.complete_all();
    for (ptr, stream) in [(at[3], old), (at[1], young), (at[0], own)] {
        bench.delay(stream);
        let index = bench.pool.order.index_of(stream).unwrap();
        bench.pool.order.close_epoch(index, &*bench.spy).unwrap();
        bench.free(ptr, stream);
        bench.pool.order.close_epoch(index, &*bench.spy).unwrap();
    }
    bench.pool.set_limit_bytes(bench.physical_bytes()).unwrap();
    let homes = |bench: &Bench| handles.map(|handle| bench.pool.slots.handle(handle).home);
    let before = homes(&bench);
    let moved = |bench: &Bench| {
        let after = homes(bench);
        [0, 1, 2, 3].map(|i| after[i] != before[i])
    };
    for (bytes, who) in [(4 * MIB, [true, false, true, false]), (6 * MIB, [true, false, true, true])] {
        let got = bench.allocate(bytes, own);
        assert_eq!(moved(&bench), who, "{bytes} bytes");
        bench.free(got, own);
        if bytes == 4 * MIB {
            bench.check();
        }
    }
    bench.finish();
}

#[test]
fn a_stale_mapping_stays_for_the_uses_of_all_streams() {
    let (mut bench, [a, b, c]) = Bench::busy(|config| config.mode(Mode::Compact));
    let streams = [a, b, c].map(|stream| bench.pool.order.index_of(stream).unwrap());
    // Two streams in one handle.
    let halves = [a, b].map(|stream| bench.allocate(MIB, stream));
    let pinned = bench.allocate(2 * MIB, c);
    let other = bench.allocate(2 * MIB, a);
    bench.allocate(2 * MIB, c);
    bench.free(halves[0], a);
    bench.free(halves[1], b);
    bench.free(other, a);
    bench.pool.set_limit_bytes(bench.physical_bytes()).unwrap();
    bench.allocate(4 * MIB, c);
    assert_eq!(bench.pool.stale.iter().count(), 2, "{pinned:?} stays in between");
    let mapping = bench.pool.stale.at(0).expect("the first page is stale").clone();
    let mut users: Vec<_> = mapping.uses.iter().map(|tag| tag.stream).collect();
    users.sort_unstable();
    assert_eq!(users, streams[..2]);
    // Done on one of them, its place is still taken; done on both, it is free.
    for (stream, is_free) in [(a, false), (b, true)] {
        while bench.sim.complete(stream, 100).unwrap() > 0 {}
        bench.pool.order.poll(&*bench.spy);
        let is_done = mapping.uses.iter().all(|&tag| bench.pool.order.is_done(tag));
        assert_eq!(is_done, is_free);
    }
    bench.finish();
}

#[test]
fn small_objects_are_ordered_by_units() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(2 * MIB));
    let first = bench.allocate(1000, a);
    bench.free(first, a);
    // The only page is a's spare unit.
    let n_waits = bench.n(Call::Wait);
    let second = bench.allocate(1000, b);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    bench.free(second, b);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    assert!(bench.gets(second, 1000, b));
    bench.finish();
}
