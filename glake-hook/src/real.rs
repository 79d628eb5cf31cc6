//! The driver's own functions, which the hook's stand in front of.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use libloading::Library;

/// A result of the driver, by its number.
pub(crate) type Code = u32;
/// A `CUdeviceptr`.
pub(crate) type Ptr = u64;
/// A `CUcontext`, `CUstream`, `CUgraph`, `CUmemoryPool`: never dereferenced here.
pub(crate) type Handle = *mut c_void;

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Code = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Code = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`: what there is to say without a driver.
pub(crate) const NOT_INITIALIZED: Code = 3;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = 704;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: Code = 801;

/// The library that the driver's own functions come from. Its other name, `libcuda.so`, is left alone:
/// who asks for it first decides what it means.
const DRIVER: &str = "libcuda.so.1";

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        /// The functions by their names; those that the driver lacks return [`NOT_SUPPORTED`].
        #[allow(non_snake_case, reason = "the driver's names")]
        pub(crate) struct Real {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> Code,)*
        }

        impl Real {
            fn load(library: &Library) -> Self {
                Self {
                    $($name: {
                        unsafe extern "C" fn missing($(_: $type),*) -> Code { NOT_SUPPORTED }
                        // SAFETY: the type is the function's prototype in cuda.h; its result is an enum of 4 bytes.
                        let found = unsafe { library.get(stringify!($name).as_bytes()) };
                        found.map_or(missing as unsafe extern "C" fn($($type),*) -> Code, |found| *found)
                    },)*
                }
            }
        }
    };
}

functions! {
    cuMemAlloc_v2(ptr: *mut Ptr, bytes: usize);
    cuMemAllocPitch_v2(ptr: *mut Ptr, pitch: *mut usize, width: usize, height: usize, element: c_uint);
    cuMemFree_v2(ptr: Ptr);
    cuMemAllocAsync(ptr: *mut Ptr, bytes: usize, stream: Handle);
    cuMemAllocFromPoolAsync(ptr: *mut Ptr, bytes: usize, pool: Handle, stream: Handle);
    cuMemFreeAsync(ptr: Ptr, stream: Handle);
    cuMemPoolCreate(pool: *mut Handle, properties: *const c_void);
    cuMemPoolDestroy(pool: Handle);
    cuMemPoolSetAccess(pool: Handle, rights: *const c_void, n: usize);
    cuDeviceGetMemPool(pool: *mut Handle, device: c_int);
    cuDeviceSetMemPool(device: c_int, pool: Handle);
    cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void);
    cuMemPoolTrimTo(pool: Handle, keep: usize);
    cuDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int);
    cuMemcpy(dst: Ptr, src: Ptr, bytes: usize);
    cuMemcpy_ptds(dst: Ptr, src: Ptr, bytes: usize);
    cuMemcpyAsync(dst: Ptr, src: Ptr, bytes: usize, stream: Handle);
    cuMemcpyHtoD_v2(dst: Ptr, src: *const c_void, bytes: usize);
    cuMemcpyHtoD_v2_ptds(dst: Ptr, src: *const c_void, bytes: usize);
    cuMemcpyHtoDAsync_v2(dst: Ptr, src: *const c_void, bytes: usize, stream: Handle);
    cuMemcpyDtoH_v2(dst: *mut c_void, src: Ptr, bytes: usize);
    cuMemcpyDtoH_v2_ptds(dst: *mut c_void, src: Ptr, bytes: usize);
    cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: Ptr, bytes: usize, stream: Handle);
    cuPointerGetAttribute(value: *mut c_void, attribute: c_int, ptr: Ptr);
    cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemAllocHost_v2(ptr: *mut *mut c_void, bytes: usize);
    cuMemFreeHost(ptr: *mut c_void);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemGetAddressRange_v2(base: *mut Ptr, bytes: *mut usize, ptr: Ptr);
    cuCtxEnablePeerAccess(peer: Handle, flags: c_uint);
    cuIpcGetMemHandle(handle: *mut c_void, ptr: Ptr);
    cuGetProcAddress(name: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong);
    cuGetProcAddress_v2(
        name: *const c_char, function: *mut *mut c_void, version: c_int, flags: c_ulonglong, status: *mut c_int,
    );
    cuCtxGetCurrent(context: *mut Handle);
    cuCtxSetCurrent(context: Handle);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxSynchronize();
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuStreamGetCtx(stream: Handle, context: *mut Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamIsCapturing(stream: Handle, status: *mut c_int);
    cuStreamGetCaptureInfo_v2(
        stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle, dependencies: *mut c_void,
        n_dependencies: *mut usize,
    );
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, dependencies: *const Handle, edges: *const c_void, n: usize, mode: c_int,
    );
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
}

/// The driver's functions, loaded once; none where there is no driver.
pub(crate) fn real() -> Option<&'static Real> {
    static REAL: OnceLock<Option<Real>> = OnceLock::new();
    REAL.get_or_init(|| {
        // SAFETY: NVIDIA guarantees that loading the library has no effect but its own initialisation. It
        // stays loaded.
        let library = unsafe { Library::new(DRIVER) }.ok()?;
        let library: &'static Library = Box::leak(Box::new(library));
        Some(Real::load(library))
    })
    .as_ref()
}
