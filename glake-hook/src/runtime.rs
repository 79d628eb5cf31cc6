//! The runtime API's stream-ordered allocations, for kernels that call it.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use glake_core::units::StreamId;
use libloading::os::unix::{Library, RTLD_LAZY};

use crate::exports::memory::{a_free, allocation};
use crate::hook::stream_id;
use crate::real::{Code, Handle, NOT_SUPPORTED, Ptr};

type Allocate = unsafe extern "C" fn(*mut *mut c_void, usize, Handle) -> Code;
type Free = unsafe extern "C" fn(*mut c_void, Handle) -> Code;

/// The runtime's own function, in the library behind the program.
fn next<F: Copy>(cell: &'static OnceLock<Option<F>>, name: &[u8]) -> Option<F> {
    *cell.get_or_init(|| {
        /// Only what is loaded already, on Linux: another version would be another runtime.
        const NO_LOAD: c_int = 4;
        let names = ["libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"];
        // SAFETY: nothing is loaded.
        let open = |name: &str| unsafe { Library::open(Some(name), RTLD_LAZY | NO_LOAD) }.ok();
        let library: &'static Library = Box::leak(Box::new(names.into_iter().find_map(open)?));
        // SAFETY: the type is the function's prototype; its result is an enum of 4 bytes.
        unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol)
    })
}

unsafe fn allocate(
    ptr: *mut *mut c_void,
    bytes: usize,
    stream: Handle,
    default: StreamId,
    own: Option<Allocate>,
) -> Code {
    let on = stream_id(stream, default);
    // SAFETY: the caller's arguments, passed on.
    let pass = || own.map_or(NOT_SUPPORTED, |own| unsafe { own(ptr, bytes, stream) });
    // SAFETY: the caller's pointer; an address has the size of a `CUdeviceptr`.
    unsafe { allocation(ptr.cast(), bytes, |hook| hook.allocate(bytes, on), pass) }
}

fn free(ptr: *mut c_void, stream: Handle, default: StreamId, own: Option<Free>) -> Code {
    let at = ptr.expose_provenance() as Ptr;
    let on = stream_id(stream, default);
    // SAFETY: the caller's arguments, passed on.
    let pass = || own.map_or(NOT_SUPPORTED, |own| unsafe { own(ptr, stream) });
    a_free(at, |hook| hook.free(at, on), pass)
}

macro_rules! functions {
    ($allocate:ident, $free:ident, $default:expr) => {
        /// # Safety
        /// As the runtime's.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's names")]
        unsafe extern "C" fn $allocate(ptr: *mut *mut c_void, bytes: usize, stream: Handle) -> Code {
            static OWN: OnceLock<Option<Allocate>> = OnceLock::new();
            // SAFETY: the caller's arguments.
            unsafe { allocate(ptr, bytes, stream, $default, next(&OWN, stringify!($allocate).as_bytes())) }
        }

        /// # Safety
        /// As the runtime's.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the runtime's names")]
        unsafe extern "C" fn $free(ptr: *mut c_void, stream: Handle) -> Code {
            static OWN: OnceLock<Option<Free>> = OnceLock::new();
            free(ptr, stream, $default, next(&OWN, stringify!($free).as_bytes()))
        }
    };
}

functions!(cudaMallocAsync, cudaFreeAsync, StreamId::LEGACY);
functions!(cudaMallocAsync_ptsz, cudaFreeAsync_ptsz, StreamId::PER_THREAD);
