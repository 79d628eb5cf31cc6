//! Virtual memory.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use cudarc::driver::sys;
use glake_core::driver::{Access, Result};
use glake_core::units::{AddressRange, DevicePtr};

use super::{check, size};

/// `CUmemLocation`. cuda.h turned its `id` into a union in 13.2, so that cudarc's type depends on
/// the toolkit it was built for; the layout never changed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Location {
    kind: u32,
    id: i32,
}

/// `CUmemAllocationProp`, laid out as in cuda.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32_meta: *mut c_void,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`, laid out as in cuda.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    location: Location,
    flags: u32,
}

// SAFETY: the pointer is Windows metadata, null here and never followed.
unsafe impl Send for Properties {}
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for Properties {}

const LOCATION_DEVICE: u32 = 1;
const ALLOCATION_PINNED: u32 = 1;
const HANDLE_POSIX_FD: u32 = 1;
const POSIX_FD: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType_enum(HANDLE_POSIX_FD);

const _: () = {
    assert!(size_of::<Location>() == size_of::<sys::CUmemLocation>());
    assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());
    assert!(align_of::<Properties>() == align_of::<sys::CUmemAllocationProp>());
    assert!(size_of::<Right>() == size_of::<sys::CUmemAccessDesc>());
    assert!(align_of::<Right>() == align_of::<sys::CUmemAccessDesc>());
};

impl Properties {
    /// Memory on `device` that can be exported as a file descriptor if `shareable`, and that
    /// network cards can reach if `rdma` (each 0 or 1).
    pub(crate) const fn on(device: sys::CUdevice, shareable: u32, rdma: u8) -> Self {
        Self {
            kind: ALLOCATION_PINNED,
            handle_types: shareable * HANDLE_POSIX_FD,
            location: Location { kind: LOCATION_DEVICE, id: device },
            win32_meta: ptr::null_mut(),
            compression: 0,
            rdma,
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// The same without the promise that network cards can reach it.
    pub(crate) const fn without_rdma(&self) -> Self {
        Self { rdma: 0, ..*self }
    }

    /// The device that the memory lies on, if it lies on one.
    pub(crate) const fn device(&self) -> Option<sys::CUdevice> {
        if self.location.kind == LOCATION_DEVICE { Some(self.location.id) } else { None }
    }
}

impl Right {
    /// What `device` may do.
    pub(crate) const fn of(device: sys::CUdevice, access: Access) -> Self {
        let flags = match access {
            Access::None => 0,
            Access::ReadOnly => 1,
            Access::ReadWrite => 3,
        };
        Self { location: Location { kind: LOCATION_DEVICE, id: device }, flags }
    }
}

/// The smallest granule of sizes and addresses for such memory.
pub(crate) fn granularity(properties: &Properties) -> Result<u64> {
    let mut bytes = 0;
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: `bytes` is a live local; `properties` has the layout that the driver expects.
    let code = unsafe {
        sys::cuMemGetAllocationGranularity(&raw mut bytes, ptr::from_ref(properties).cast(), option)
    };
    check("cuMemGetAllocationGranularity", code)?;
    Ok(bytes as u64)
}

/// Reserves addresses.
pub(crate) fn reserve(bytes: u64, align_bytes: u64) -> Result<DevicePtr> {
    let mut start = 0;
    // SAFETY: `start` is a live local; the driver checks the numbers.
    let code = unsafe { sys::cuMemAddressReserve(&raw mut start, size(bytes), size(align_bytes), 0, 0) };
    check("cuMemAddressReserve", code)?;
    Ok(DevicePtr(start))
}

/// Gives reserved addresses back.
///
/// # Safety
/// `range` is a reservation of the caller's, and nothing is mapped in it.
pub(crate) unsafe fn unreserve(range: AddressRange) -> Result<()> {
    // SAFETY: the caller owns the reservation.
    check("cuMemAddressFree", unsafe { sys::cuMemAddressFree(range.start.0, size(range.bytes)) })
}

/// Creates physical memory.
pub(crate) fn create(bytes: u64, properties: &Properties) -> Result<u64> {
    let mut handle = 0;
    // SAFETY: `handle` is a live local; `properties` has the layout that the driver expects.
    let code = unsafe { sys::cuMemCreate(&raw mut handle, size(bytes), ptr::from_ref(properties).cast(), 0) };
    check("cuMemCreate", code)?;
    Ok(handle)
}

/// Releases physical memory.
///
/// # Safety
/// `handle` is live and the caller's; it is not used again.
pub(crate) unsafe fn release(handle: u64) -> Result<()> {
    // SAFETY: the caller owns the handle.
    check("cuMemRelease", unsafe { sys::cuMemRelease(handle) })
}

/// Maps the whole of a handle.
///
/// # Safety
/// `range` lies free in a reservation of the caller's; `handle` is live and `range.bytes` long.
pub(crate) unsafe fn map(range: AddressRange, handle: u64) -> Result<()> {
    // SAFETY: the caller owns the range and the handle.
    check("cuMemMap", unsafe { sys::cuMemMap(range.start.0, size(range.bytes), 0, handle, 0) })
}

/// Unmaps whole mappings.
///
/// # Safety
/// `range` covers whole mappings of the caller's, which the device does not use any more.
pub(crate) unsafe fn unmap(range: AddressRange) -> Result<()> {
    // SAFETY: the caller owns the mappings.
    check("cuMemUnmap", unsafe { sys::cuMemUnmap(range.start.0, size(range.bytes)) })
}

/// Sets what devices may do with whole mappings.
///
/// # Safety
/// `range` covers whole mappings of the caller's.
pub(crate) unsafe fn set_access(range: AddressRange, rights: &[Right]) -> Result<()> {
    let (start, bytes) = (range.start.0, size(range.bytes));
    // SAFETY: the caller owns the mappings; `rights` has the layout that the driver expects.
    let code = unsafe { sys::cuMemSetAccess(start, bytes, rights.as_ptr().cast(), rights.len()) };
    check("cuMemSetAccess", code)
}

/// A file descriptor that stands for `handle`.
///
/// # Safety
/// `handle` is live.
pub(crate) unsafe fn export(handle: u64) -> Result<OwnedFd> {
    let mut fd: RawFd = -1;
    // SAFETY: the caller vouches for the handle; the driver writes an `int` to `fd`, a live local.
    let code = unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX_FD, 0) };
    check("cuMemExportToShareableHandle", code)?;
    // SAFETY: the driver has just made this descriptor and handed it over.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The handle behind an exported file descriptor, which stays the caller's.
pub(crate) fn import(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut handle = 0;
    let os = ptr::without_provenance_mut(fd.as_raw_fd().unsigned_abs() as usize);
    // SAFETY: `handle` is a live local; `os` carries the descriptor by value, and the driver
    // checks what it stands for.
    let code = unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, os, POSIX_FD) };
    check("cuMemImportFromShareableHandle", code)?;
    Ok(handle)
}

/// What kind of memory a handle is.
///
/// # Safety
/// `handle` is live.
pub(crate) unsafe fn properties(handle: u64) -> Result<Properties> {
    let mut properties = Properties::on(-1, 0, 0);
    let out = (&raw mut properties).cast();
    // SAFETY: the caller vouches for the handle; `out` points at a local of the right layout.
    let code = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(out, handle) };
    check("cuMemGetAllocationPropertiesFromHandle", code)?;
    Ok(properties)
}
