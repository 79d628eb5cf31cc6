//! Devices and contexts.

use std::ptr;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use glake_core::driver::Result;

use super::{Context, check};

/// Starts the driver.
pub(crate) fn init() -> Result<(), sys::CUresult> {
    // SAFETY: may be called at any time; the flags must be 0.
    match unsafe { sys::cuInit(0) } {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// How many devices there are.
pub(crate) fn count() -> Result<i32> {
    let mut n = 0;
    // SAFETY: `n` is a live local.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut n) })?;
    Ok(n)
}

/// The device with this ordinal.
pub(crate) fn get(ordinal: i32) -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is a live local; the driver checks the ordinal.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, ordinal) })?;
    Ok(device)
}

/// An attribute of a device.
pub(crate) fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: `value` is a live local; the driver checks the device.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) })?;
    Ok(value)
}

/// Whether `device` can reach the memory of `peer`.
pub(crate) fn can_access(device: sys::CUdevice, peer: sys::CUdevice) -> Result<bool> {
    let mut can = 0;
    // SAFETY: `can` is a live local; the driver checks the devices.
    check("cuDeviceCanAccessPeer", unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, device, peer) })?;
    Ok(can != 0)
}

/// Retains a device's primary context.
pub(crate) fn retain(device: sys::CUdevice) -> Result<Context> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a live local; the driver checks the device.
    check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, device) })?;
    Ok(Context::of(context))
}

/// Gives a retained primary context back.
///
/// # Safety
/// Balances one [`retain`]; nothing of the caller's lives in the context any more.
pub(crate) unsafe fn release(device: sys::CUdevice) -> Result<()> {
    // SAFETY: the caller balances a retain.
    check("cuDevicePrimaryCtxRelease_v2", unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) })
}

/// The context current on the calling thread; 0 if there is none.
pub(crate) fn current() -> Result<Context> {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is a live local.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&raw mut context) })?;
    Ok(Context::of(context))
}

/// The device of the context current on the calling thread.
pub(crate) fn of_current() -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is a live local; without a current context the driver returns an error.
    check("cuCtxGetDevice", unsafe { sys::cuCtxGetDevice(&raw mut device) })?;
    Ok(device)
}

/// Makes `context` current on the calling thread.
///
/// # Safety
/// `context` is 0 or a live context.
pub(crate) unsafe fn set_current(context: Context) -> Result<()> {
    // SAFETY: the caller vouches for the context.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.cu()) })
}

/// Blocks until all work of the current context is done.
pub(crate) fn synchronize() -> Result<()> {
    // SAFETY: takes nothing; without a current context it returns an error.
    check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
}

/// Sets how the calling thread's calls bear on stream captures, and returns how they did.
pub(crate) fn exchange_capture_mode(mode: sys::CUstreamCaptureMode) -> Result<sys::CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: `mode` is a live local.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    check("cuThreadExchangeStreamCaptureMode", code)?;
    Ok(mode)
}

/// Free and total bytes of the current context's device.
pub(crate) fn memory_info() -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are live locals.
    check("cuMemGetInfo_v2", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free as u64, total as u64))
}
