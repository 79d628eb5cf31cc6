//! Graphs with allocations inside.

use std::sync::Arc;

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, sys};
use glake_hook::Config;

use crate::driver::{MIB, Program, address};

const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// Captures `work`.
fn capture<T>(stream: &Arc<CudaStream>, work: impl FnOnce() -> T) -> (CudaGraph, T) {
    stream.begin_capture(MODE).unwrap();
    let done = work();
    (stream.end_capture(FLAGS).unwrap().unwrap(), done)
}

/// Adds the bytes of `from` to `to` by way of memory that is allocated and freed in between.
fn copy_by_way(stream: &Arc<CudaStream>, from: &CudaSlice<u8>, to: &mut CudaSlice<u8>) -> u64 {
    let between = stream.clone_dtod(from).unwrap();
    stream.memcpy_dtod(&between, to).unwrap();
    address(&between).0
}

pub(crate) fn a_captured_graph_keeps_its_memory() {
    let program = Program::new(Config::new());
    // SAFETY: one stream is used at a time; events of others would break the capture.
    unsafe { program.context.disable_event_tracking() };
    let stream = program.context.new_stream().unwrap();
    let mut from = stream.clone_htod(&vec![1u8; 4 * MIB]).unwrap();
    let mut to = stream.alloc_zeros::<u8>(4 * MIB).unwrap();
    drop(stream.alloc_zeros::<u8>(4 * MIB).unwrap());
    stream.synchronize().unwrap();
    let (graph, between) = capture(&stream, || copy_by_way(&stream, &from, &mut to));
    let mut others = Vec::new();
    for i in 2..30u8 {
        // What the program allocates meanwhile does not get the graph's memory.
        others.push(stream.clone_htod(&vec![100 + i; 4 * MIB]).unwrap());
        assert!(others.iter().all(|other| address(other).0 != between));
        stream.memcpy_htod(&vec![i; 4 * MIB], &mut from).unwrap();
        graph.launch().unwrap();
        assert_eq!(stream.clone_dtoh(&to).unwrap(), vec![i; 4 * MIB]);
        if i % 7 == 0 {
            for (other, j) in others.drain(..).zip(i - 6..) {
                let _ = j;
                let bytes = stream.clone_dtoh(&other).unwrap();
                assert!(
                    bytes.iter().all(|byte| *byte == bytes[0] && *byte > 100),
                    "the graph wrote elsewhere"
                );
            }
        }
    }
    others.clear();
    stream.synchronize().unwrap();
    let held = program.stats().reserved_bytes;
    program.glake.trim(crate::driver::FIRST, 0).unwrap();
    assert!(program.stats().reserved_bytes < held);
    graph.launch().unwrap();
    stream.synchronize().unwrap();
    // With the graph its memory goes back.
    drop(graph);
    drop((from, to));
    stream.synchronize().unwrap();
    program.is_clean();
    program.glake.trim(crate::driver::FIRST, 0).unwrap();
    assert_eq!(program.stats().reserved_bytes, 0);
}

pub(crate) fn a_capture_of_two_streams() {
    let program = Program::new(Config::new());
    // SAFETY: the program orders its streams itself.
    unsafe { program.context.disable_event_tracking() };
    let (first, second) = (program.context.new_stream().unwrap(), program.context.new_stream().unwrap());
    let mut from = first.clone_htod(&vec![1u8; MIB]).unwrap();
    let (mut a, mut b) = (first.alloc_zeros::<u8>(MIB).unwrap(), first.alloc_zeros::<u8>(MIB).unwrap());
    first.synchronize().unwrap();
    let (graph, _) = capture(&first, || {
        let fork = first.record_event(None).unwrap();
        second.wait(&fork).unwrap();
        copy_by_way(&first, &from, &mut a);
        copy_by_way(&second, &from, &mut b);
        let join = second.record_event(None).unwrap();
        first.wait(&join).unwrap();
    });
    // The second stream is as before.
    let outside = second.clone_htod(&vec![50u8; MIB]).unwrap();
    second.synchronize().unwrap();
    for i in 2..10u8 {
        first.memcpy_htod(&vec![i; MIB], &mut from).unwrap();
        graph.launch().unwrap();
        assert_eq!(first.clone_dtoh(&a).unwrap(), vec![i; MIB]);
        assert_eq!(first.clone_dtoh(&b).unwrap(), vec![i; MIB]);
    }
    assert_eq!(second.clone_dtoh(&outside).unwrap(), vec![50u8; MIB]);
    drop((graph, from, a, b, outside));
    program.context.synchronize().unwrap();
    program.is_clean();
    program.glake.trim(crate::driver::FIRST, 0).unwrap();
    assert_eq!(program.stats().reserved_bytes, 0);
}

pub(crate) fn a_broken_capture_costs_nothing() {
    let program = Program::new(Config::new());
    // SAFETY: one stream is used at a time.
    unsafe { program.context.disable_event_tracking() };
    let stream = program.context.new_stream().unwrap();
    drop(stream.alloc_zeros::<u8>(MIB).unwrap());
    stream.synchronize().unwrap();
    stream.begin_capture(MODE).unwrap();
    // It cannot begin twice.
    assert!(stream.begin_capture(MODE).is_err());
    let inside = stream.alloc_zeros::<u8>(3 * MIB).unwrap();
    // Waiting for a captured stream breaks the capture.
    assert!(stream.synchronize().is_err());
    assert!(stream.end_capture(FLAGS).is_err());
    drop(inside);
    let _ = program.context.check_err();
    let again = stream.clone_htod(&vec![9u8; 3 * MIB]).unwrap();
    assert_eq!(stream.clone_dtoh(&again).unwrap(), vec![9u8; 3 * MIB]);
    drop(again);
    stream.synchronize().unwrap();
    program.is_empty();
    program.glake.trim(crate::driver::FIRST, 0).unwrap();
    assert_eq!(program.stats().reserved_bytes, 0);
}
