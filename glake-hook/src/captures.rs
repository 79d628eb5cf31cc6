//! Graphs under capture: the pool sets their memory apart.
//!
//! The hook sees captures that the program begins through it before they begin. Those that others begin
//! (the CUDA runtime finds the driver by itself) show when memory is asked for: the stream is captured,
//! and the driver says into which graph. The graph gets a user object, whose end gives the memory back.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use glake_core::units::{DeviceId, StreamId};
use glake_vmm::GraphMemory;

use crate::device::{Device, DevicePool};
use crate::hook::{Hook, lock};
use crate::real::{Code, Handle, Real, SUCCESS};
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
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

/// The captures that go on.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    known: Mutex<Known>,
    /// How many there are, as far as the hook knows.
    n: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    all: Vec<Capture>,
    /// Those that have no number yet.
    n_beginning: usize,
}

impl Captures {
    /// Whether the hook knows of any.
    pub(crate) fn are_going_on(&self) -> bool {
        self.n.load(Ordering::Acquire) > 0
    }

    /// Keeps captures from beginning through the hook for as long as it is held; none where one goes on.
    pub(crate) fn hold_off(&self) -> Option<MutexGuard<'_, Known>> {
        let known = lock(&self.known);
        (!self.are_going_on()).then_some(known)
    }

    /// Changes what is known.
    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = lock(&self.known);
        change(&mut known);
        known.all.retain(|capture| !capture.streams.is_empty());
        self.n.store(known.all.len() + known.n_beginning, Ordering::Release);
    }
}

impl Known {
    /// Takes a stream out of a device's captures, but for the one with the number `stays_in`.
    fn leave(&mut self, device: &Device, pool: &DevicePool, stream: StreamId, stays_in: Option<u64>) {
        let queue = Queue::of(stream);
        let others = self.all.iter_mut().filter(|capture| capture.device == device.id);
        for capture in others.filter(|capture| Some(capture.id) != stays_in) {
            if let Some(at) = capture.streams.iter().position(|other| *other == queue) {
                capture.streams.remove(at);
                let _ = pool.pool.end_capture(stream);
            }
        }
    }
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

/// The calling thread, where it makes calls that would break captures; goes back to its own mode when dropped.
pub(crate) struct BesideCaptures {
    real: &'static Real,
    before: i32,
}

impl BesideCaptures {
    pub(crate) fn enter(real: &'static Real) -> Self {
        Self { real, before: exchange_mode(real, RELAXED) }
    }
}

impl Drop for BesideCaptures {
    fn drop(&mut self) {
        exchange_mode(self.real, self.before);
    }
}

fn exchange_mode(real: &Real, mut mode: i32) -> i32 {
    // SAFETY: one of the three modes, or what the driver just said. Where it fails the mode stays.
    let _ = unsafe { (real.cuThreadExchangeStreamCaptureMode)(&raw mut mode) };
    mode
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
            self.leave_captures(device, pool, stream);
            return Capturing::No;
        }
        self.serve_capture(device, pool, stream)
    }

    /// The stream is not captured, whatever the pool thinks.
    #[inline]
    pub(crate) fn leave_captures(&self, device: &Device, pool: &DevicePool, stream: StreamId) {
        if self.captures.are_going_on() {
            self.captures.change(|known| known.leave(device, pool, stream, None));
        }
    }

    #[cold]
    fn serve_capture(&self, device: &Device, pool: &DevicePool, stream: StreamId) -> Capturing {
        let Some(Info { status: ACTIVE, id, graph }) = self.capture_info(stream) else {
            return Capturing::Unserved;
        };
        let mut served = Capturing::Unserved;
        self.captures.change(|known| {
            // An earlier capture, whose end nobody told.
            known.leave(device, pool, stream, Some(id));
            served = self.serve_in(known, (id, graph), device, pool, stream);
        });
        served
    }

    fn serve_in(
        &self,
        known: &mut Known,
        (id, graph): (u64, Handle),
        device: &Device,
        pool: &DevicePool,
        stream: StreamId,
    ) -> Capturing {
        let queue = Queue::of(stream);
        let capture = known.all.iter_mut().find(|capture| capture.id == id && capture.device == device.id);
        if let Some(capture) = capture {
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
        known.all.push(Capture { id, device: device.id, streams: vec![queue], memory });
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
            // A share that nobody drops.
            Box::leak(Box::new(Arc::clone(memory)));
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

    /// Begins a capture through `begin`, with the pool told before.
    pub(crate) fn begin_capture(&'static self, stream: StreamId, begin: impl FnOnce() -> Code) -> Code {
        let served = self.device_of_stream(stream).and_then(|device| Some((device, device.pool(self)?)));
        let Some((device, pool)) = served else { return begin() };
        // What another capture left there.
        let _ = self.capturing(device, pool, stream);
        let Ok(memory) = pool.pool.begin_capture(stream) else { return begin() };
        self.captures.change(|known| known.n_beginning += 1);
        let code = begin();
        let info = if code == SUCCESS { self.capture_info(stream) } else { None };
        let began = info.filter(|info| info.status == ACTIVE);
        self.captures.change(|known| {
            known.n_beginning -= 1;
            let Some(Info { id, graph, .. }) = began else {
                let _ = pool.pool.end_capture(stream);
                // No graph has it.
                memory.finished();
                return;
            };
            let memory = Arc::new(Mutex::new(Some(memory)));
            self.leave_to(graph, &memory);
            known.all.push(Capture { id, device: device.id, streams: vec![Queue::of(stream)], memory });
        });
        code
    }

    /// Ends a capture through `end`; the pool is told then.
    pub(crate) fn end_capture(&self, stream: StreamId, end: impl FnOnce() -> Code) -> Code {
        let number = self.number_of(stream);
        let code = end();
        // Refused on another thread, it goes on.
        let is_over = self.capture_info(stream).is_some_and(|info| info.status == NONE);
        if let Some(id) = number
            && is_over
        {
            self.capture_ended(id);
        }
        code
    }

    /// The number of the capture that a stream takes part in. The driver does not tell that of a broken one.
    fn number_of(&self, stream: StreamId) -> Option<u64> {
        let info = self.capture_info(stream)?;
        if info.status == ACTIVE {
            return Some(info.id);
        }
        let known = lock(&self.captures.known);
        Some(known.all.iter().find(|capture| capture.streams.contains(&Queue::of(stream)))?.id)
    }

    /// All streams of a capture are as before.
    fn capture_ended(&self, id: u64) {
        // The default stream of another thread is found out there, at its next call.
        let here = |queue: &mut Queue| queue.1.is_none_or(|thread| thread == thread::current().id());
        self.captures.change(|known| {
            for capture in known.all.iter_mut().filter(|capture| capture.id == id) {
                let device = self.devices.iter().find(|device| device.id == capture.device);
                let Some(pool) = device.and_then(Device::pool_if_any) else { continue };
                for Queue(stream, _) in capture.streams.extract_if(.., here) {
                    let _ = pool.pool.end_capture(stream);
                }
            }
        });
    }
}
