//! Streams and events.

use std::ptr;

use cudarc::driver::sys;
use glake_core::driver::Result;

use super::{Context, Event, Stream, check, error};
use crate::probe::CtxRecordEvent;

/// Creates a stream in the current context that does not synchronise with any other.
pub(crate) fn create_stream() -> Result<Stream> {
    let mut stream = ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: `stream` is a live local.
    check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, flags) })?;
    Ok(Stream::of(stream))
}

/// Destroys a stream; its work still runs.
///
/// # Safety
/// `stream` is live and the caller's; it is not used again.
pub(crate) unsafe fn destroy_stream(stream: Stream) -> Result<()> {
    // SAFETY: the caller owns the stream.
    check("cuStreamDestroy_v2", unsafe { sys::cuStreamDestroy_v2(stream.cu()) })
}

/// Blocks until the work of `stream` is done.
///
/// # Safety
/// `stream` is live.
pub(crate) unsafe fn synchronize_stream(stream: Stream) -> Result<()> {
    // SAFETY: the caller vouches for the stream.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.cu()) })
}

/// Whether the work enqueued on `stream` goes into a graph instead of the device.
///
/// # Safety
/// `stream` is live.
pub(crate) unsafe fn is_capturing(stream: Stream) -> Result<bool> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller vouches for the stream; `status` is a live local.
    check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(stream.cu(), &raw mut status) })?;
    Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// Creates an event, without a time stamp, in the current context.
pub(crate) fn create_event() -> Result<Event> {
    let mut event = ptr::null_mut();
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: `event` is a live local.
    check("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event, flags) })?;
    Ok(Event::of(event))
}

/// Destroys an event. Does not block, passed or not.
///
/// # Safety
/// `event` is live and the caller's; it is not used again.
pub(crate) unsafe fn destroy_event(event: Event) -> Result<()> {
    // SAFETY: the caller owns the event.
    check("cuEventDestroy_v2", unsafe { sys::cuEventDestroy_v2(event.cu()) })
}

/// Records `event` behind the work of `stream`.
///
/// # Safety
/// Both are live, of one context.
pub(crate) unsafe fn record(event: Event, stream: Stream) -> Result<()> {
    // SAFETY: the caller vouches for both.
    check("cuEventRecord", unsafe { sys::cuEventRecord(event.cu(), stream.cu()) })
}

/// Records `event` behind all work of `context`.
///
/// # Safety
/// Both are live, the event of that context.
pub(crate) unsafe fn record_context(call: CtxRecordEvent, event: Event, context: Context) -> Result<()> {
    // SAFETY: the caller vouches for both; `call` is the driver's own function.
    match unsafe { call(context.cu(), event.cu()) } {
        0 => Ok(()),
        code => Err(error("cuCtxRecordEvent", code)),
    }
}

/// Whether `event` has passed.
///
/// # Safety
/// `event` is live.
pub(crate) unsafe fn query(event: Event) -> Result<bool> {
    // SAFETY: the caller vouches for the event.
    match unsafe { sys::cuEventQuery(event.cu()) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => check("cuEventQuery", code).map(|()| true),
    }
}

/// Blocks until `event` has passed.
///
/// # Safety
/// `event` is live.
pub(crate) unsafe fn synchronize(event: Event) -> Result<()> {
    // SAFETY: the caller vouches for the event.
    check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event.cu()) })
}

/// Makes later work of `stream` wait for `event`.
///
/// # Safety
/// Both are live.
pub(crate) unsafe fn wait(stream: Stream, event: Event) -> Result<()> {
    // SAFETY: the caller vouches for both.
    check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.cu(), event.cu(), 0) })
}
