//! Whether there is a CUDA driver, and which of its symbols.
//!
//! cudarc panics where the library or a symbol is missing, so every symbol is looked up here
//! before its first call. The library is opened under the same names, in the same order, as
//! cudarc opens it, and is never closed. The first to open `libcuda.so` decides which library that
//! name means for the whole process: a shim of that name has to be loaded before.

use std::sync::OnceLock;

use cudarc::driver::sys;
use glake_core::driver::DriverError;
use glake_core::units::DeviceId;
use libloading::Library;

/// Why the CUDA driver could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The driver library could not be loaded.
    #[error(
        "no CUDA driver: libcuda.so.1 could not be loaded; install NVIDIA's driver, make the library visible in \
         a container (`--gpus all`), or use the simulated driver (`glake::sim::SimDriver`)"
    )]
    NoDriver,
    /// The library is the link-time stub of the CUDA toolkit.
    #[error("libcuda.so is the toolkit's link-time stub: take its `stubs` folder off LD_LIBRARY_PATH")]
    Stub,
    /// The driver lacks a function that glake needs.
    #[error("the CUDA driver lacks {symbol}: update it to 11.4 or newer")]
    OldDriver {
        /// The missing function.
        symbol: &'static str,
    },
    /// There is a driver but no GPU that this process may see.
    #[error("the CUDA driver sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// A device has no virtual memory management.
    #[error("device {} cannot manage virtual memory: glake needs a GPU and platform that can", .0.0)]
    NoVirtualMemory(DeviceId),
    /// The driver failed while it was opened.
    #[error("the CUDA driver failed to start")]
    Driver(#[from] DriverError),
}

/// The functions that glake calls, all looked up before the first call.
const NEEDED: &[&str] = &[
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDeviceCanAccessPeer",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemGetInfo_v2",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuLaunchKernel",
];

/// The functions of user objects, which graphs keep.
const USER_OBJECTS: [&str; 3] = ["cuUserObjectCreate", "cuUserObjectRelease", "cuGraphRetainUserObject"];

/// `cuCtxRecordEvent`, which drivers have since 12.5.
pub(crate) type CtxRecordEvent = unsafe extern "C" fn(sys::CUcontext, sys::CUevent) -> u32;

/// The driver library, loaded once.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
    // SAFETY: libcuda's initialisers are those that cudarc would run at its first call; NVIDIA
    // guarantees that loading the library has no other effect.
    LIBRARY.get_or_init(|| NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())).as_ref()
}

/// Whether the library has `symbol`.
fn has(library: &Library, symbol: &str) -> bool {
    // SAFETY: the symbol is only looked up, never called through this type.
    unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_ok()
}

/// Checks that the library and every needed function are there. Calls nothing.
pub(crate) fn probe() -> Result<(), OpenError> {
    let library = library().ok_or(OpenError::NoDriver)?;
    match NEEDED.iter().find(|symbol| !has(library, symbol)) {
        Some(symbol) => Err(OpenError::OldDriver { symbol }),
        None => Ok(()),
    }
}

/// The function that records an event behind all work of a context, if the driver has it.
pub(crate) fn ctx_record_event() -> Option<CtxRecordEvent> {
    // SAFETY: the type is the function's prototype in cuda.h; its result is an enum of 4 bytes.
    unsafe { library()?.get::<CtxRecordEvent>(b"cuCtxRecordEvent") }.ok().map(|symbol| *symbol)
}

/// Whether the driver has user objects.
pub(crate) fn has_user_objects() -> bool {
    library().is_some_and(|library| USER_OBJECTS.iter().all(|symbol| has(library, symbol)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_needed_symbol_is_listed_once() {
        let mut sorted = NEEDED.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), NEEDED.len());
    }

    #[test]
    fn a_missing_driver_comes_with_advice() {
        assert!(OpenError::NoDriver.to_string().contains("SimDriver"));
    }
}
