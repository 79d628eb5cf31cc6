//! What all trials use: the hook, a context, the stand-in's counters.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};
use glake_hook::{Config, DeviceId, DevicePtr, Glake, Stats};

pub(crate) const FIRST: DeviceId = DeviceId(0);
pub(crate) const MIB: usize = 1 << 20;
/// Long enough that the host is ahead of it.
pub(crate) const DELAY_NS: u64 = 20_000_000;

const PTX: &str = include_str!("../../../glake-cuda/kernels/glake.ptx");

/// The driver's functions that allocate and free device memory.
const ALLOCATOR: [&str; 6] = [
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocPitch_v2",
    "cuMemFree_v2",
    "cuMemFreeAsync",
];

/// A program under the hook.
pub(crate) struct Program {
    pub(crate) glake: Glake,
    pub(crate) context: Arc<CudaContext>,
}

impl Program {
    pub(crate) fn new(config: Config) -> Self {
        let glake = glake_hook::install(config).unwrap();
        Self { glake, context: CudaContext::new(0).unwrap() }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.glake.memory_stats(FIRST)
    }

    /// Nothing reached the driver's allocator, and everything came back.
    pub(crate) fn is_clean(&self) {
        self.is_empty();
        assert_eq!(self.glake.passed_on(), glake_hook::PassedOn::default());
        assert_eq!(n_allocator_calls(), 0);
    }

    /// Everything came back.
    pub(crate) fn is_empty(&self) {
        let stats = self.stats();
        assert_eq!((stats.requested_bytes, stats.n_live), (0, 0));
        assert_eq!(stats.n_allocations, stats.n_frees);
        assert!(stats.n_allocations > 0);
    }
}

/// A kernel of glake's module. (cudarc's own loading needs the runtime compiler.)
#[derive(Clone, Copy)]
pub(crate) struct Kernel(sys::CUfunction);

impl Kernel {
    pub(crate) fn load(context: &Arc<CudaContext>, name: &str) -> Self {
        context.bind_to_thread().unwrap();
        let (text, name) = (CString::new(PTX).unwrap(), CString::new(name).unwrap());
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a module is written, the text is a C string. It stays loaded.
        unsafe { sys::cuModuleLoadData(&raw mut module, text.as_ptr().cast()) }.result().unwrap();
        // SAFETY: a function is written, the name is a C string.
        unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) }.result().unwrap();
        Self(function)
    }

    /// Launches it with so many blocks.
    ///
    /// # Safety
    /// The words are what the kernel takes, and the addresses among them are valid for what it does.
    pub(crate) unsafe fn launch(self, stream: &Arc<CudaStream>, n_blocks: u32, words: &mut [u64]) {
        // SAFETY: the stream is alive; the caller vouches for the words.
        unsafe { self.launch_on(stream.cu_stream(), n_blocks, words) };
    }

    /// As [`launch`](Self::launch), on a stream that is alive.
    ///
    /// # Safety
    /// As there.
    unsafe fn launch_on(self, stream: sys::CUstream, n_blocks: u32, words: &mut [u64]) {
        let mut arguments: Vec<_> = words.iter_mut().map(|word| (&raw mut *word).cast()).collect();
        // SAFETY: the function stays; the caller vouches for the words.
        let code = unsafe {
            sys::cuLaunchKernel(
                self.0,
                n_blocks,
                1,
                1,
                256,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        code.result().unwrap();
    }
}

/// Keeps a stream busy, so that the host is ahead of it.
pub(crate) fn delay(stream: &Arc<CudaStream>) {
    delay_on(stream.context(), stream.cu_stream());
}

/// As [`delay`], of a stream that is alive.
pub(crate) fn delay_on(context: &Arc<CudaContext>, stream: sys::CUstream) {
    let kernel = Kernel::load(context, "glake_delay");
    // SAFETY: the kernel takes one number, and touches no memory.
    unsafe { kernel.launch_on(stream, 1, &mut [DELAY_NS]) };
}

/// Calls of the driver's own allocator; 0 on a GPU, where nobody counts them.
pub(crate) fn n_allocator_calls() -> u64 {
    ALLOCATOR.iter().map(|name| n_calls(name)).sum()
}

/// How often a function of the stand-in was called.
pub(crate) fn n_calls(name: &str) -> u64 {
    type Calls = unsafe extern "C" fn(*const c_char) -> u64;
    // SAFETY: the driver was loaded before.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the stand-in's function has this type.
    let Ok(calls) = (unsafe { library.get::<Calls>(b"glake_standin_calls") }) else { return 0 };
    let name = CString::new(name).unwrap();
    // SAFETY: a C string.
    unsafe { calls(name.as_ptr()) }
}

/// Makes the `nth` call of a function from now on fail; whether the driver is one that can be told so.
pub(crate) fn fail(name: &str, nth: u64) -> bool {
    type Fail = unsafe extern "C" fn(*const c_char, u64, u32);
    // SAFETY: the driver was loaded before.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the stand-in's function has this type.
    let Ok(fail) = (unsafe { library.get::<Fail>(b"glake_standin_fail") }) else { return false };
    let name = CString::new(name).unwrap();
    // SAFETY: a C string.
    unsafe { fail(name.as_ptr(), nth, 1) };
    true
}

/// Whether work is done late, so that the host is ahead of it.
pub(crate) fn is_late() -> bool {
    !is_standin() || std::env::var("GLAKE_STANDIN_COMPLETION").is_ok_and(|completion| completion == "manual")
}

/// Whether the driver is the stand-in.
pub(crate) fn is_standin() -> bool {
    // SAFETY: the driver was loaded before.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: it is only looked up.
    unsafe { library.get::<*const ()>(b"glake_standin_calls") }.is_ok()
}

/// A function of the driver itself, past the hook.
///
/// # Safety
/// `F` is the type of a pointer to the function.
pub(crate) unsafe fn past_the_hook<F: Copy>(name: &str) -> F {
    // SAFETY: the driver was loaded before.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: the caller vouches for the type; the driver stays loaded.
    *unsafe { library.get::<F>(name.as_bytes()) }.unwrap()
}

/// Pinned memory.
pub(crate) fn pin(bytes: usize) -> *mut c_void {
    let mut host = ptr::null_mut();
    // SAFETY: an address is written.
    unsafe { sys::cuMemHostAlloc(&raw mut host, bytes, 0) }.result().unwrap();
    host
}

/// Gives pinned memory up, once.
pub(crate) fn unpin(host: *mut c_void) {
    // SAFETY: it came from `pin`, and nobody uses it after this.
    unsafe { sys::cuMemFreeHost(host) }.result().unwrap();
}

pub(crate) fn at(ptr: sys::CUdeviceptr) -> DevicePtr {
    DevicePtr(ptr)
}

/// The address of a slice.
pub(crate) fn address<T>(slice: &cudarc::driver::CudaSlice<T>) -> DevicePtr {
    use cudarc::driver::DevicePtr as _;
    DevicePtr(slice.device_ptr(slice.stream()).0)
}
