//! The driver's own word, and the only unsafe code of the programs.
//!
//! The functions are looked up in the library, so that nothing that replaces them in this program
//! answers in their place.
#![allow(unsafe_code, reason = "it calls the driver")]

use std::ffi::{c_int, c_void};

use libloading::Library;

const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_MEM_HIGH: c_int = 6;
const USED_MEM_HIGH: c_int = 8;

type MemGetInfo = unsafe extern "C" fn(*mut usize, *mut usize) -> c_int;
type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type DeviceGetDefaultMemPool = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type MemPoolAttribute = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;

/// The functions of the driver itself. All need a current context, as candle leaves one behind on
/// the thread that made the device.
#[derive(Debug)]
pub(crate) struct Driver {
    get_info: MemGetInfo,
    alloc: MemAlloc,
    default_pool: DeviceGetDefaultMemPool,
    set_attribute: MemPoolAttribute,
    get_attribute: MemPoolAttribute,
    // Keeps the functions where they are.
    _library: Library,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error("the CUDA driver could not be loaded: {0}")]
    Missing(#[from] libloading::Error),
    #[error("{call} failed: CUDA error {code}")]
    Failed { call: &'static str, code: c_int },
}

impl Driver {
    pub(crate) fn open() -> Result<Self, DriverError> {
        // SAFETY: the driver's initialisers are those that candle runs too.
        let library = unsafe { Library::new("libcuda.so.1") }?;
        // SAFETY: the type is the one in cuda.h, as are the next four.
        let get_info = *unsafe { library.get::<MemGetInfo>(b"cuMemGetInfo_v2\0") }?;
        // SAFETY: as above.
        let alloc = *unsafe { library.get::<MemAlloc>(b"cuMemAlloc_v2\0") }?;
        // SAFETY: as above.
        let default_pool =
            *unsafe { library.get::<DeviceGetDefaultMemPool>(b"cuDeviceGetDefaultMemPool\0") }?;
        // SAFETY: as above.
        let set_attribute = *unsafe { library.get::<MemPoolAttribute>(b"cuMemPoolSetAttribute\0") }?;
        // SAFETY: as above.
        let get_attribute = *unsafe { library.get::<MemPoolAttribute>(b"cuMemPoolGetAttribute\0") }?;
        Ok(Self { get_info, alloc, default_pool, set_attribute, get_attribute, _library: library })
    }

    /// Bytes of the device that are free.
    pub(crate) fn free_bytes(&self) -> Result<u64, DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to variables that outlive the call.
        let code = unsafe { (self.get_info)(&raw mut free, &raw mut total) };
        checked("cuMemGetInfo", code)?;
        Ok(free as u64)
    }

    /// Takes bytes from the device until the process ends.
    pub(crate) fn occupy(&self, bytes: u64) -> Result<(), DriverError> {
        let mut address = 0;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: the pointer is to a variable that outlives the call; nobody uses the memory.
        let code = unsafe { (self.alloc)(&raw mut address, bytes) };
        checked("cuMemAlloc", code)
    }

    /// Makes the device's default pool keep all memory that it once had.
    pub(crate) fn never_release(&self, ordinal: usize) -> Result<(), DriverError> {
        let mut threshold = u64::MAX;
        let pool = self.pool(ordinal)?;
        // SAFETY: the pool is the device's and lives as long; the attribute is a u64.
        let code = unsafe { (self.set_attribute)(pool, RELEASE_THRESHOLD, (&raw mut threshold).cast()) };
        checked("cuMemPoolSetAttribute", code)
    }

    /// The most bytes that the device's default pool has held.
    pub(crate) fn reserved_peak_bytes(&self, ordinal: usize) -> Result<u64, DriverError> {
        self.attribute(ordinal, RESERVED_MEM_HIGH)
    }

    /// The most bytes of the device's default pool that were in use.
    pub(crate) fn used_peak_bytes(&self, ordinal: usize) -> Result<u64, DriverError> {
        self.attribute(ordinal, USED_MEM_HIGH)
    }

    fn attribute(&self, ordinal: usize, attribute: c_int) -> Result<u64, DriverError> {
        let mut value = 0u64;
        let pool = self.pool(ordinal)?;
        // SAFETY: the pool is the device's and lives as long; the attributes asked for are u64s.
        let code = unsafe { (self.get_attribute)(pool, attribute, (&raw mut value).cast()) };
        checked("cuMemPoolGetAttribute", code)?;
        Ok(value)
    }

    fn pool(&self, ordinal: usize) -> Result<*mut c_void, DriverError> {
        let mut pool = std::ptr::null_mut();
        let device = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is to a variable that outlives the call; a device's handle is its number.
        let code = unsafe { (self.default_pool)(&raw mut pool, device) };
        checked("cuDeviceGetDefaultMemPool", code)?;
        Ok(pool)
    }
}

fn checked(call: &'static str, code: c_int) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError::Failed { call, code }) }
}
