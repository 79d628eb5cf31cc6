//! Device memory: allocated and freed.

use std::ffi::c_uint;

use glake_core::units::StreamId;

use super::give;
use crate::hook::{Hook, answer, stream_id, tell};
use crate::install::is_probe;
use crate::real::{Code, Handle, Ptr, SUCCESS};
use crate::streams::raw;

/// An allocation by `served`, or by the driver through `pass`.
///
/// # Safety
/// `ptr` is null or can be written.
pub(crate) unsafe fn allocation(
    ptr: *mut Ptr,
    bytes: usize,
    served: impl FnOnce(&'static Hook) -> Option<Result<Ptr, Code>>,
    pass: impl FnOnce() -> Code,
) -> Code {
    if !ptr.is_null()
        && let Some(answer) = answer(served)
    {
        // SAFETY: not null, says the caller.
        return unsafe { give(ptr, answer) };
    }
    let code = pass();
    if code == SUCCESS {
        tell(|hook| hook.pass_on(bytes));
    }
    code
}

/// A free by `served`, or by the driver through `pass`.
pub(crate) fn a_free(
    ptr: Ptr,
    served: impl FnOnce(&'static Hook) -> Option<Code>,
    pass: impl FnOnce() -> Code,
) -> Code {
    answer(served).unwrap_or_else(|| {
        tell(|hook| hook.pass_on_free(ptr));
        pass()
    })
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut Ptr, bytes: usize) -> Code {
    let pass = || real!(cuMemAlloc_v2(ptr, bytes));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, bytes, |hook| hook.allocate_for_all(bytes as u64), pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocPitch_v2(
    ptr: *mut Ptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    let served = |hook: &'static Hook| {
        if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
            return None;
        }
        Some(hook.allocate_pitched(width, height)?.map(|(at, row)| {
            // SAFETY: not null, and the caller's to be written.
            unsafe { pitch.write(row) };
            at
        }))
    };
    let pass = || real!(cuMemAllocPitch_v2(ptr, pitch, width, height, element));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, width.saturating_mul(height), served, pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFree_v2(ptr: Ptr) -> Code {
    if is_probe(ptr) {
        return SUCCESS;
    }
    a_free(ptr, |hook| hook.free_from_anywhere(ptr), || real!(cuMemFree_v2(ptr)))
}

/// Stream-ordered allocation, with stream 0 as the default.
unsafe fn allocate_async(ptr: *mut Ptr, bytes: usize, stream: Handle, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    let pass = || real!(cuMemAllocAsync(ptr, bytes, raw(stream)));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, bytes, |hook| hook.allocate(bytes, stream), pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocAsync(ptr: *mut Ptr, bytes: usize, stream: Handle) -> Code {
    // SAFETY: the caller's arguments.
    unsafe { allocate_async(ptr, bytes, stream, StreamId::LEGACY) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocAsync_ptsz(ptr: *mut Ptr, bytes: usize, stream: Handle) -> Code {
    // SAFETY: the caller's arguments.
    unsafe { allocate_async(ptr, bytes, stream, StreamId::PER_THREAD) }
}

unsafe fn allocate_from(
    ptr: *mut Ptr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
    default: StreamId,
) -> Code {
    let stream = stream_id(stream, default);
    let pass = || real!(cuMemAllocFromPoolAsync(ptr, bytes, pool, raw(stream)));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, bytes, |hook| hook.allocate_from(bytes, pool, stream), pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    ptr: *mut Ptr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    // SAFETY: the caller's arguments.
    unsafe { allocate_from(ptr, bytes, pool, stream, StreamId::LEGACY) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    ptr: *mut Ptr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    // SAFETY: the caller's arguments.
    unsafe { allocate_from(ptr, bytes, pool, stream, StreamId::PER_THREAD) }
}

fn free_async(ptr: Ptr, stream: Handle, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    a_free(ptr, |hook| hook.free(ptr, stream), || real!(cuMemFreeAsync(ptr, raw(stream))))
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeAsync(ptr: Ptr, stream: Handle) -> Code {
    free_async(ptr, stream, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeAsync_ptsz(ptr: Ptr, stream: Handle) -> Code {
    free_async(ptr, stream, StreamId::PER_THREAD)
}
