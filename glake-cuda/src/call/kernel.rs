//! Modules and launches.

use std::ffi::{CStr, c_void};
use std::ptr;

use cudarc::driver::sys;
use glake_core::driver::Result;
use glake_core::units::DevicePtr;

use super::{Function, Module, Stream, check};

/// The size of a launch: blocks in two dimensions, threads per block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) threads: u32,
}

/// Compiles and loads PTX into the current context. May wait for device work.
pub(crate) fn load(ptx: &CStr) -> Result<Module> {
    let mut module = ptr::null_mut();
    // SAFETY: `module` is a live local; `ptx` ends in a NUL, as the driver expects of text.
    check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()) })?;
    Ok(Module::of(module))
}

/// Unloads a module.
///
/// # Safety
/// `module` is live and the caller's; none of its kernels runs or is launched again.
pub(crate) unsafe fn unload(module: Module) -> Result<()> {
    // SAFETY: the caller owns the module.
    check("cuModuleUnload", unsafe { sys::cuModuleUnload(module.cu()) })
}

/// A kernel of `module`.
///
/// # Safety
/// `module` is live.
pub(crate) unsafe fn function(module: Module, name: &CStr) -> Result<Function> {
    let mut function = ptr::null_mut();
    // SAFETY: the caller vouches for the module; `function` is a live local.
    let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module.cu(), name.as_ptr()) };
    check("cuModuleGetFunction", code)?;
    Ok(Function::of(function))
}

/// The address of a variable of `module`.
///
/// # Safety
/// `module` is live.
pub(crate) unsafe fn global(module: Module, name: &CStr) -> Result<DevicePtr> {
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: the caller vouches for the module; both outputs are live locals.
    let code =
        unsafe { sys::cuModuleGetGlobal_v2(&raw mut start, &raw mut bytes, module.cu(), name.as_ptr()) };
    check("cuModuleGetGlobal_v2", code)?;
    Ok(DevicePtr(start))
}

/// Enqueues a kernel whose parameters are all 64-bit words.
///
/// # Safety
/// `function` and `stream` are live, of one context; `words` are what the kernel takes, and the
/// addresses among them are valid for what it does, until it is done.
pub(crate) unsafe fn launch(function: Function, grid: Grid, words: &mut [u64], stream: Stream) -> Result<()> {
    let mut parameters: [*mut c_void; 8] = [ptr::null_mut(); 8];
    for (slot, word) in parameters.iter_mut().zip(words) {
        *slot = ptr::from_mut(word).cast();
    }
    let Grid { x, y, threads } = grid;
    let (at, extra) = (parameters.as_mut_ptr(), ptr::null_mut());
    // SAFETY: the caller vouches for kernel, stream and words; `at` points at the parameters,
    // which the driver reads before it returns.
    let code =
        unsafe { sys::cuLaunchKernel(function.cu(), x, y, 1, threads, 1, 1, 0, stream.cu(), at, extra) };
    check("cuLaunchKernel", code)
}
