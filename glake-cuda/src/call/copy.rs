//! Copies, fills, and pinned host memory.

use std::ptr::{self, NonNull};

use cudarc::driver::sys::{self, CUpointer_attribute as Attribute};
use glake_core::driver::{DriverError, Result};
use glake_core::units::{AddressRange, DevicePtr};

use super::{Stream, check, size};

/// Allocates `bytes` of pinned host memory that every device can reach at the same address.
pub(crate) fn host_alloc(bytes: usize) -> Result<NonNull<u8>> {
    let mut start = ptr::null_mut();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: `start` is a live local.
    check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut start, bytes, flags) })?;
    NonNull::new(start.cast()).ok_or(DriverError::OutOfMemory)
}

/// Frees pinned host memory. May wait for device work.
///
/// # Safety
/// `start` is from [`host_alloc`]; neither host nor device uses it again.
pub(crate) unsafe fn host_free(start: NonNull<u8>) -> Result<()> {
    // SAFETY: the caller owns the memory.
    check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(start.as_ptr().cast()) })
}

/// Whether the byte at `address` lies in pinned host memory; what the driver does not know does not.
pub(crate) fn is_pinned(address: *const u8) -> bool {
    // Managed memory may lie on the host, too, but moves.
    let managed = attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    let kind = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    managed == Ok(0) && kind == Ok(sys::CUmemorytype::CU_MEMORYTYPE_HOST as u64)
}

/// An attribute of an address that is a number of at most 8 bytes, or a boolean.
fn attribute(which: Attribute, address: *const u8) -> Result<u64> {
    // As long as the longest, and zero in front: the host is little-endian.
    let mut value = 0u64;
    let data = (&raw mut value).cast();
    // SAFETY: `value` is a live local and long enough; the driver only looks the address up.
    let code = unsafe { sys::cuPointerGetAttribute(data, which, address.addr() as u64) };
    check("cuPointerGetAttribute", code)?;
    Ok(value)
}

/// Enqueues a copy to the device.
///
/// # Safety
/// `dst` is mapped for that length; `src` stays readable until the copy is done; `stream` is live.
pub(crate) unsafe fn to_device(dst: DevicePtr, src: *const [u8], stream: Stream) -> Result<()> {
    // SAFETY: the caller vouches for both ranges and the stream.
    let code = unsafe { sys::cuMemcpyHtoDAsync_v2(dst.0, src.cast(), src.len(), stream.cu()) };
    check("cuMemcpyHtoDAsync_v2", code)
}

/// Enqueues a copy to the host.
///
/// # Safety
/// `src` is mapped for that length; `dst` stays writable, and nobody else's, until the copy is
/// done; `stream` is live.
pub(crate) unsafe fn to_host(dst: *mut [u8], src: DevicePtr, stream: Stream) -> Result<()> {
    // SAFETY: the caller vouches for both ranges and the stream.
    let code = unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src.0, dst.len(), stream.cu()) };
    check("cuMemcpyDtoHAsync_v2", code)
}

/// Enqueues a copy on the device, or between peers.
///
/// # Safety
/// Both ranges are mapped; `stream` is live.
pub(crate) unsafe fn on_device(dst: DevicePtr, src: DevicePtr, bytes: u64, stream: Stream) -> Result<()> {
    // SAFETY: the caller vouches for both ranges and the stream.
    let code = unsafe { sys::cuMemcpyDtoDAsync_v2(dst.0, src.0, size(bytes), stream.cu()) };
    check("cuMemcpyDtoDAsync_v2", code)
}

/// Enqueues a fill.
///
/// # Safety
/// `range` is mapped; `stream` is live.
pub(crate) unsafe fn fill(range: AddressRange, value: u8, stream: Stream) -> Result<()> {
    // SAFETY: the caller vouches for the range and the stream.
    let code = unsafe { sys::cuMemsetD8Async(range.start.0, value, size(range.bytes), stream.cu()) };
    check("cuMemsetD8Async", code)
}
