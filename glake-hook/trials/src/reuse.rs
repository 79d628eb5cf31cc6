//! Memory that somebody else gets while work that uses it is pending.

use std::ptr;
use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaStream, sys};
use glake_hook::{Config, DeviceId, StreamId};

use crate::captures::capture_unseen;
use crate::driver::{FIRST, MIB, Program, at, delay};

/// All that a pool may hold.
const ALL: usize = 8 * MIB;

fn all_there_is() -> Config {
    Config::new().limit_bytes(ALL as u64)
}

fn allocate(stream: sys::CUstream) -> u64 {
    let mut ptr = 0;
    // SAFETY: an address is written.
    unsafe { sys::cuMemAllocAsync(&raw mut ptr, ALL, stream) }.result().unwrap();
    ptr
}

fn free(ptr: u64, stream: sys::CUstream) {
    // SAFETY: given up; what is enqueued with it comes before.
    unsafe { sys::cuMemFreeAsync(ptr, stream) }.result().unwrap();
}

/// Enqueues a fill with ones behind a delay.
fn use_late(ptr: u64, stream: &Arc<CudaStream>) {
    delay(stream);
    // SAFETY: the memory is as long, and is freed behind this.
    unsafe { sys::cuMemsetD8Async(ptr, 1, ALL, stream.cu_stream()) }.result().unwrap();
}

/// Allocates all that there is on a stream; what is written there stays.
fn is_taken_over(stream: &Arc<CudaStream>) {
    let taken = stream.clone_htod(&vec![2u8; ALL]).unwrap();
    stream.synchronize().unwrap();
    stream.context().synchronize().unwrap();
    let back = stream.clone_dtoh(&taken).unwrap();
    assert!(back.iter().all(|byte| *byte == 2), "the work of before came later");
}

pub(crate) fn a_thread_frees_what_another_uses() {
    let program = Program::new(all_there_is());
    let context = &program.context;
    let stream = context.per_thread_stream();
    context.bind_to_thread().unwrap();
    let ptr = allocate(stream.cu_stream());
    use_late(ptr, &stream);
    thread::scope(|scope| {
        scope.spawn(|| {
            context.bind_to_thread().unwrap();
            // The same handle, another stream.
            let stream = context.per_thread_stream();
            free(ptr, stream.cu_stream());
            is_taken_over(&stream);
        });
    });
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn plain_memory_is_freed_behind_all_streams() {
    let program = Program::new(all_there_is());
    let streams: Vec<_> = (0..3).map(|_| program.context.new_stream().unwrap()).collect();
    let threads = program.context.per_thread_stream();
    for user in [&streams[0], &streams[1], &threads] {
        let mut ptr = 0;
        // SAFETY: an address is written.
        unsafe { sys::cuMemAlloc_v2(&raw mut ptr, ALL) }.result().unwrap();
        use_late(ptr, user);
        // SAFETY: given up.
        unsafe { sys::cuMemFree_v2(ptr) }.result().unwrap();
        is_taken_over(&streams[2]);
    }
    program.is_clean();
}

pub(crate) fn a_graph_that_is_gone_leaves_work_behind() {
    let program = Program::new(all_there_is());
    // SAFETY: the trial orders its streams itself.
    unsafe { program.context.disable_event_tracking() };
    let (stream, other) = (program.context.new_stream().unwrap(), program.context.new_stream().unwrap());
    let ptr = allocate(stream.cu_stream());
    use_late(ptr, &stream);
    for mode in [
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        // Memory of before, freed in the capture: the graph is gone before the work of before is done.
        let ptr = if mode == sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL {
            ptr
        } else {
            let ptr = allocate(stream.cu_stream());
            use_late(ptr, &stream);
            ptr
        };
        stream.begin_capture(mode).unwrap();
        free(ptr, stream.cu_stream());
        let mut graph = ptr::null_mut();
        // SAFETY: a graph is written, and destroyed.
        unsafe {
            sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph).result().unwrap();
            sys::cuGraphDestroy(graph).result().unwrap();
        }
        is_taken_over(&other);
        // Memory of the capture that outlives the graph.
        stream.begin_capture(mode).unwrap();
        let ptr = allocate(stream.cu_stream());
        // SAFETY: as above.
        unsafe {
            sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph).result().unwrap();
            sys::cuGraphDestroy(graph).result().unwrap();
        }
        use_late(ptr, &stream);
        free(ptr, stream.cu_stream());
        is_taken_over(&other);
    }
    program.is_clean();
}

pub(crate) fn a_use_behind_a_capture_is_the_streams() {
    let program = Program::new(Config::new().limit_bytes((ALL + 2 * MIB) as u64));
    // SAFETY: the trial orders its streams itself.
    unsafe { program.context.disable_event_tracking() };
    let [stream, user, other] = [0; 3].map(|_| program.context.new_stream().unwrap());
    // Its end is not told, and the graph has the memory.
    let graph = capture_unseen(&user, || drop(user.alloc_zeros::<u8>(100).unwrap()));
    let ptr = allocate(stream.cu_stream());
    use_late(ptr, &user);
    program.glake.record_use(at(ptr), StreamId(user.cu_stream().addr() as u64)).unwrap();
    free(ptr, stream.cu_stream());
    // SAFETY: made above, used by nobody.
    unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    is_taken_over(&other);
    program.is_clean();
}

pub(crate) fn default_streams_of_two_devices() {
    let program = Program::new(all_there_is().background());
    if CudaContext::device_count().unwrap() < 2 {
        println!("one device: nothing to try");
        return;
    }
    let second = CudaContext::new(1).unwrap();
    for context in [&second, &program.context] {
        context.bind_to_thread().unwrap();
        let (stream, other) = (context.default_stream(), context.new_stream().unwrap());
        let ptr = allocate(stream.cu_stream());
        use_late(ptr, &stream);
        free(ptr, stream.cu_stream());
        is_taken_over(&other);
        // Freed on the other device's default stream, which is no stream that uses it.
        let ptr = allocate(stream.cu_stream());
        use_late(ptr, &stream);
        let elsewhere = if context.ordinal() == 0 { &second } else { &program.context };
        elsewhere.bind_to_thread().unwrap();
        free(ptr, ptr::null_mut());
        context.bind_to_thread().unwrap();
        is_taken_over(&other);
    }
    for device in [FIRST, DeviceId(1)] {
        assert_eq!(program.glake.memory_stats(device).n_live, 0);
    }
    program.is_clean();
}
