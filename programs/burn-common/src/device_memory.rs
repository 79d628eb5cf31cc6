//! What the driver itself says of the device's memory, past every hook.
#![allow(unsafe_code, reason = "calls the CUDA driver through its C interface")]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use libloading::{Library, Symbol};

use crate::Failure;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;

/// The device's memory as the real `cuMemGetInfo` sees it.
///
/// The entry points come out of `libcuda.so.1` by name, so neither a replaced symbol of this program
/// nor a library that stands before the driver answers for it.
#[derive(Debug)]
pub struct Memory {
    driver: Library,
    context: *mut c_void,
}

// SAFETY: the context is a handle that the driver allows in any thread; it is made current in the
// thread that asks.
unsafe impl Send for Memory {}

impl Memory {
    /// Opens the driver and the first device's primary context.
    ///
    /// # Errors
    /// The driver's library, one of its symbols or a call failed.
    pub fn open() -> Result<Self, Failure> {
        // SAFETY: the driver's library has no initialisers that ask anything of the program.
        let driver = unsafe { Library::new("libcuda.so.1") }?;
        let mut context = std::ptr::null_mut();
        {
            // SAFETY: the signature is that of cuda.h.
            let init: Symbol<'_, Init> = unsafe { driver.get(b"cuInit\0") }?;
            // SAFETY: no pointers.
            succeed("cuInit", unsafe { init(0) })?;
            let mut device = 0;
            // SAFETY: the signature is that of cuda.h.
            let get: Symbol<'_, DeviceGet> = unsafe { driver.get(b"cuDeviceGet\0") }?;
            // SAFETY: it writes one int.
            succeed("cuDeviceGet", unsafe { get(&raw mut device, 0) })?;
            // SAFETY: the signature is that of cuda.h.
            let retain: Symbol<'_, Retain> = unsafe { driver.get(b"cuDevicePrimaryCtxRetain\0") }?;
            // SAFETY: it writes one pointer. It is never released: the process needs it to its end.
            succeed("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, device) })?;
        }
        Ok(Self { driver, context })
    }

    /// Bytes of the device that are in use, by whomever.
    ///
    /// # Errors
    /// A symbol is missing or a call failed.
    pub fn used_bytes(&self) -> Result<u64, Failure> {
        // SAFETY: the signature is that of cuda.h.
        let set_current: Symbol<'_, SetCurrent> = unsafe { self.driver.get(b"cuCtxSetCurrent\0") }?;
        // SAFETY: the context was retained and is never released.
        succeed("cuCtxSetCurrent", unsafe { set_current(self.context) })?;
        // SAFETY: the signature is that of cuda.h.
        let get_info: Symbol<'_, MemGetInfo> = unsafe { self.driver.get(b"cuMemGetInfo_v2\0") }?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: it writes two sizes.
        succeed("cuMemGetInfo", unsafe { get_info(&raw mut free, &raw mut total) })?;
        Ok((total - free) as u64)
    }

    /// Watches the memory in use from a thread of its own until [`Peak::finish`].
    ///
    /// # Errors
    /// As [`used_bytes`](Self::used_bytes).
    pub fn watch(self) -> Result<Peak, Failure> {
        let base_bytes = self.used_bytes()?;
        let shared =
            Arc::new(Shared { peak_bytes: AtomicU64::new(base_bytes), done: AtomicBool::new(false) });
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                while !shared.done.load(Ordering::Relaxed) {
                    if let Ok(used_bytes) = self.used_bytes() {
                        shared.peak_bytes.fetch_max(used_bytes, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        };
        Ok(Peak { base_bytes, shared, thread })
    }
}

#[derive(Debug)]
struct Shared {
    peak_bytes: AtomicU64,
    done: AtomicBool,
}

/// The most memory in use since [`Memory::watch`].
#[derive(Debug)]
pub struct Peak {
    base_bytes: u64,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Peak {
    /// The peak above what was in use at the beginning, in bytes.
    #[must_use]
    pub fn finish(self) -> u64 {
        self.shared.done.store(true, Ordering::Relaxed);
        // A watcher that panicked still leaves the highest figure it saw.
        let _ = self.thread.join();
        self.shared.peak_bytes.load(Ordering::Relaxed) - self.base_bytes
    }
}

fn succeed(call: &str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: CUDA error {code}").into()) }
}
