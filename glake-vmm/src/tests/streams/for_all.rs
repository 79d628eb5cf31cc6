//! Memory for every stream and the host at once.

use glake_core::alloc::AllocError;
use glake_core::driver::{Call, StreamOrder};
use glake_core::sim::SimConfig;
use glake_core::units::DevicePtr;

use super::bench::Bench;
use super::frees::no_context_events;
use crate::Mode;
use crate::tests::rig::{DEVICE, MIB};

const SIZES: [u64; 2] = [1000, 4 * MIB];

/// Calls by which somebody waits.
fn n_waits(bench: &Bench) -> u64 {
    bench.n(Call::Wait) + bench.n(Call::Synchronize)
}

#[test]
fn memory_whose_work_is_done_serves_all_without_a_wait() {
    for n_before in [0, 1] {
        let mut bench = Bench::over(SimConfig::h200(1), |config| config);
        let a = bench.stream();
        for _ in 0..n_before {
            bench.allocate_for_all(MIB);
        }
        // Where there is one stream only, nobody has asked for an event.
        let ptr = bench.allocate(8 * MIB, a);
        bench.free(ptr, a);
        let (reserved, before) = (bench.physical_bytes(), n_waits(&bench));
        assert_eq!(bench.allocate_for_all(4 * MIB), ptr);
        assert_eq!(bench.allocate_for_all(4 * MIB), ptr + 4 * MIB);
        assert_eq!((bench.physical_bytes(), n_waits(&bench)), (reserved, before));
        bench.finish();
    }
}

#[test]
fn pending_memory_does_not_serve_all_while_there_is_other() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config);
        let [first, second] = [a, b].map(|stream| bench.allocate(bytes, stream));
        bench.free(first, a);
        bench.free(second, b);
        let before = n_waits(&bench);
        let all = bench.allocate_for_all(bytes);
        assert!(all != first && all != second);
        // At once, by anybody.
        bench.work(all, a);
        bench.work(all, b);
        bench.free_from_anywhere(all, &[a, b]);
        let again = bench.allocate_for_all(bytes);
        assert_ne!(again, all, "both are still at it");
        assert_eq!(n_waits(&bench), before);
        bench.sim.complete_all();
        bench.free(again, a);
        bench.finish();
    }
}

#[test]
fn handles_move_for_all_once_their_work_is_done() {
    let mut bench = Bench::over(SimConfig::h200(1), |config| config.mode(Mode::Compact));
    let a = bench.stream();
    let pieces: Vec<DevicePtr> = (0..8).map(|_| bench.allocate(4 * MIB, a)).collect();
    pieces.iter().step_by(2).for_each(|&ptr| bench.free(ptr, a));
    let (reserved, before) = (bench.physical_bytes(), n_waits(&bench));
    bench.allocate_for_all(16 * MIB);
    assert_eq!((bench.physical_bytes(), n_waits(&bench)), (reserved, before));
    assert!(bench.pool.counters.n_stitches > 0);
    bench.finish();
}

#[test]
fn out_of_memory_the_host_waits_for_the_oldest_work_that_suffices() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(20 * MIB));
        let first = bench.allocate(bytes, a);
        let rest = bench.allocate(18 * MIB - bytes.next_multiple_of(2 * MIB), a);
        let other = bench.allocate(2 * MIB, b);
        bench.free(rest, a);
        bench.free(other, b);
        bench.delay(b);
        let (n_b, before) = (bench.sim.n_pending(b).unwrap(), n_waits(&bench));
        bench.allocate_for_all(4 * MIB);
        assert_eq!(n_waits(&bench) - before, 1);
        assert!(bench.sim.n_pending(b).unwrap() >= n_b, "nobody waited for the other stream");
        // Of the rest of the same work, no wait is needed.
        bench.allocate_for_all(4 * MIB);
        assert_eq!(n_waits(&bench) - before, 1);
        bench.free(first, a);
        bench.finish();
    }
}

#[test]
fn out_of_memory_handles_move_behind_a_wait_of_the_host() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.mode(Mode::Compact).limit_bytes(16 * MIB));
    let pieces: Vec<DevicePtr> = (0..4).map(|_| bench.allocate(4 * MIB, a)).collect();
    bench.free(pieces[0], a);
    bench.free(pieces[2], b);
    bench.allocate_for_all(8 * MIB);
    let refused = bench.try_allocate_for_all(4 * MIB);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    bench.finish();
}

#[test]
fn memory_for_all_goes_to_a_stream_behind_its_free() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(4 * MIB));
        let ptr = bench.allocate_for_all(bytes);
        bench.use_on(ptr, b);
        bench.work(ptr, a);
        bench.free(ptr, a);
        bench.allocate(4 * MIB, b);
        bench.finish();
    }
}

#[test]
fn captures_keep_their_memory_from_all_and_are_not_broken() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(16 * MIB));
        let memory = bench.begin_capture(a);
        let freed = bench.allocate(bytes, a);
        bench.free(freed, a);
        let pending = bench.allocate(12 * MIB, b);
        bench.free(pending, b);
        assert_eq!(bench.allocate_for_all(12 * MIB), pending, "behind a wait");
        let refused = bench.try_allocate_for_all(4 * MIB);
        assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
        let graph = bench.end_capture(a);
        bench.sim.launch(graph, b).unwrap();
        let refused = bench.try_allocate_for_all(4 * MIB);
        assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
        bench.is_watched = false;
        drop(memory);
        bench.allocate_for_all(4 * MIB);
        assert_eq!(bench.sim.n_pending(b), Ok(0), "the launch came first");
        bench.finish();
    }
}

#[test]
fn a_capture_may_use_memory_for_all_and_free_it() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(16 * MIB));
        let ptr = bench.allocate_for_all(bytes);
        let memory = bench.begin_capture(a);
        bench.work(ptr, a);
        bench.free(ptr, a);
        bench.allocate(2 * MIB, b);
        let got = (0..8).map_while(|_| bench.try_allocate_for_all(2 * MIB).ok()).count();
        assert!((5..7).contains(&got), "all but what the graph has: {got}");
        bench.end_capture(a);
        memory.finished();
        bench.is_watched = false;
        bench.allocate_for_all(2 * MIB);
        bench.finish();
    }
}

/// A driver without events of a context.
#[test]
fn on_an_old_driver_what_was_freed_from_anywhere_serves_all_before_memory_is_out() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(4 * MIB));
        no_context_events(&bench);
        for _ in 0..2 {
            let ptr = bench.allocate_for_all(bytes);
            bench.work(ptr, a);
            bench.work(ptr, b);
            bench.free_from_anywhere(ptr, &[a, b]);
            let all = bench.allocate_for_all(4 * MIB);
            bench.free(all, b);
        }
        bench.sim.clear_faults();
        bench.finish();
    }
}

#[test]
fn where_the_host_is_the_only_taker_nothing_waits() {
    for bytes in SIZES {
        let mut bench = Bench::new(|config| config);
        let ptr = bench.allocate_for_all(bytes);
        let mark = bench.pool.mark();
        bench.oracle.freed(ptr, glake_core::units::StreamId::LEGACY);
        bench.pool.free_from_anywhere(ptr).unwrap();
        bench.spy.synchronize_all(DEVICE).unwrap();
        bench.pool.synchronized(mark);
        bench.allocate_for_all(bytes);
        bench.finish();
    }
}

#[test]
fn requests_for_all_are_checked_and_counted() {
    let mut bench = Bench::new(|config| config.limit_bytes(4 * MIB));
    assert_eq!(bench.try_allocate_for_all(0), Err(AllocError::ZeroBytes));
    assert_eq!(bench.try_allocate_for_all(u64::MAX), Err(AllocError::TooLarge { bytes: u64::MAX }));
    let refused = bench.try_allocate_for_all(5 * MIB);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(report)) if report.requested_bytes == 5 * MIB));
    bench.allocate_for_all(MIB + 1);
    let c = bench.pool.counters;
    assert_eq!((c.n_allocations, c.n_failures, c.requested_bytes), (1, 1, MIB + 1));
    assert_eq!(c.allocated_bytes, MIB + 512);
    bench.finish();
}
