//! The hooked functions. In a program that links to the driver they stand in its place; in one that loads
//! it, the shim jumps to them.
//!
//! Each asks the hook for an answer and otherwise passes the call on.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

use glake_core::units::StreamId;

use crate::hook::{Hook, answer, stream_id, tell};
use crate::info;
use crate::install::is_probe;
use crate::real::{Code, Handle, NOT_INITIALIZED, PEER_ACCESS_ALREADY_ENABLED, Ptr, SUCCESS, real};

include!("hooked.rs");

macro_rules! table {
    ($($name:ident)*) => {
        /// The hooked functions in the order of the shim's table.
        pub(crate) fn table() -> Vec<usize> {
            vec![$($name as *const () as usize,)*]
        }

        /// The hooked function called `name` with `suffix` behind it.
        pub(crate) fn by_name(name: &str, suffix: &str) -> Option<usize> {
            let is = |known: &str| known.strip_prefix(name) == Some(suffix);
            $(if is(stringify!($name)) { return Some($name as *const () as usize) })*
            None
        }
    };
}

hooked!(table);

/// Calls the driver's own function.
macro_rules! real {
    ($name:ident($($argument:expr),*)) => {
        match real() {
            // SAFETY: the caller's arguments, passed on.
            Some(real) => unsafe { (real.$name)($($argument),*) },
            None => NOT_INITIALIZED,
        }
    };
}

/// Writes what was answered through the caller's pointer.
///
/// # Safety
/// `to` can be written.
unsafe fn give<T>(to: *mut T, answer: Result<T, Code>) -> Code {
    match answer {
        Ok(value) => {
            // SAFETY: the caller vouches for it.
            unsafe { to.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// An allocation by `served`, or by the driver through `pass`.
///
/// # Safety
/// `ptr` is null or can be written.
unsafe fn allocation(
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
fn a_free(ptr: Ptr, served: impl FnOnce(&'static Hook) -> Option<Code>, pass: impl FnOnce() -> Code) -> Code {
    answer(served).unwrap_or_else(|| {
        tell(|hook| hook.pass_on_free(ptr));
        pass()
    })
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut Ptr, bytes: usize) -> Code {
    let pass = || real!(cuMemAlloc_v2(ptr, bytes));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, bytes, |hook| hook.allocate_for_all(bytes as u64), pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocPitch_v2(
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
unsafe extern "C" fn cuMemFree_v2(ptr: Ptr) -> Code {
    if is_probe(ptr) {
        return SUCCESS;
    }
    a_free(ptr, |hook| hook.free_from_anywhere(ptr), || real!(cuMemFree_v2(ptr)))
}

/// Stream-ordered allocation, with stream 0 as the default.
unsafe fn allocate_async(ptr: *mut Ptr, bytes: usize, stream: Handle, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    let pass = || real!(cuMemAllocAsync(ptr, bytes, crate::streams::raw(stream)));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, bytes, |hook| hook.allocate(bytes, stream), pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(ptr: *mut Ptr, bytes: usize, stream: Handle) -> Code {
    // SAFETY: the caller's arguments.
    unsafe { allocate_async(ptr, bytes, stream, StreamId::LEGACY) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync_ptsz(ptr: *mut Ptr, bytes: usize, stream: Handle) -> Code {
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
    let pass = || real!(cuMemAllocFromPoolAsync(ptr, bytes, pool, crate::streams::raw(stream)));
    // SAFETY: the caller's pointer.
    unsafe { allocation(ptr, bytes, |hook| hook.allocate_from(bytes, pool, stream), pass) }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocFromPoolAsync(
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
unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
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
    a_free(ptr, |hook| hook.free(ptr, stream), || real!(cuMemFreeAsync(ptr, crate::streams::raw(stream))))
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeAsync(ptr: Ptr, stream: Handle) -> Code {
    free_async(ptr, stream, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeAsync_ptsz(ptr: Ptr, stream: Handle) -> Code {
    free_async(ptr, stream, StreamId::PER_THREAD)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) -> Code {
    let code = real!(cuMemPoolCreate(pool, properties));
    if code == SUCCESS {
        // SAFETY: the driver has just written it.
        let pool = unsafe { pool.read() };
        // SAFETY: the driver has just read them.
        tell(|hook| unsafe { hook.mempools.made(pool, properties) });
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolDestroy(pool: Handle) -> Code {
    tell(|hook| hook.mempools.forget(pool));
    let code = real!(cuMemPoolDestroy(pool));
    tell(Hook::look_for_current_pools);
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolSetAccess(pool: Handle, rights: *const c_void, n: usize) -> Code {
    let code = real!(cuMemPoolSetAccess(pool, rights, n));
    if code == SUCCESS {
        // SAFETY: the driver has just read them.
        tell(|hook| unsafe { hook.grant_from(pool, rights, n) });
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceSetMemPool(device: c_int, pool: Handle) -> Code {
    let code = real!(cuDeviceSetMemPool(device, pool));
    if code == SUCCESS {
        tell(|hook| hook.current_pool_is(device, pool));
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    match answer(|hook| if ptr.is_null() { None } else { hook.allocate_pinned(bytes, flags) }) {
        // SAFETY: not null, and the caller's to be written.
        Some(answer) => unsafe { give(ptr, answer) },
        None => real!(cuMemHostAlloc(ptr, bytes, flags)),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocHost_v2(ptr: *mut *mut c_void, bytes: usize) -> Code {
    match answer(|hook| if ptr.is_null() { None } else { hook.allocate_pinned(bytes, 0) }) {
        // SAFETY: not null, and the caller's to be written.
        Some(answer) => unsafe { give(ptr, answer) },
        None => real!(cuMemAllocHost_v2(ptr, bytes)),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(ptr: *mut c_void) -> Code {
    answer(|hook| hook.free_pinned(ptr)).unwrap_or_else(|| real!(cuMemFreeHost(ptr)))
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
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
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut Ptr, bytes: *mut usize, ptr: Ptr) -> Code {
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
unsafe extern "C" fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> Code {
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
unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut c_void, ptr: Ptr) -> Code {
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
unsafe extern "C" fn cuGetProcAddress(
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
unsafe extern "C" fn cuGetProcAddress_v2(
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

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSynchronize() -> Code {
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
unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    tell(|hook| hook.stream_ends(stream_id(stream, StreamId::LEGACY)));
    real!(cuStreamDestroy_v2(stream))
}

fn begin_capture(stream: StreamId, begin: impl FnOnce() -> Code + Copy) -> Code {
    answer(|hook| Some(hook.begin_capture(stream, begin))).unwrap_or_else(begin)
}

fn begin(stream: Handle, mode: c_int, default: StreamId) -> Code {
    let stream = stream_id(stream, default);
    begin_capture(stream, || real!(cuStreamBeginCapture_v2(crate::streams::raw(stream), mode)))
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> Code {
    begin(stream, mode, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_int) -> Code {
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
        real!(cuStreamBeginCaptureToGraph(crate::streams::raw(stream), graph, dependencies, edges, n, mode))
    })
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCaptureToGraph(
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
unsafe extern "C" fn cuStreamBeginCaptureToGraph_ptsz(
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
    let end = || real!(cuStreamEndCapture(crate::streams::raw(stream), graph));
    answer(|hook| Some(hook.end_capture(stream, end))).unwrap_or_else(end)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code {
    end(stream, graph, StreamId::LEGACY)
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture_ptsz(stream: Handle, graph: *mut Handle) -> Code {
    end(stream, graph, StreamId::PER_THREAD)
}
