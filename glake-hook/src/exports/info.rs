//! What is said of memory, and of functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

use crate::hook::answer;
use crate::info;
use crate::real::{Code, Handle, PEER_ACCESS_ALREADY_ENABLED, Ptr, SUCCESS};

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    let code = real!(cuMemGetInfo_v2(free, total));
    if code == SUCCESS && !free.is_null() {
        // SAFETY: the driver just wrote it.
        let driver_free = unsafe { free.read() };
        if let Some(bytes) = answer(|hook| hook.free_bytes(driver_free)) {
            // SAFETY: as above.
            unsafe { free.write(bytes) };
        }
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut Ptr, bytes: *mut usize, ptr: Ptr) -> Code {
    match answer(|hook| hook.range_of(ptr)) {
        Some(Ok((start, length))) => {
            if !base.is_null() {
                // SAFETY: not null, and the caller's to be written.
                unsafe { base.write(start) };
            }
            if !bytes.is_null() {
                // SAFETY: as above.
                unsafe { bytes.write(length) };
            }
            SUCCESS
        }
        Some(Err(code)) => code,
        None => real!(cuMemGetAddressRange_v2(base, bytes, ptr)),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> Code {
    let code = real!(cuCtxEnablePeerAccess(peer, flags));
    if !matches!(code, SUCCESS | PEER_ACCESS_ALREADY_ENABLED) {
        return code;
    }
    match answer(|hook| Some(hook.enable_peer(peer.expose_provenance() as u64))) {
        None | Some(SUCCESS) => code,
        Some(refused) => refused,
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut c_void, ptr: Ptr) -> Code {
    answer(|hook| hook.refuse_ipc(ptr)).unwrap_or_else(|| real!(cuIpcGetMemHandle(handle, ptr)))
}

/// The hooked function that a program asks for, if it is one, in place of what the driver found.
///
/// # Safety
/// `name` is a C string, and `function` can be written.
unsafe fn instead(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong) {
    // SAFETY: the caller vouches for the name.
    let name = unsafe { CStr::from_ptr(name) };
    if let Some(address) = info::hooked(name, version, flags) {
        // SAFETY: the caller vouches for the pointer.
        unsafe { function.write(ptr::with_exposed_provenance_mut(address)) };
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> Code {
    let code = real!(cuGetProcAddress(name, function, version, flags));
    if code == SUCCESS {
        // SAFETY: the driver has just read the one and written the other.
        unsafe { instead(name, function, version, flags) };
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> Code {
    let code = real!(cuGetProcAddress_v2(name, function, version, flags, status));
    // SAFETY: the driver has just written the pointer.
    if code == SUCCESS && !unsafe { function.read() }.is_null() {
        // SAFETY: as above, and it has read the name.
        unsafe { instead(name, function, version, flags) };
    }
    code
}
