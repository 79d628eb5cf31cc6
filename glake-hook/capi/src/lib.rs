//! libglake.so: the hook for programs that are not built with glake. `glake.h` says what each function does.
//!
//! By `LD_PRELOAD`, `glake_hook`'s functions stand in front of the driver's in programs that are linked to it; the
//! hook is installed at the first call. PyTorch calls [`glake_malloc`] and [`glake_free`], as its
//! `CUDAPluggableAllocator` does.

mod torch;

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};

use glake_hook::{Config, DeviceId, DevicePtr, Glake, Recording, StreamId};

/// Sees to it that hooked functions install the hook: runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = {
    extern "C" fn on_load() {
        glake_hook::install_at_first_call();
    }
    on_load
};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps an error for `glake_error`.
fn note(error: &dyn Display) {
    let text = CString::new(error.to_string()).unwrap_or_default();
    // Where the thread is about to end, there is nobody to read it.
    let _ = ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// The hook, installed if need be.
fn glake() -> Option<Glake> {
    if let Some(glake) = Glake::installed() {
        return Some(glake);
    }
    let config = Config::from_env().inspect_err(|error| note(error)).ok()?;
    match glake_hook::install_unproved(config) {
        Ok(glake) => Some(glake),
        Err(error) => Glake::installed().or_else(|| {
            note(&error);
            None
        }),
    }
}

fn device(id: c_int) -> DeviceId {
    DeviceId(u32::try_from(id).unwrap_or(u32::MAX))
}

fn stream(raw: *mut c_void) -> StreamId {
    match raw.expose_provenance() as u64 {
        0 => StreamId::LEGACY,
        raw => StreamId(raw),
    }
}

fn ptr(raw: *const c_void) -> DevicePtr {
    DevicePtr(raw.expose_provenance() as u64)
}

/// 0, or -1 with the error noted.
fn code<T, E: Display>(result: Result<T, E>) -> c_int {
    result.inspect_err(|error| note(error)).map_or(-1, |_| 0)
}

#[unsafe(no_mangle)]
extern "C" fn glake_install() -> c_int {
    if glake().is_some() { 0 } else { -1 }
}

#[unsafe(no_mangle)]
extern "C" fn glake_error() -> *const c_char {
    ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
extern "C-unwind" fn glake_malloc(size: isize, device_id: c_int, on: *mut c_void) -> *mut c_void {
    let Ok(bytes) = u64::try_from(size) else { return std::ptr::null_mut() };
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    match glake().map(|glake| glake.allocate(device(device_id), bytes, stream(on))) {
        Some(Ok(DevicePtr(at))) => {
            std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or_default())
        }
        Some(Err(error)) => {
            note(&error);
            torch::throw(glake_error())
        }
        None => torch::throw(glake_error()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn glake_free(raw: *mut c_void, _size: isize, _device: c_int, on: *mut c_void) {
    if !raw.is_null()
        && let Some(glake) = Glake::installed()
    {
        code(glake.free(ptr(raw), stream(on)));
    }
}

#[unsafe(no_mangle)]
extern "C" fn glake_record_stream(raw: *mut c_void, on: *mut c_void) {
    if !raw.is_null()
        && let Some(glake) = Glake::installed()
    {
        code(glake.record_use(ptr(raw), stream(on)));
    }
}

/// As in `glake.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    requested_bytes: u64,
    allocated_bytes: u64,
    reserved_bytes: u64,
    peak_requested_bytes: u64,
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    n_live: u64,
    n_allocations: u64,
    n_frees: u64,
    n_stitches: u64,
}

/// # Safety
/// `stats` is null or can be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn glake_get_stats(device_id: c_int, stats: *mut Stats) -> c_int {
    let Some(glake) = glake().filter(|_| !stats.is_null()) else { return -1 };
    let of = glake.memory_stats(device(device_id));
    let filled = Stats {
        requested_bytes: of.requested_bytes,
        allocated_bytes: of.allocated_bytes,
        reserved_bytes: of.reserved_bytes,
        peak_requested_bytes: of.peak_requested_bytes,
        peak_allocated_bytes: of.peak_allocated_bytes,
        peak_reserved_bytes: of.peak_reserved_bytes,
        n_live: of.n_live,
        n_allocations: of.n_allocations,
        n_frees: of.n_frees,
        n_stitches: of.n_stitches,
    };
    // SAFETY: not null, and the caller's to be written.
    unsafe { stats.write(filled) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn glake_trim(device_id: c_int, keep_bytes: u64) -> i64 {
    let Some(glake) = glake() else { return -1 };
    let trimmed = glake.trim(device(device_id), keep_bytes).inspect_err(|error| note(error));
    trimmed.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[unsafe(no_mangle)]
extern "C" fn glake_limit(device_id: c_int, limit_bytes: u64) -> c_int {
    let Some(glake) = glake() else { return -1 };
    code(glake.limit_bytes(device(device_id), limit_bytes))
}

#[unsafe(no_mangle)]
extern "C" fn glake_owns(raw: *const c_void) -> c_int {
    Glake::installed().map_or(0, |glake| c_int::from(glake.owns(ptr(raw))))
}

/// The one recording.
static RECORDING: Mutex<Option<Recording>> = Mutex::new(None);

/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn glake_record(device_id: c_int, path: *const c_char) -> c_int {
    let Some(glake) = glake().filter(|_| !path.is_null()) else { return -1 };
    // SAFETY: not null, and a C string, says the caller.
    let path = unsafe { CStr::from_ptr(path) };
    let recording = glake.record(device(device_id), OsStr::from_bytes(path.to_bytes()));
    code(
        recording
            .map(|recording| *RECORDING.lock().unwrap_or_else(PoisonError::into_inner) = Some(recording)),
    )
}

#[unsafe(no_mangle)]
extern "C" fn glake_record_end() -> c_int {
    let recording = RECORDING.lock().unwrap_or_else(PoisonError::into_inner).take();
    recording.map_or(-1, |recording| code(recording.finish()))
}
