//! Frees on other streams, by other threads and from anywhere; uses that are told.

use std::thread;

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::{Call, Driver, DriverError, StreamOrder};
use glake_core::sim::{Fault, Target};
use glake_core::units::StreamId;

use super::bench::Bench;
use crate::tests::rig::{DEVICE, MIB};

const SIZES: [u64; 2] = [1000, 20 * MIB];

/// Makes the next event of a whole context one that the driver does not have: CUDA before 12.5.
pub(super) fn no_context_events(bench: &Bench) {
    bench.sim.plan(
        Fault::nth(0).of(Target::One(Call::Record)).error(DriverError::NotSupported("")).from_then_on(),
    );
}

#[test]
fn a_free_on_another_stream_takes_effect_there() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config);
        bench.allocate(1000, b);
        let handed_over = bench.allocate(bytes, a);
        bench.order(a, b);
        bench.work(handed_over, b);
        let moment = bench.spy.moment(b);
        bench.free(handed_over, b);
        let n_calls = bench.n_calls();
        assert!(bytes == 1000 || bench.gets(handed_over, bytes, b), "b has it at once");
        assert!(bench.n_calls() - n_calls <= 2, "but for an event");
        if bench.gets(handed_over, bytes, a) {
            assert!(bench.spy.is_behind(a, moment));
        }
        bench.finish();
    }
}

#[test]
fn memory_is_held_for_a_use_that_was_told() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config);
        let shared = bench.allocate(bytes, a);
        bench.order(a, b);
        bench.use_on(shared, b);
        bench.free(shared, a);
        assert_eq!(bench.pool.held.len(), 1);
        assert!(!bench.gets(shared, bytes, a), "not even its own stream");
        // Looking for memory, the pool asks for an event, and then whether it has passed.
        for probe_bytes in [40 * MIB, 80 * MIB] {
            bench.allocate(probe_bytes, b);
            bench.sim.complete_all();
        }
        bench.allocate(160 * MIB, b);
        assert_eq!(bench.pool.held.len(), 0, "released when the pool looks for memory");
        bench.finish();
    }
}

#[test]
fn held_memory_is_released_once_its_stream_waits_for_the_use() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let [shared, of_b] = [a, b].map(|stream| bench.allocate(20 * MIB, stream));
    bench.order(a, b);
    bench.use_on(shared, b);
    bench.free(shared, a);
    bench.free(of_b, b);
    assert_eq!(bench.allocate(20 * MIB, a), of_b, "behind the use, too");
    let n_waits = bench.n(Call::Wait);
    assert!(bench.gets(shared, 20 * MIB, a));
    assert_eq!(bench.n(Call::Wait), n_waits);
    bench.finish();
}

/// A third stream that has waited for an event from before is not behind the use.
#[test]
fn memory_that_was_held_counts_as_used_until_its_release() {
    let (mut bench, [a, b, c]) = Bench::busy(|config| config);
    let early = bench.allocate(16 * MIB, a);
    let shared = bench.allocate(4 * MIB, a);
    let of_b = bench.allocate(6 * MIB, b);
    bench.allocate(MIB, c);
    bench.order(a, b);
    bench.use_on(shared, b);
    bench.free(shared, a);
    // Behind this event there is the free, but not the wait for the use.
    bench.free(early, a);
    assert_eq!(bench.allocate(16 * MIB, c), early);
    bench.free(of_b, b);
    assert_eq!(bench.allocate(6 * MIB, a), of_b);
    let last = bench.allocate(MIB, a);
    bench.free(last, a);
    assert_eq!(bench.pool.held.len(), 0, "a is behind the use");
    let used = bench.spy.moment(b);
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(4 * MIB, c), shared);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    assert!(!bench.spy.is_behind(c, used), "no later work of b");
    bench.finish();
}

/// What is told of the allocation's own stream counts where it is freed on another.
#[test]
fn a_use_on_its_own_stream_is_a_use() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config);
        bench.allocate(1000, b);
        let shared = bench.allocate(bytes, a);
        bench.order(a, b);
        bench.use_on(shared, a);
        bench.free(shared, b);
        assert!(!bench.gets(shared, bytes, b), "b is not behind the use of {bytes} bytes on a");
        bench.finish();
    }
}

#[test]
fn a_use_of_what_is_not_allocated_is_refused() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    for bytes in SIZES {
        let ptr = bench.allocate(bytes, a);
        bench.order(a, b);
        bench.use_on(ptr, b);
        bench.free(ptr, a);
        assert_eq!(bench.pool.record_use(ptr, b), Err(AllocError::NotAllocated(ptr)), "it is held");
        assert_eq!(bench.pool.free(ptr, a), Err(AllocError::NotAllocated(ptr)));
        assert_eq!(bench.pool.free_from_anywhere(ptr), Err(AllocError::NotAllocated(ptr)));
    }
    assert!(bench.pool.users.is_empty());
    bench.finish();
}

#[test]
fn the_default_stream_of_another_thread_is_another_stream() {
    for bytes in SIZES {
        let mut bench = Bench::new(|config| config);
        let mine = StreamId::PER_THREAD;
        let ptr = bench.allocate(bytes, mine);
        let n_waits = bench.n(Call::Wait);
        let bench = thread::scope(|scope| {
            let theirs = scope.spawn(move || {
                // Freed here: who used it last is not known.
                bench.free(ptr, mine);
                let got = bench.allocate(bytes, mine);
                if got == ptr {
                    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
                }
                bench.free(got, mine);
                bench
            });
            theirs.join().unwrap()
        });
        bench.finish();
    }
}

/// Threads that end leave work behind.
#[test]
fn what_a_thread_freed_on_its_default_stream_comes_behind_a_context_event() {
    let mut bench = Bench::new(|config| config);
    let a = bench.stream();
    bench.allocate(MIB, a);
    let (mut bench, ptr) = thread::scope(|scope| {
        let theirs = scope.spawn(move || {
            let ptr = bench.allocate(4 * MIB, StreamId::PER_THREAD);
            bench.free(ptr, StreamId::PER_THREAD);
            (bench, ptr)
        });
        theirs.join().unwrap()
    });
    let (n_waits, n_pending) = (bench.n(Call::Wait), bench.sim.n_pending(a).unwrap());
    assert_eq!(bench.allocate(4 * MIB, a), ptr);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    bench.sim.complete(a, n_pending + 10).unwrap();
    assert!(bench.sim.n_pending(a).unwrap() > 0, "the other thread's work comes first");
    bench.finish();
}

#[test]
fn what_is_freed_from_anywhere_comes_behind_a_context_event() {
    let (mut bench, [a, foreign]) = Bench::busy(|config| config);
    let ptr = bench.allocate(4 * MIB, a);
    bench.order(a, foreign);
    bench.work(ptr, foreign);
    bench.oracle.used(ptr, foreign);
    bench.oracle.freed(ptr, a);
    bench.pool.free_from_anywhere(ptr).unwrap();
    let n_waits = bench.n(Call::Wait);
    assert_eq!(bench.allocate(4 * MIB, a), ptr);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1, "even its own stream");
    bench.finish();
}

/// A driver without such events: memory comes back when somebody has seen the device idle, or before a
/// request fails.
#[test]
fn without_context_events_what_is_freed_from_anywhere_comes_back_in_time() {
    for bytes in SIZES {
        for way in ["synchronized", "trim", "exhaustion"] {
            let (mut bench, [a, foreign]) = Bench::busy(|config| config.limit_bytes(20 * MIB));
            let ptr = bench.allocate(bytes, a);
            bench.order(a, foreign);
            bench.work(ptr, foreign);
            bench.oracle.used(ptr, foreign);
            bench.oracle.freed(ptr, a);
            no_context_events(&bench);
            bench.pool.free_from_anywhere(ptr).unwrap();
            match way {
                "synchronized" => {
                    let mark = bench.pool.mark();
                    bench.sim.complete_all();
                    bench.spy.synchronize_all(DEVICE).unwrap();
                    bench.pool.synchronized(mark);
                    assert_eq!(bench.allocate(bytes, a), ptr);
                }
                "trim" => {
                    assert_eq!(bench.pool.trim(0), Ok(bench.pool.counters.peak_reserved_bytes));
                }
                _ => drop(bench.allocate(20 * MIB, a)),
            }
            bench.sim.clear_faults();
            bench.finish();
        }
    }
}

/// Neither the first nor a later request.
#[test]
fn the_first_request_that_learns_that_there_are_no_context_events_is_served() {
    let (mut bench, [a]) = Bench::busy(|config| config.limit_bytes(8 * MIB));
    let ptr = bench.allocate(8 * MIB, a);
    bench.oracle.freed(ptr, a);
    bench.pool.free_from_anywhere(ptr).unwrap();
    no_context_events(&bench);
    assert_eq!(bench.allocate(8 * MIB, a), ptr);
    bench.sim.clear_faults();
    bench.finish();
}

/// The whole device cannot be waited for then.
#[test]
fn a_request_during_a_capture_on_an_old_driver_says_that_memory_is_out() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(8 * MIB));
    no_context_events(&bench);
    for is_captured in [false, true] {
        let ptr = bench.allocate(8 * MIB, a);
        bench.oracle.freed(ptr, a);
        bench.pool.free_from_anywhere(ptr).unwrap();
        if is_captured {
            let memory = bench.pool.begin_capture(b).unwrap();
            let refused = bench.try_allocate(8 * MIB, a);
            assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
            bench.pool.end_capture(b);
            memory.finished();
        }
        assert_eq!(bench.allocate(8 * MIB, a), ptr);
        bench.free(ptr, a);
    }
    bench.sim.clear_faults();
    bench.finish();
}

#[test]
fn a_pool_that_is_dropped_waits_for_what_was_freed_from_anywhere() {
    for bytes in SIZES {
        let (mut bench, [a, foreign]) = Bench::busy(|config| config);
        let ptr = bench.allocate(bytes, a);
        bench.order(a, foreign);
        bench.work(ptr, foreign);
        bench.pool.free_from_anywhere(ptr).unwrap();
        let Bench { sim, pool, .. } = bench;
        drop(pool);
        while sim.complete(a, 100).unwrap() > 0 {}
        assert!(sim.ledger(DEVICE).unwrap().physical_bytes > 0, "{bytes} bytes are in use elsewhere");
        sim.complete_all();
        sim.synchronize_all(DEVICE).expect("nothing was unmapped under work");
        assert_eq!(sim.ledger(DEVICE).unwrap().physical_bytes, 0);
    }
}

/// The one stream ends, and the next one has its place: it is not alone with what others may use.
#[test]
fn what_is_freed_from_anywhere_outlives_the_only_stream() {
    let (mut bench, [a, foreign]) = Bench::busy(|config| config);
    let ptr = bench.allocate(4 * MIB, a);
    bench.order(a, foreign);
    bench.work(ptr, foreign);
    bench.delay(foreign);
    bench.oracle.used(ptr, foreign);
    bench.oracle.freed(ptr, a);
    bench.pool.free_from_anywhere(ptr).unwrap();
    bench.pool.stream_ends(a).unwrap();
    while bench.sim.complete(a, 100).unwrap() > 0 {}
    bench.pool.order.poll(&*bench.spy);
    let next = bench.stream();
    let n_waits = bench.n(Call::Wait);
    let got = bench.allocate(4 * MIB, next);
    assert!(got != ptr || bench.n(Call::Wait) > n_waits, "its work is pending elsewhere");
    bench.finish();
}
