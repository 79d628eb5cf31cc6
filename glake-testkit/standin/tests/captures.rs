//! Captures, graphs and user objects keep CUDA's rules.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError};
use glake_standin::{Completion, alone};

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const PLAIN: CUgraphInstantiate_flags = CUgraphInstantiate_flags(0);
const UNSUPPORTED: Option<CUresult> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
const INVALIDATED: Option<CUresult> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

/// Runs a test in a process of its own: a capture in global mode bears on all threads.
fn over(name: &str, test: fn(&Arc<CudaContext>, &Arc<CudaStream>)) {
    alone(name, &[], |stand_in| {
        stand_in.complete(Completion::Manual);
        let context = CudaContext::new(0).unwrap();
        // SAFETY: the tests order their streams themselves.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().unwrap();
        test(&context, &stream);
    });
}

fn failed<T>(result: Result<T, DriverError>) -> Option<CUresult> {
    result.err().map(|error| error.0)
}

fn end(stream: &Arc<CudaStream>) -> Result<Option<CudaGraph>, DriverError> {
    stream.end_capture(PLAIN)
}

#[test]
fn a_graph_runs_what_was_captured_at_each_launch() {
    over("a_graph_runs_what_was_captured_at_each_launch", |_, stream| {
        let mut values = stream.clone_htod(&[5u8; 32]).unwrap();
        stream.begin_capture(GLOBAL).unwrap();
        stream.memset_zeros(&mut values).unwrap();
        let status = stream.capture_status();
        assert_eq!(status, Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE));
        let graph = end(stream).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&values).unwrap(), [5; 32], "nothing ran yet");
        for _ in 0..2 {
            graph.launch().unwrap();
            assert_eq!(stream.clone_dtoh(&values).unwrap(), [0; 32]);
            stream.memcpy_htod(&[6u8; 32], &mut values).unwrap();
        }
        assert_eq!(stream.clone_dtoh(&values).unwrap(), [6; 32]);
    });
}

/// A call by its name.
type Call<'a> = (&'a str, Box<dyn Fn() -> Option<CUresult> + Send + Sync + 'a>);

/// What must not be called while a stream is captured in global mode, from a thread that is not
/// relaxed: each call fails, and breaks the capture.
#[test]
fn unsafe_calls_break_a_capture() {
    over("unsafe_calls_break_a_capture", |context, stream| {
        let other = context.new_stream().unwrap();
        let event = other.record_event(None).unwrap();
        let calls: [Call<'_>; 5] = [
            ("query", Box::new(|| failed(event.try_is_complete()))),
            ("event", Box::new(|| failed(event.synchronize()))),
            ("stream", Box::new(|| failed(other.synchronize()))),
            ("context", Box::new(|| failed(context.synchronize()))),
            (
                "allocation",
                Box::new(|| {
                    context.bind_to_thread().unwrap();
                    // SAFETY: nothing is done with the memory.
                    failed(unsafe { cudarc::driver::result::malloc_sync(64) })
                }),
            ),
        ];
        for (name, call) in &calls {
            for elsewhere in [false, true] {
                stream.begin_capture(GLOBAL).unwrap();
                let outcome =
                    if elsewhere { thread::scope(|s| s.spawn(call).join().unwrap()) } else { call() };
                assert_eq!(outcome, UNSUPPORTED, "{name}");
                let status = stream.capture_status();
                assert_eq!(status, Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED), "{name}");
                assert_eq!(failed(end(stream)), INVALIDATED, "{name}");
            }
        }
        for (name, call) in &calls[..3] {
            stream.begin_capture(RELAXED).unwrap();
            assert_eq!(call(), None, "{name} beside a relaxed capture");
            assert_eq!(failed(end(stream)), None, "{name}");
        }
    });
}

#[test]
fn a_relaxed_thread_breaks_no_capture() {
    over("a_relaxed_thread_breaks_no_capture", |context, stream| {
        let other = context.new_stream().unwrap();
        let event = other.record_event(None).unwrap();
        stream.begin_capture(GLOBAL).unwrap();
        let mut mode = RELAXED;
        // SAFETY: the mode is a live local.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        assert_eq!((exchanged, mode), (CUresult::CUDA_SUCCESS, GLOBAL));
        event.synchronize().unwrap();
        assert_eq!(failed(end(stream)), None);
        stream.begin_capture(GLOBAL).unwrap();
        assert_eq!(failed(stream.synchronize()), UNSUPPORTED, "the captured stream, even so");
        assert_eq!(failed(end(stream)), INVALIDATED);
    });
}

#[test]
fn a_capture_takes_streams_in_by_their_waits_and_wants_them_joined() {
    over("a_capture_takes_streams_in_by_their_waits_and_wants_them_joined", |context, stream| {
        let other = context.new_stream().unwrap();
        let mut values = stream.clone_htod(&[5u8; 32]).unwrap();
        let before = other.record_event(None).unwrap();
        for joins in [true, false] {
            stream.begin_capture(GLOBAL).unwrap();
            other.wait(&stream.record_event(None).unwrap()).unwrap();
            other.memset_zeros(&mut values).unwrap();
            let joined = other.record_event(None).unwrap();
            if joins {
                stream.wait(&joined).unwrap();
                let graph = end(stream).unwrap().unwrap();
                graph.launch().unwrap();
                assert_eq!(stream.clone_dtoh(&values).unwrap(), [0; 32]);
            } else {
                let unjoined = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
                assert_eq!(failed(end(stream)), unjoined);
            }
            let asked = Some(CUresult::CUDA_ERROR_CAPTURED_EVENT);
            assert_eq!(failed(joined.try_is_complete()), asked);
            assert_eq!(other.capture_status(), Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE));
        }
        stream.begin_capture(GLOBAL).unwrap();
        stream.wait(&context.new_event(None).unwrap()).unwrap();
        let isolation = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        assert_eq!(failed(stream.wait(&before)), isolation, "work outside the capture");
        assert_eq!(failed(end(stream)), INVALIDATED);
    });
}

#[test]
fn an_event_of_the_context_breaks_its_captures() {
    over("an_event_of_the_context_breaks_its_captures", |context, stream| {
        let event = context.new_event(None).unwrap();
        // SAFETY: context and event are live.
        let record = || unsafe { sys::cuCtxRecordEvent(context.cu_ctx(), event.cu_event()) }.result();
        stream.record_event(None).unwrap();
        record().unwrap();
        assert_eq!(event.try_is_complete(), Ok(false), "it is behind the stream");
        stream.begin_capture(RELAXED).unwrap();
        assert_eq!(failed(record()), UNSUPPORTED);
        assert_eq!(failed(end(stream)), INVALIDATED);
    });
}

#[test]
fn the_legacy_stream_breaks_captures_of_blocking_streams() {
    over("the_legacy_stream_breaks_captures_of_blocking_streams", |context, stream| {
        let legacy = context.default_stream();
        let mut values = stream.clone_htod(&[5u8; 32]).unwrap();
        assert_eq!(failed(legacy.begin_capture(RELAXED)), UNSUPPORTED);
        stream.begin_capture(RELAXED).unwrap();
        legacy.memset_zeros(&mut values).unwrap();
        assert_eq!(failed(end(stream)), None, "a stream that does not block");
        let thread = context.per_thread_stream();
        thread.begin_capture(RELAXED).unwrap();
        let implicit = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        assert_eq!(failed(legacy.capture_status()), implicit);
        let status = thread.capture_status();
        assert_eq!(
            status,
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE),
            "asking breaks nothing"
        );
        assert_eq!(failed(legacy.memset_zeros(&mut values)), implicit);
        assert_eq!(failed(end(&thread)), INVALIDATED);
    });
}

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the test passes a counter that lives for ever.
    unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

/// A user object ends with the last of the graph, what is made of it, and what is pending.
#[test]
fn a_user_object_lives_as_long_as_anything_of_its_graph() {
    static ENDED: AtomicU32 = AtomicU32::new(0);
    over("a_user_object_lives_as_long_as_anything_of_its_graph", |_, stream| {
        let ended = || ENDED.load(Ordering::Relaxed);
        let mut values = stream.clone_htod(&[5u8; 32]).unwrap();
        stream.begin_capture(GLOBAL).unwrap();
        stream.memset_zeros(&mut values).unwrap();
        let graph = end(stream).unwrap().unwrap();
        let mut object = ptr::null_mut();
        let data = (&raw const ENDED).cast_mut().cast();
        // SAFETY: the callback takes the counter, which lives for ever.
        unsafe { sys::cuUserObjectCreate(&raw mut object, data, Some(count), 1, 1) }.result().unwrap();
        // SAFETY: graph and object are live; the one reference moves to the graph.
        unsafe { sys::cuGraphRetainUserObject(graph.cu_graph(), object, 1, 1) }.result().unwrap();
        let mut exec = ptr::null_mut();
        // SAFETY: the graph is live.
        unsafe { sys::cuGraphInstantiateWithFlags(&raw mut exec, graph.cu_graph(), 0) }.result().unwrap();
        drop(graph);
        assert_eq!(ended(), 0, "what is made of the graph keeps it");
        // SAFETY: both are live.
        unsafe { sys::cuGraphLaunch(exec, stream.cu_stream()) }.result().unwrap();
        // SAFETY: it is not used again.
        unsafe { sys::cuGraphExecDestroy(exec) }.result().unwrap();
        assert_eq!(ended(), 0, "the launch keeps it");
        stream.synchronize().unwrap();
        assert_eq!(ended(), 1);
        assert_eq!(stream.clone_dtoh(&values).unwrap(), [0; 32], "it ran");
    });
}

#[test]
fn memory_allocated_in_a_capture_lives_as_long_as_the_graph() {
    over("memory_allocated_in_a_capture_lives_as_long_as_the_graph", |context, stream| {
        let free = || context.mem_get_info().unwrap().0;
        let outside = stream.alloc_zeros::<u8>(4096).unwrap();
        let before = free();
        stream.begin_capture(GLOBAL).unwrap();
        drop(stream.alloc_zeros::<u8>(1 << 20).unwrap());
        let graph = end(stream).unwrap().unwrap();
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        assert_eq!(free() + (1 << 20), before);
        drop(graph);
        assert_eq!(free(), before);
        drop(outside);
    });
}

fn begin_to(stream: &CudaStream, graph: sys::CUgraph) -> Result<(), DriverError> {
    let (stream, none) = (stream.cu_stream(), ptr::null());
    // SAFETY: stream and graph are live.
    unsafe { sys::cuStreamBeginCaptureToGraph(stream, graph, none, ptr::null(), 0, RELAXED) }.result()
}

/// How many nodes a graph has.
fn len(graph: sys::CUgraph) -> usize {
    let mut n = 0;
    // SAFETY: the graph is live, `n` a live local.
    unsafe { sys::cuGraphGetNodes(graph, ptr::null_mut(), &raw mut n) }.result().unwrap();
    n
}

#[test]
fn a_capture_can_go_on_in_a_graph_that_is_there() {
    over("a_capture_can_go_on_in_a_graph_that_is_there", |context, stream| {
        let mut values = stream.clone_htod(&[5u8; 32]).unwrap();
        let (mut graph, mut ended) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `graph` is a live local.
        unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result().unwrap();
        for n in 1..3 {
            begin_to(stream, graph).unwrap();
            let other = context.new_stream().unwrap();
            assert_eq!(failed(begin_to(&other, graph)), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
            stream.memset_zeros(&mut values).unwrap();
            // SAFETY: `ended` is a live local.
            unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut ended) }.result().unwrap();
            assert_eq!((ended, len(graph)), (graph, n));
        }
        begin_to(stream, graph).unwrap();
        assert_eq!(failed(stream.synchronize()), UNSUPPORTED);
        assert_eq!(failed(end(stream)), INVALIDATED);
        assert_eq!(len(graph), 2, "the caller's, as it was");
        // SAFETY: it is not used again.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
        assert_eq!(failed(begin_to(stream, graph)), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    });
}

/// A graph can keep an object from before its capture ends, by which a pool learns when it is gone.
#[test]
fn a_graph_under_capture_keeps_a_user_object() {
    static ENDED: AtomicU32 = AtomicU32::new(0);
    over("a_graph_under_capture_keeps_a_user_object", |_, stream| {
        let ended = || ENDED.load(Ordering::Relaxed);
        for (n, breaks) in [(0, false), (1, true)] {
            stream.begin_capture(RELAXED).unwrap();
            let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            let (mut id, mut graph, mut object) = (0, ptr::null_mut(), ptr::null_mut());
            // SAFETY: all are live locals, or may be null.
            unsafe {
                sys::cuStreamGetCaptureInfo_v3(
                    stream.cu_stream(),
                    &raw mut status,
                    &raw mut id,
                    &raw mut graph,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                )
            }
            .result()
            .unwrap();
            assert!(id != 0 && !graph.is_null());
            let data = (&raw const ENDED).cast_mut().cast();
            // SAFETY: the callback takes the counter, which lives for ever.
            unsafe { sys::cuUserObjectCreate(&raw mut object, data, Some(count), 1, 1) }.result().unwrap();
            // SAFETY: graph and object are live; the one reference moves to the graph.
            unsafe { sys::cuGraphRetainUserObject(graph, object, 1, 1) }.result().unwrap();
            if breaks {
                assert_eq!(failed(stream.synchronize()), UNSUPPORTED);
                assert_eq!(failed(end(stream)), INVALIDATED);
            } else {
                let whole = end(stream).unwrap().unwrap();
                assert_eq!((whole.cu_graph(), ended()), (graph, n));
                drop(whole);
            }
            assert_eq!(ended(), n + 1, "it went with the graph");
        }
    });
}
