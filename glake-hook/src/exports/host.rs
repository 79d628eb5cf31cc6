//! Pinned host memory.

use std::ffi::{c_uint, c_void};

use super::give;
use crate::hook::answer;
use crate::real::Code;

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    match answer(|hook| if ptr.is_null() { None } else { hook.allocate_pinned(bytes, flags) }) {
        // SAFETY: not null, and the caller's to be written.
        Some(answer) => unsafe { give(ptr, answer) },
        None => real!(cuMemHostAlloc(ptr, bytes, flags)),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemAllocHost_v2(ptr: *mut *mut c_void, bytes: usize) -> Code {
    match answer(|hook| if ptr.is_null() { None } else { hook.allocate_pinned(bytes, 0) }) {
        // SAFETY: not null, and the caller's to be written.
        Some(answer) => unsafe { give(ptr, answer) },
        None => real!(cuMemAllocHost_v2(ptr, bytes)),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemFreeHost(ptr: *mut c_void) -> Code {
    answer(|hook| hook.free_pinned(ptr)).unwrap_or_else(|| real!(cuMemFreeHost(ptr)))
}
