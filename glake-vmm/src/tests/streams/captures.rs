//! Captures: a graph's memory is its own for as long as it may be launched.

use std::thread;

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Call, DriverError, StreamOrder};
use glake_core::sim::{GraphId, SimConfig};
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use glake_testkit::spy::Extent;

use super::bench::Bench;
use crate::tests::rig::{DEVICE, MIB};
use crate::{GraphMemory, Mode, Step};

const SIZES: [u64; 2] = [1000, 4 * MIB];

fn overlap(a: &Extent, b: &Extent) -> bool {
    a.serial == b.serial
        && a.offset_bytes < b.offset_bytes + b.bytes
        && b.offset_bytes < a.offset_bytes + a.bytes
}

/// Says whether anybody can be given a byte of `ptr`: asks for everything, at several sizes.
fn leaks(bench: &mut Bench, ptr: DevicePtr, bytes: u64, streams: &[StreamId]) -> bool {
    let mine = bench.spy.resolve(AddressRange::new(ptr, bytes)).expect("a graph's memory stays mapped");
    let mut got = Vec::new();
    let mut is_leaked = false;
    for &stream in streams {
        for size in [bytes, 1000, 512 << 10, 2 * MIB, 3 * MIB, 12 * MIB, 1000, 2 * MIB] {
            let Ok(one) = bench.pool.allocate(Request::new(size, stream)) else { continue };
            let theirs = bench.spy.resolve(AddressRange::new(one.ptr, one.bytes)).unwrap();
            is_leaked |= theirs.iter().any(|their| mine.iter().any(|my| overlap(my, their)));
            got.push((one.ptr, stream));
        }
    }
    for (ptr, stream) in got {
        bench.pool.free(ptr, stream).unwrap();
    }
    bench.check();
    is_leaked
}

/// Captures an allocation that is freed in the capture, and one that lives on.
struct Graph {
    bench: Bench,
    streams: [StreamId; 2],
    memory: GraphMemory,
    freed: DevicePtr,
    graph: GraphId,
}

fn graph(bytes: u64) -> Graph {
    let (mut bench, [a, b]) = Bench::busy(|config| config.mode(Mode::Compact).limit_bytes(64 * MIB));
    bench.allocate(MIB, b);
    let memory = bench.begin_capture(a);
    let freed = bench.allocate(bytes, a);
    bench.free(freed, a);
    let graph = bench.end_capture(a);
    Graph { bench, streams: [a, b], memory, freed, graph }
}

#[test]
fn memory_freed_in_a_capture_serves_the_capture_and_nobody_else() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config);
        bench.allocate(MIB, b);
        let memory = bench.begin_capture(a);
        let freed = bench.allocate(bytes, a);
        bench.free(freed, a);
        let n_calls = bench.n_calls();
        assert_eq!(bench.allocate(bytes, a), freed, "the capture has it again");
        assert_eq!(bench.n_calls(), n_calls);
        bench.free(freed, a);
        assert!(!leaks(&mut bench, freed, bytes, &[b]));
        bench.end_capture(a);
        assert!(!leaks(&mut bench, freed, bytes, &[a, b]));
        memory.finished();
        bench.finish();
    }
}

#[test]
fn a_graph_keeps_its_memory_through_all_that_gives_memory_back() {
    for bytes in SIZES {
        let Graph { mut bench, streams, memory, freed, graph } = graph(bytes);
        let whole = bench.spy.resolve(AddressRange::new(freed, bytes)).unwrap();
        bench.sim.launch(graph, streams[1]).unwrap();
        bench.pool.trim(0).unwrap();
        bench.pool.defragment().unwrap();
        bench.pool.set_limit_bytes(0).unwrap();
        bench.pool.set_limit_bytes(64 * MIB).unwrap();
        assert_eq!(bench.spy.resolve(AddressRange::new(freed, bytes)).as_ref(), Some(&whole));
        bench.sim.complete_all();
        bench.sim.launch(graph, streams[1]).unwrap();
        assert!(!leaks(&mut bench, freed, bytes, &streams));
        assert_eq!(bench.spy.resolve(AddressRange::new(freed, bytes)).as_ref(), Some(&whole));
        drop(memory);
        bench.finish();
    }
}

/// Programs go on beside a graph, at exhaustion, with events wherever the pool wants them.
#[test]
fn a_graph_keeps_its_memory_while_others_run_out_of_it() {
    for bytes in SIZES {
        let Graph { mut bench, streams: [a, b], memory, freed, graph } = graph(bytes);
        for round in 0..10 {
            bench.sim.launch(graph, b).unwrap();
            let live: Vec<DevicePtr> =
                (0..8).filter_map(|i| bench.try_allocate((1 + i) * MIB, a).ok()).collect();
            live.iter().step_by(2).for_each(|&ptr| bench.free(ptr, a));
            let refused = bench.try_allocate(80 * MIB, b);
            assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
            let large = bench.try_allocate(14 * MIB, b);
            live.iter().skip(1).step_by(2).for_each(|&ptr| bench.free(ptr, a));
            large.into_iter().for_each(|ptr| bench.free(ptr, b));
            if round % 3 == 0 {
                bench.sim.complete_all();
            }
            assert!(!leaks(&mut bench, freed, bytes, &[a, b]), "round {round}");
        }
        drop(memory);
        bench.finish();
    }
}

/// A use that is told of in a capture holds memory, and no event ends it.
#[test]
fn memory_used_in_a_capture_is_held_for_the_graph() {
    for bytes in SIZES {
        let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(64 * MIB));
        let [input, other] = [bytes, MIB].map(|bytes| bench.allocate(bytes, b));
        let memory = bench.begin_capture(a);
        bench.use_on(input, a);
        let freed = bench.allocate(bytes, a);
        bench.free(freed, a);
        bench.end_capture(a);
        bench.free(input, b);
        bench.free(other, b);
        for _ in 0..3 {
            assert!(bench.try_allocate(80 * MIB, b).is_err());
            bench.sim.complete_all();
            assert!(!leaks(&mut bench, input, bytes, &[a, b]));
            assert!(!leaks(&mut bench, freed, bytes, &[a, b]));
        }
        memory.finished();
        bench.pool.trim(0).unwrap();
        assert!(bench.pool.held.is_empty());
        bench.finish();
    }
}

#[test]
fn a_capture_that_stitches_keeps_both_addresses() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.mode(Mode::Compact).limit_bytes(24 * MIB));
    let memory = bench.begin_capture(a);
    let blocks: Vec<DevicePtr> = (0..6).map(|_| bench.allocate(2 * MIB, a)).collect();
    let firsts = [blocks[0], blocks[2], blocks[4]];
    let seen = firsts.map(|ptr| bench.spy.resolve(AddressRange::new(ptr, 2 * MIB)).unwrap());
    firsts.iter().for_each(|&ptr| bench.free(ptr, a));
    bench.pool.set_limit_bytes(bench.physical_bytes()).unwrap();
    let stitched = bench.allocate(6 * MIB, a);
    bench.free(stitched, a);
    let graph = bench.end_capture(a);
    bench.pool.set_limit_bytes(64 * MIB).unwrap();
    for _ in 0..5 {
        bench.sim.launch(graph, b).unwrap();
        let live: Vec<DevicePtr> = (0..7).map(|i| bench.allocate((2 + i) * MIB, b)).collect();
        live.iter().step_by(2).for_each(|&ptr| bench.free(ptr, b));
        assert!(bench.try_allocate(63 * MIB, b).is_err());
        live.iter().skip(1).step_by(2).for_each(|&ptr| bench.free(ptr, b));
        bench.sim.complete_all();
        bench.pool.defragment().unwrap();
        let now = firsts.map(|ptr| bench.spy.resolve(AddressRange::new(ptr, 2 * MIB)).unwrap_or_default());
        assert_eq!(now, seen, "the graph uses those addresses");
    }
    bench.sim.synchronize_all(DEVICE).expect("the graph runs");
    drop(memory);
    bench.finish();
}

#[test]
fn memory_of_a_graph_is_back_when_the_graph_is_gone() {
    for bytes in SIZES {
        let Graph { mut bench, streams: [a, b], memory, freed, .. } = graph(bytes);
        memory.finished();
        bench.is_watched = false;
        let n_waits = bench.n(Call::Wait);
        let reserved = bench.physical_bytes();
        let got = bench.allocate(reserved - 2 * MIB, b);
        assert!(bytes == 1000 || got == freed, "{got:?} {freed:?}");
        assert_eq!((bench.n(Call::Wait), bench.physical_bytes() <= reserved + 2 * MIB), (n_waits, true));
        bench.free(got, b);
        bench.allocate(MIB, a);
        bench.finish();
    }
}

#[test]
fn memory_of_a_graph_that_was_dropped_comes_behind_its_launches() {
    let Graph { mut bench, streams: [_, b], memory, freed, graph } = graph(4 * MIB);
    let c = bench.stream();
    bench.delay(c);
    bench.sim.launch(graph, c).unwrap();
    drop(memory);
    bench.is_watched = false;
    let n_waits = bench.n(Call::Wait);
    bench.pool.set_limit_bytes(bench.physical_bytes()).unwrap();
    let mut is_reused = false;
    for _ in 0..2 {
        let got = bench.allocate(4 * MIB, b);
        is_reused |= got == freed;
        bench.free(got, b);
    }
    assert!(is_reused);
    assert_eq!(bench.n(Call::Wait) - n_waits, 1);
    bench.finish();
}

/// `finished` speaks of the graph's launches, not of other work on what was allocated for it.
#[test]
fn work_on_another_stream_outlives_the_graph() {
    for bytes in SIZES {
        let (mut bench, [a, b, c]) = Bench::busy(|config| config.limit_bytes(64 * MIB));
        bench.allocate(MIB, b);
        bench.allocate(MIB, c);
        let memory = bench.begin_capture(a);
        let output = bench.allocate(bytes, a);
        bench.end_capture(a);
        bench.work(output, b);
        bench.free(output, b);
        let copied = bench.spy.moment(b);
        memory.finished();
        bench.is_watched = false;
        for _ in 0..3 {
            let got = bench.allocate(bytes, c);
            assert!(got != output || bench.spy.is_behind(c, copied), "{bytes} bytes are read on b");
        }
        bench.sim.complete_all();
        bench.pool.trim(0).unwrap();
        assert!(bench.pool.held.is_empty());
        bench.finish();
    }
}

#[test]
fn a_capture_takes_what_is_done_and_never_waits() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(8 * MIB));
    let [pending, done] = [b, b].map(|stream| bench.allocate(4 * MIB, stream));
    bench.free(done, b);
    bench.sim.complete_all();
    bench.delay(b);
    bench.work(pending, b);
    let memory = bench.begin_capture(a);
    let n_waits = bench.n(Call::Wait);
    // Done, though no event told so: it is there when the pool is at its end.
    assert_eq!(bench.allocate(4 * MIB, a), done);
    bench.free(pending, b);
    assert_eq!(bench.allocate(4 * MIB, a), pending, "the host waits for b");
    assert_eq!(bench.n(Call::Wait), n_waits);
    assert_eq!(bench.sim.n_pending(b), Ok(0));
    bench.end_capture(a);
    memory.finished();
    bench.finish();
}

/// While memory can be created, nobody waits.
#[test]
fn a_capture_grows_where_all_that_is_free_is_pending() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let pending = bench.allocate(4 * MIB, b);
    bench.free(pending, b);
    let memory = bench.begin_capture(a);
    let n_pending = bench.sim.n_pending(b).unwrap();
    assert_ne!(bench.allocate(4 * MIB, a), pending);
    assert_eq!((bench.n(Call::Synchronize), bench.n(Call::Wait)), (0, 0));
    assert!(bench.sim.n_pending(b).unwrap() >= n_pending);
    bench.end_capture(a);
    drop(memory);
    bench.finish();
}

/// An event behind the whole device would break it, and is not tried.
#[test]
fn a_capture_of_another_threads_default_stream_is_not_disturbed() {
    let (mut bench, [a]) = Bench::busy(|config| config.limit_bytes(64 * MIB));
    let theirs = bench.allocate(20 * MIB, a);
    let outcome = thread::scope(|scope| {
        let (to_main, from_thread) = std::sync::mpsc::channel();
        let (to_thread, from_main) = std::sync::mpsc::channel::<Bench>();
        scope.spawn(move || {
            let memory = bench.begin_capture(StreamId::PER_THREAD);
            let ptr = bench.allocate(4 * MIB, StreamId::PER_THREAD);
            to_main.send((bench, None)).unwrap();
            let mut bench = from_main.recv().unwrap();
            bench.free(ptr, StreamId::PER_THREAD);
            let graph = bench.sim.end_capture(StreamId::PER_THREAD);
            bench.spy.end_capture(StreamId::PER_THREAD);
            bench.pool.end_capture(StreamId::PER_THREAD);
            drop(memory);
            to_main.send((bench, Some(graph))).unwrap();
        });
        let (mut bench, _) = from_thread.recv().unwrap();
        bench.oracle.freed(theirs, a);
        bench.pool.free_from_anywhere(theirs).unwrap();
        bench.allocate(20 * MIB, a);
        let _ = bench.try_allocate(30 * MIB, a);
        let _ = bench.pool.trim(0);
        to_thread.send(bench).unwrap();
        let (bench, graph) = from_thread.recv().unwrap();
        bench.finish();
        graph
    });
    outcome.unwrap().expect("the capture is whole");
}

/// The device was idle after the mark, but before the launch.
#[test]
fn a_mark_does_not_cover_a_launch_that_came_after_it() {
    let Graph { mut bench, streams: [_, b], memory, freed, graph } = graph(4 * MIB);
    bench.sim.complete_all();
    let mark = bench.pool.mark();
    bench.spy.synchronize_all(DEVICE).unwrap();
    let c = bench.stream();
    bench.delay(c);
    bench.sim.launch(graph, c).unwrap();
    drop(memory);
    bench.is_watched = false;
    // The pool takes notice of the graph's end.
    bench.pool.collect_graphs();
    bench.pool.synchronized(mark);
    let n_waits = bench.n(Call::Wait);
    let got = bench.allocate(4 * MIB, b);
    assert!(got != freed || bench.n(Call::Wait) > n_waits, "its launch is pending");
    bench.finish();
}

/// Announced by somebody who does not know of the capture.
#[test]
fn a_stream_that_ends_after_its_capture_ends_for_good() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.limit_bytes(64 * MIB));
    bench.allocate(MIB, b);
    let before = bench.allocate(6 * MIB, a);
    let memory = bench.begin_capture(a);
    let freed = bench.allocate(4 * MIB, a);
    bench.free(freed, a);
    bench.sim.end_capture(a).unwrap();
    bench.spy.end_capture(a);
    bench.pool.stream_ends(a).unwrap();
    bench.spy.destroy_stream(a).unwrap();
    bench.sim.complete_all();
    for _ in 0..3 {
        assert!(!leaks(&mut bench, freed, 4 * MIB, &[b]));
    }
    drop(memory);
    bench.is_watched = false;
    bench.pool.free(before, b).unwrap();
    let again = bench.stream();
    bench.allocate(MIB, again);
    bench.pool.collect_graphs();
    bench.finish();
}

/// A pool that is dropped after its graphs leaves their memory to launches that are pending.
#[test]
fn a_pool_that_is_dropped_waits_for_the_launches_of_its_graphs() {
    let Graph { bench, memory, graph, .. } = graph(4 * MIB);
    let c = bench.stream();
    bench.delay(c);
    bench.sim.launch(graph, c).unwrap();
    drop(memory);
    let Bench { sim, pool, .. } = bench;
    drop(pool);
    sim.complete_all();
    sim.synchronize_all(DEVICE).expect("nothing was unmapped under the launch");
}

#[test]
fn no_call_reaches_the_captured_stream() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let [first, second] = [20 * MIB, 1000].map(|bytes| bench.allocate(bytes, a));
    bench.allocate(MIB, b);
    let memory = bench.begin_capture(a);
    let (n_records, n_waits) = (bench.n(Call::Record), bench.n(Call::Wait));
    let live: Vec<DevicePtr> = (1..6).map(|i| bench.allocate(i * 6 * MIB, a)).collect();
    live.into_iter().for_each(|ptr| bench.free(ptr, a));
    bench.allocate(50 * MIB, a);
    bench.allocate(1000, a);
    bench.free(first, a);
    bench.free(second, a);
    assert_eq!((bench.n(Call::Record), bench.n(Call::Wait)), (n_records, n_waits));
    bench.end_capture(a);
    drop(memory);
    bench.finish();
}

/// Two streams of a capture, each with its own memory.
/// No event can be had behind a graph that is given up while another capture runs.
#[test]
fn graphs_given_up_during_a_capture_make_room_for_others_behind_it() {
    let mut bench = Bench::over(SimConfig::h200(1), |config| config);
    let [a, b] = [bench.stream(), bench.stream()];
    let outer = bench.begin_capture(a);
    let refused = loop {
        match bench.pool.begin_capture(b) {
            Ok(memory) => {
                bench.pool.end_capture(b);
                drop(memory);
            }
            Err(error) => break error,
        }
    };
    assert_eq!(refused, AllocError::TooManyStreams);
    bench.end_capture(a);
    drop(outer);
    let memory = bench.pool.begin_capture(b).unwrap();
    bench.pool.end_capture(b);
    drop(memory);
    bench.check();
    bench.finish();
}

#[test]
fn a_graph_keeps_memory_of_one_pool_only() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let (mut other, [c]) = Bench::busy(|config| config);
    bench.allocate(4 * MIB, b);
    let mut memory = other.pool.begin_capture(c).unwrap();
    let refused = bench.pool.join_capture(&mut memory, a);
    assert!(matches!(refused, Err(AllocError::Driver(DriverError::InvalidValue(_)))), "{refused:?}");
    memory.finished();
    other.pool.collect_graphs();
    bench.allocate(4 * MIB, b);
    bench.finish();
    other.finish();
}

#[test]
fn streams_of_one_capture_do_not_share() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let mut memory = bench.begin_capture(a);
    bench.pool.join_capture(&mut memory, b).unwrap();
    bench.spy.begin_capture(b);
    bench.sim.begin_capture(b).unwrap();
    let freed = bench.allocate(4 * MIB, a);
    bench.free(freed, a);
    assert_ne!(bench.allocate(4 * MIB, b), freed);
    assert_eq!(bench.allocate(4 * MIB, a), freed);
    bench.end_capture(a);
    bench.end_capture(b);
    memory.finished();
    bench.finish();
}

/// Room is planned with what the stream can have.
#[test]
fn bytes_of_a_graph_at_the_end_are_no_room_for_others() {
    let Graph { mut bench, streams: [_, b], memory, freed, .. } = graph(4 * MIB);
    let reserved = bench.physical_bytes();
    assert_ne!(bench.allocate(6 * MIB, b), freed);
    assert!(bench.physical_bytes() <= reserved + 6 * MIB);
    drop(memory);
    bench.finish();
}

/// Old mappings of a graph stay for as long as the graph may use them, and keep no others from going.
#[test]
fn steps_unmap_what_is_behind_the_mappings_of_a_graph() {
    let (mut bench, [a, b]) = Bench::busy(|config| config.mode(Mode::Compact).limit_bytes(96 * MIB));
    bench.pool.leave_to_steps();
    let memory = bench.begin_capture(a);
    let [first, kept, second] = [4 * MIB, MIB, 4 * MIB].map(|bytes| bench.allocate(bytes, a));
    [first, second].into_iter().for_each(|ptr| bench.free(ptr, a));
    let gathered = bench.allocate(8 * MIB, a);
    let graphs_bytes = bench.pool.stats().stale_bytes;
    assert!(graphs_bytes > 0, "the capture gathers: {}", bench.pool.stats());
    bench.free(gathered, a);
    bench.free(kept, a);
    let graph = bench.end_capture(a);
    let has_much = |bench: &Bench| {
        let stats = bench.pool.stats();
        stats.stale_bytes > 2 * stats.reserved_bytes
    };
    for round in 0..400 {
        let sizes = [(3 + round % 5) * 2 * MIB, (2 + round % 3) * 2 * MIB, (4 + round % 7) * 2 * MIB];
        let made = sizes.map(|bytes| bench.allocate(bytes, b));
        let kept = bench.allocate(2 * MIB, b);
        made.into_iter().for_each(|ptr| bench.free(ptr, b));
        let last = bench.allocate(24 * MIB, b);
        [kept, last].into_iter().for_each(|ptr| bench.free(ptr, b));
    }
    assert!(has_much(&bench), "{}", bench.pool.stats());
    bench.sim.complete_all();
    while bench.pool.step().expect("a graph is no failure") == Step::Unmapped {
        bench.check();
    }
    assert!(!has_much(&bench), "{}", bench.pool.stats());
    bench.sim.launch(graph, b).unwrap();
    bench.sim.complete_all();
    bench.sim.synchronize_all(DEVICE).expect("what the graph uses is mapped");
    drop(memory);
    bench.finish();
}

/// From the word of a capture on nothing is called that would break it, though it has not begun.
#[test]
fn a_capture_that_is_about_to_begin_is_spared() {
    let (mut bench, [a, b]) = Bench::busy(|config| config);
    let freed = bench.allocate(4 * MIB, b);
    let reserved_bytes = bench.physical_bytes();
    let memory = bench.pool.begin_capture(a).unwrap();
    bench.pool.free_from_anywhere(freed).unwrap();
    assert_eq!(bench.pool.trim(0), Ok(0), "an event of the device would break the capture");
    bench.pool.end_capture(a);
    memory.finished();
    assert_eq!(bench.pool.trim(0), Ok(reserved_bytes));
    bench.finish();
}
