//! The driver's own calls, for comparison. The primary context is current on the thread.

use std::error::Error;

use cudarc::driver::sys::{self, CUmemPool_attribute, CUresult};
use glake_core::units::DevicePtr;

use crate::Machine;

fn check(code: CUresult) -> Result<(), Box<dyn Error>> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("{code:?}").into()),
    }
}

/// Makes the default memory pool keep what it has.
pub(crate) fn keep_all(machine: &Machine) -> Result<(), Box<dyn Error>> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is a live local, the device is that of a live context.
    check(unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, machine.context.cu_device()) })?;
    let mut threshold = u64::MAX;
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool is the driver's own; the attribute is a 64-bit number.
    check(unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()) })
}

/// Gives what the default memory pool keeps back.
pub(crate) fn give_back(machine: &Machine) -> Result<(), Box<dyn Error>> {
    machine.stream.synchronize()?;
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is a live local, the device is that of a live context.
    check(unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, machine.context.cu_device()) })?;
    // SAFETY: the pool is the driver's own.
    check(unsafe { sys::cuMemPoolTrimTo(pool, 0) })
}

/// `cuMemAllocAsync`.
pub(crate) fn allocate_async(machine: &Machine, bytes: usize) -> Result<u64, Box<dyn Error>> {
    let mut at = 0;
    // SAFETY: `at` is a live local, the stream is alive.
    check(unsafe { sys::cuMemAllocAsync(&raw mut at, bytes, machine.stream.cu_stream()) })?;
    Ok(at)
}

/// `cuMemFreeAsync` of what [`allocate_async`] returned.
pub(crate) fn free_async(machine: &Machine, at: u64) -> Result<(), Box<dyn Error>> {
    // SAFETY: no work uses the memory; a stale or foreign address is an error of the driver's.
    check(unsafe { sys::cuMemFreeAsync(at, machine.stream.cu_stream()) })
}

/// `cuMemAlloc`.
pub(crate) fn allocate(bytes: usize) -> Result<DevicePtr, Box<dyn Error>> {
    let mut at = 0;
    // SAFETY: `at` is a live local.
    check(unsafe { sys::cuMemAlloc_v2(&raw mut at, bytes) })?;
    Ok(DevicePtr(at))
}

/// `cuMemFree` of what [`allocate`] returned.
pub(crate) fn free(at: DevicePtr) -> Result<(), Box<dyn Error>> {
    // SAFETY: waits for the work that uses the memory; a foreign address is an error.
    check(unsafe { sys::cuMemFree_v2(at.0) })
}

/// Enqueues a copy by the copy engine, wherever the ranges lie.
///
/// # Safety
/// Both ranges are mapped until the copy is done.
pub(crate) unsafe fn copy(
    machine: &Machine,
    dst: DevicePtr,
    src: DevicePtr,
    bytes: usize,
) -> Result<(), Box<dyn Error>> {
    // SAFETY: the caller vouches for the ranges, and the stream is alive.
    check(unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, bytes, machine.stream.cu_stream()) })
}
