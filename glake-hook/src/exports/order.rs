//! Synchronisation, streams, captures.

use std::ffi::{c_int, c_void};

use glake_core::units::StreamId;

use crate::hook::{answer, stream_id, tell};
use crate::real::{Code, Handle, SUCCESS};
use crate::streams::raw;

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxSynchronize() -> Code {
    let mark = answer(|hook| hook.mark());
    let code = real!(cuCtxSynchronize());
    if code == SUCCESS
        && let Some((pool, mark)) = mark
    {
        // Refused by a poisoned pool, which serves nobody.
        tell(|_| drop(pool.synchronized(mark)));
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    tell(|hook| hook.stream_ends(stream_id(stream, StreamId::LEGACY)));
    real!(cuStreamDestroy_v2(stream))
}

fn begin_capture(stream: StreamId, begin: impl FnOnce() -> Code + Copy) -> Code {
    answer(|hook| Some(hook.begin_capture(stream, begin))).unwrap_or_else(begin)
}

fn begin(stream: Handle, mode: c_int, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    begin_capture(stream, || real!(cuStreamBeginCapture_v2(raw(stream), mode)))
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> Code {
    begin(stream, mode, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_int) -> Code {
    begin(stream, mode, StreamId::PER_THREAD)
}

/// What a capture adds to.
#[derive(Clone, Copy)]
struct Into {
    graph: Handle,
    dependencies: *const Handle,
    edges: *const c_void,
    n: usize,
    mode: c_int,
}

fn begin_to_graph(stream: Handle, into: Into, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    let Into { graph, dependencies, edges, n, mode } = into;
    begin_capture(stream, || {
        real!(cuStreamBeginCaptureToGraph(raw(stream), graph, dependencies, edges, n, mode))
    })
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCaptureToGraph(
    stream: Handle,
    graph: Handle,
    dependencies: *const Handle,
    edges: *const c_void,
    n: usize,
    mode: c_int,
) -> Code {
    begin_to_graph(stream, Into { graph, dependencies, edges, n, mode }, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamBeginCaptureToGraph_ptsz(
    stream: Handle,
    graph: Handle,
    dependencies: *const Handle,
    edges: *const c_void,
    n: usize,
    mode: c_int,
) -> Code {
    begin_to_graph(stream, Into { graph, dependencies, edges, n, mode }, StreamId::PER_THREAD)
}

fn end(stream: Handle, graph: *mut Handle, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    let end = || real!(cuStreamEndCapture(raw(stream), graph));
    answer(|hook| Some(hook.end_capture(stream, end))).unwrap_or_else(end)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code {
    end(stream, graph, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuStreamEndCapture_ptsz(stream: Handle, graph: *mut Handle) -> Code {
    end(stream, graph, StreamId::PER_THREAD)
}
