//! Graphs under capture: the pool sets their memory apart.
//!
//! The hook sees captures that the program begins through it before they begin. Those that others begin
//! (the CUDA runtime finds the driver by itself) show when memory is asked for: the stream is captured,
//! and the driver says into which graph. The graph gets a user object, whose end gives the memory back.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use glake_core::units::{DeviceId, StreamId};
use glake_vmm::GraphMemory;

use crate::device::{Device, DevicePool};
use crate::hook::{Hook, lock};
use crate::real::{Code, Handle, SUCCESS};
use crate::streams::raw;

/// Whether a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capturing {
    No,
    /// Into a graph that the pool serves.
    Served,
    /// The capture is broken, or the pool cannot serve it.
    Unserved,
}

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NONE: i32 = 0;
/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const ACTIVE: i32 = 1;

/// The captures that go on.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    all: Mutex<Vec<Capture>>,
    n: AtomicUsize,
}

/// Memory of a graph, shared with what happens at the graph's end.
type Memory = Arc<Mutex<Option<GraphMemory>>>;

#[derive(Debug)]
struct Capture {
    /// The driver's number for it.
    id: u64,
    device: DeviceId,
    streams: Vec<Queue>,
    memory: Memory,
}

/// A stream; default streams of threads tell apart by the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queue(StreamId, Option<ThreadId>);

impl Queue {
    fn of(stream: StreamId) -> Self {
        Self(stream, (stream == StreamId::PER_THREAD).then(|| thread::current().id()))
    }
}

/// Which capture a stream takes part in.
#[derive(Debug)]
struct Info {
    status: i32,
    id: u64,
    graph: Handle,
}

impl Hook {
    /// Sees to it that the pool knows whether `stream` is captured. The context is current.
    #[inline]
    pub(crate) fn capturing(&self, device: &Device, pool: &DevicePool, stream: StreamId) -> Capturing {
        let mut status = NONE;
        // SAFETY: the program names the stream; a status is written.
        let code = unsafe { (self.real.cuStreamIsCapturing)(raw(stream), &raw mut status) };
        if code != SUCCESS || status == NONE {
            if self.captures.n.load(Ordering::Acquire) > 0 {
                self.leave_capture(device, pool, stream);
            }
            return Capturing::No;
        }
        self.serve_capture(device, pool, stream)
    }

    #[cold]
    fn serve_capture(&self, device: &Device, pool: &DevicePool, stream: StreamId) -> Capturing {
        let Some(Info { status: ACTIVE, id, graph }) = self.capture_info(stream) else {
            return Capturing::Unserved;
        };
        let queue = Queue::of(stream);
        let mut all = lock(&self.captures.all);
        let known = all.iter_mut().find(|capture| capture.id == id && capture.device == device.id);
        if let Some(capture) = known {
            if capture.streams.contains(&queue) {
                return Capturing::Served;
            }
            let mut memory = lock(&capture.memory);
            let joined = memory.as_mut().is_some_and(|memory| pool.pool.join_capture(memory, stream).is_ok());
            if !joined {
                return Capturing::Unserved;
            }
            capture.streams.push(queue);
            return Capturing::Served;
        }
        let Ok(memory) = pool.pool.begin_capture(stream) else { return Capturing::Unserved };
        let memory = Arc::new(Mutex::new(Some(memory)));
        self.leave_to(graph, &memory);
        all.push(Capture { id, device: device.id, streams: vec![queue], memory });
        self.captures.n.store(all.len(), Ordering::Release);
        Capturing::Served
    }

    /// Leaves the memory to the graph: its end gives it back. Where the driver cannot tell of that, the memory
    /// is the graph's for good.
    fn leave_to(&self, graph: Handle, memory: &Memory) {
        let at_end = Arc::clone(memory);
        let finish = move || {
            if let Some(memory) = lock(&at_end).take() {
                memory.finished();
            }
        };
        // SAFETY: the driver just named the graph, which is under capture on this thread's call.
        let left = unsafe { self.driver.when_graph_ends(graph.cast(), finish) };
        if let Err(error) = left {
            tracing::warn!(%error, "the memory of a graph stays with it for good");
            // Held by nobody who would drop it.
            let kept: &'static Memory = Box::leak(Box::new(Arc::clone(memory)));
            debug_assert!(lock(kept).is_some());
        }
    }

    fn capture_info(&self, stream: StreamId) -> Option<Info> {
        let mut info = Info { status: NONE, id: 0, graph: ptr::null_mut() };
        // SAFETY: the program names the stream; status, id and graph are written, the rest is not wanted.
        let code = unsafe {
            (self.real.cuStreamGetCaptureInfo_v2)(
                raw(stream),
                &raw mut info.status,
                &raw mut info.id,
                &raw mut info.graph,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        (code == SUCCESS).then_some(info)
    }

    /// The stream is not captured; perhaps the pool thinks that it is.
    #[cold]
    fn leave_capture(&self, device: &Device, pool: &DevicePool, stream: StreamId) {
        let queue = Queue::of(stream);
        let mut all = lock(&self.captures.all);
        for capture in all.iter_mut().filter(|capture| capture.device == device.id) {
            if let Some(at) = capture.streams.iter().position(|other| *other == queue) {
                capture.streams.remove(at);
                let _ = pool.pool.end_capture(stream);
            }
        }
        all.retain(|capture| !capture.streams.is_empty());
        self.captures.n.store(all.len(), Ordering::Release);
    }

    /// Begins a capture through `begin`, with the pool told before.
    pub(crate) fn begin_capture(&self, stream: StreamId, begin: impl FnOnce() -> Code) -> Code {
        let served = self.device_of_stream(stream).and_then(|device| Some((device, device.pool_if_any()?)));
        let Some((device, pool)) = served else { return begin() };
        // What another capture left there.
        let _ = self.capturing(device, pool, stream);
        let Ok(memory) = pool.pool.begin_capture(stream) else { return begin() };
        let code = begin();
        let info = if code == SUCCESS { self.capture_info(stream) } else { None };
        let Some(Info { status: ACTIVE, id, graph }) = info else {
            let _ = pool.pool.end_capture(stream);
            return code;
        };
        let memory = Arc::new(Mutex::new(Some(memory)));
        self.leave_to(graph, &memory);
        let mut all = lock(&self.captures.all);
        all.push(Capture { id, device: device.id, streams: vec![Queue::of(stream)], memory });
        self.captures.n.store(all.len(), Ordering::Release);
        code
    }

    /// Ends a capture through `end`; the pool is told then.
    pub(crate) fn end_capture(&self, stream: StreamId, end: impl FnOnce() -> Code) -> Code {
        let id = self.capture_info(stream).filter(|info| info.status != NONE).map(|info| info.id);
        let code = end();
        if let Some(id) = id {
            self.capture_ended(id);
        }
        code
    }

    /// All streams of a capture are as before.
    fn capture_ended(&self, id: u64) {
        let mut all = lock(&self.captures.all);
        for capture in all.iter_mut().filter(|capture| capture.id == id) {
            let device = self.devices.iter().find(|device| device.id == capture.device);
            let Some(pool) = device.and_then(Device::pool_if_any) else { continue };
            // The default stream of another thread is found out there, at its next call.
            let here = |queue: &mut Queue| queue.1.is_none_or(|thread| thread == thread::current().id());
            for Queue(stream, _) in capture.streams.extract_if(.., here) {
                let _ = pool.pool.end_capture(stream);
            }
        }
        all.retain(|capture| !capture.streams.is_empty());
        self.captures.n.store(all.len(), Ordering::Release);
    }
}
