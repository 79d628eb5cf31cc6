//! Graphs with allocations inside.

use std::ptr;
use std::sync::{Arc, mpsc};

use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, sys};
use glake_hook::Config;

use crate::driver::{Kernel, MIB, Program, address, n_calls, past_the_hook, pin, unpin};

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
    goes_back(&program);
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
    goes_back(&program);
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
    goes_back(&program);
}

pub(crate) fn a_broken_capture_is_over_when_it_ends() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    drop(stream.alloc_zeros::<u8>(MIB).unwrap());
    stream.synchronize().unwrap();
    stream.begin_capture(MODE).unwrap();
    assert!(stream.synchronize().is_err(), "it is broken");
    assert!(stream.end_capture(FLAGS).is_err());
    // Nothing is held back any more: pinned memory is kept.
    let n_frees = n_calls("cuMemFreeHost");
    unpin(pin(MIB));
    assert_eq!(n_calls("cuMemFreeHost"), n_frees);
    let _ = program.context.check_err();
    program.is_empty();
    goes_back(&program);
}

/// A capture as the CUDA runtime makes it, which finds the driver by itself.
pub(crate) fn capture_unseen(stream: &CudaStream, work: impl FnOnce()) -> sys::CUgraph {
    type Begin = unsafe extern "C" fn(sys::CUstream, sys::CUstreamCaptureMode) -> sys::CUresult;
    type End = unsafe extern "C" fn(sys::CUstream, *mut sys::CUgraph) -> sys::CUresult;
    // SAFETY: the function's type.
    let begin = unsafe { past_the_hook::<Begin>("cuStreamBeginCapture_v2") };
    // SAFETY: as above.
    let end = unsafe { past_the_hook::<End>("cuStreamEndCapture") };
    // SAFETY: the stream is alive.
    unsafe { begin(stream.cu_stream(), MODE) }.result().unwrap();
    work();
    let mut graph = ptr::null_mut();
    // SAFETY: a graph is written.
    unsafe { end(stream.cu_stream(), &raw mut graph) }.result().unwrap();
    graph
}

pub(crate) fn captures_that_nobody_tells_of() {
    let program = Program::new(Config::new());
    // SAFETY: one stream is used at a time.
    unsafe { program.context.disable_event_tracking() };
    let stream = program.context.new_stream().unwrap();
    drop(stream.alloc_zeros::<u8>(MIB).unwrap());
    stream.synchronize().unwrap();
    let captured = || {
        let mut inside = None;
        let graph =
            capture_unseen(&stream, || inside = Some(address(&stream.alloc_zeros::<u8>(3 * MIB).unwrap())));
        (graph, inside.filter(|inside| program.glake.owns(*inside)).unwrap())
    };
    let ((first, _), (second, inside)) = (captured(), captured());
    // SAFETY: made above, used by nobody.
    unsafe { sys::cuGraphDestroy(first) }.result().unwrap();
    let others: Vec<_> = (0..8).map(|_| stream.alloc_zeros::<u8>(3 * MIB).unwrap()).collect();
    assert!(others.iter().all(|other| address(other) != inside), "it is the second graph's");
    // SAFETY: as above.
    unsafe { sys::cuGraphDestroy(second) }.result().unwrap();
    drop(others);
    stream.synchronize().unwrap();
    // The stream is gone before its capture is known to be over.
    let (third, _) = captured();
    drop(stream);
    let n_frees = n_calls("cuMemFreeHost");
    unpin(pin(MIB));
    assert_eq!(n_calls("cuMemFreeHost"), n_frees, "pinned memory is kept: no capture goes on");
    // SAFETY: as above.
    unsafe { sys::cuGraphDestroy(third) }.result().unwrap();
    program.is_clean();
    goes_back(&program);
}

pub(crate) fn what_other_threads_do_breaks_no_capture() {
    let program = Program::new(Config::new());
    let (began, other_began) = mpsc::channel();
    let (done, other_done) = mpsc::channel::<()>();
    let context = &program.context;
    let host = pin(MIB);
    let (stream, other_stream) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    std::thread::scope(|scope| {
        // Before anything is allocated, and on a stream that other threads cannot name.
        scope.spawn(move || {
            let stream = context.per_thread_stream();
            let kernel = Kernel::load(context, "glake_delay");
            stream.begin_capture(MODE).unwrap();
            began.send(()).unwrap();
            other_done.recv().unwrap();
            // SAFETY: the kernel takes one number, and touches no memory.
            unsafe { kernel.launch(&stream, 1, &mut [1]) };
            assert!(stream.end_capture(FLAGS).unwrap().is_some());
        });
        other_began.recv().unwrap();
        unpin(host);
        let mut ptr = 0;
        for bytes in [100, 3 * MIB] {
            drop(stream.alloc_zeros::<u8>(bytes).unwrap());
            // SAFETY: an address is written.
            unsafe { sys::cuMemAlloc_v2(&raw mut ptr, bytes) }.result().unwrap();
            // SAFETY: given up.
            unsafe { sys::cuMemFree_v2(ptr) }.result().unwrap();
        }
        drop(stream);
        program.glake.trim(crate::driver::FIRST, 0).unwrap();
        program.glake.limit_bytes(crate::driver::FIRST, 64 << 20).unwrap();
        assert!(other_stream.alloc_zeros::<u8>(65 * MIB).is_err());
        let _ = context.check_err();
        done.send(()).unwrap();
    });
    context.synchronize().unwrap();
    program.is_empty();
}

/// All memory goes back to the device. A driver may say late, on a thread of its own, that a graph is gone.
fn goes_back(program: &Program) {
    for _ in 0..1000 {
        program.glake.trim(crate::driver::FIRST, 0).unwrap();
        if program.stats().reserved_bytes == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("memory stays with a graph that is gone: {}", program.stats());
}
