//! Virtual memory keeps the rules of the hardware, between processes too.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{self, Command};
use std::sync::Arc;
use std::{env, fs, mem};

use cudarc::driver::CudaContext;
use cudarc::driver::result::{memcpy_dtoh_sync, memcpy_htod_sync};
use cudarc::driver::sys::{self, CUresult};
use glake_standin::alone;

const PAGE: usize = 2 << 20;
const NOTHING: u32 = 0;
const READ_WRITE: u32 = 3;
/// Where the other process finds the exported memory.
const SHARED: &str = "GLAKE_STANDIN_TEST_SHARED";

fn over(name: &str, test: fn()) {
    alone(name, &[], |_| {
        let _context: Arc<CudaContext> = CudaContext::new(0).unwrap();
        test();
    });
}

/// Memory on device 0 that can be exported.
fn properties() -> sys::CUmemAllocationProp {
    // SAFETY: the structure is plain numbers, and zero is valid for each.
    let mut properties: sys::CUmemAllocationProp = unsafe { mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = sys::CUmemAllocationHandleType_enum(1);
    properties.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    properties
}

fn reserve(n_pages: usize) -> u64 {
    let mut start = 0;
    // SAFETY: `start` is a live local.
    unsafe { sys::cuMemAddressReserve(&raw mut start, n_pages * PAGE, 0, 0, 0) }.result().unwrap();
    start
}

fn create(n_pages: usize) -> u64 {
    let (mut handle, properties) = (0, properties());
    // SAFETY: both are live locals.
    let created = unsafe { sys::cuMemCreate(&raw mut handle, n_pages * PAGE, &raw const properties, 0) };
    created.result().unwrap();
    handle
}

fn map(start: u64, n_pages: usize, offset: usize, handle: u64) -> CUresult {
    // SAFETY: the stand-in checks what it is given.
    unsafe { sys::cuMemMap(start, n_pages * PAGE, offset, handle, 0) }
}

fn unmap(start: u64, n_pages: usize) -> CUresult {
    // SAFETY: as above.
    unsafe { sys::cuMemUnmap(start, n_pages * PAGE) }
}

fn set_access(start: u64, n_pages: usize, flags: u32) -> CUresult {
    let right = sys::CUmemAccessDesc {
        location: properties().location,
        flags: match flags {
            NOTHING => sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            _ => sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        },
    };
    // SAFETY: the right is a live local.
    unsafe { sys::cuMemSetAccess(start, n_pages * PAGE, &raw const right, 1) }
}

fn put(at: u64, byte: u8) -> Option<CUresult> {
    // SAFETY: the stand-in checks the address.
    unsafe { memcpy_htod_sync(at, &[byte]) }.err().map(|error| error.0)
}

fn get(at: u64) -> u8 {
    let mut byte = [0];
    // SAFETY: the stand-in checks the address.
    unsafe { memcpy_dtoh_sync(&mut byte, at) }.unwrap();
    byte[0]
}

/// What the host itself may do at an address.
fn rights_of_the_host(at: u64) -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |range: &str| {
        let (start, end) = range.split_once('-').unwrap();
        let parse = |text| u64::from_str_radix(text, 16).unwrap();
        (parse(start)..parse(end)).contains(&at)
    };
    let line = maps.lines().find(|line| holds(line.split(' ').next().unwrap())).unwrap();
    line.split(' ').nth(1).unwrap().to_owned()
}

#[test]
fn handles_are_mapped_and_unmapped_whole() {
    over("handles_are_mapped_and_unmapped_whole", || {
        let (start, handle) = (reserve(4), create(2));
        assert_eq!(map(start, 1, PAGE, handle), CUresult::CUDA_ERROR_NOT_SUPPORTED, "from an offset");
        assert_eq!(map(start, 1, 0, handle), CUresult::CUDA_ERROR_INVALID_VALUE, "a part");
        assert_eq!(map(start, 2, 0, handle), CUresult::CUDA_SUCCESS);
        assert_eq!(map(start + PAGE as u64, 2, 0, handle), CUresult::CUDA_ERROR_INVALID_VALUE, "over it");
        assert_eq!(unmap(start, 1), CUresult::CUDA_ERROR_INVALID_VALUE, "a part");
        assert_eq!(unmap(start, 2), CUresult::CUDA_SUCCESS);
    });
}

#[test]
fn the_host_itself_is_kept_out_of_what_no_device_may_touch() {
    over("the_host_itself_is_kept_out_of_what_no_device_may_touch", || {
        let (start, handle) = (reserve(2), create(1));
        assert_eq!(rights_of_the_host(start), "---p", "reserved");
        map(start, 1, 0, handle).result().unwrap();
        assert_eq!(rights_of_the_host(start), "---s", "mapped");
        assert_eq!(put(start, 1), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
        set_access(start, 1, READ_WRITE).result().unwrap();
        assert_eq!((rights_of_the_host(start).as_str(), put(start, 1)), ("rw-s", None));
        set_access(start, 1, NOTHING).result().unwrap();
        assert_eq!(rights_of_the_host(start), "---s", "taken again");
    });
}

#[test]
fn a_mapping_tells_its_handle() {
    over("a_mapping_tells_its_handle", || {
        let (start, handle) = (reserve(1), create(1));
        map(start, 1, 0, handle).result().unwrap();
        let mut found = 0;
        let address = std::ptr::without_provenance_mut(usize::try_from(start).unwrap() + 4096);
        // SAFETY: `found` is a live local.
        unsafe { sys::cuMemRetainAllocationHandle(&raw mut found, address) }.result().unwrap();
        assert_eq!(found, handle);
        // SAFETY: the handle is held twice.
        let releases = [(); 3].map(|()| unsafe { sys::cuMemRelease(handle) });
        let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
        assert_eq!(releases, [CUresult::CUDA_SUCCESS, CUresult::CUDA_SUCCESS, refused]);
    });
}

/// One process exports, another imports; what one writes the other reads.
#[test]
fn two_processes_share_a_handle() {
    const NAME: &str = "two_processes_share_a_handle";
    over(NAME, || {
        let start = reserve(1);
        if let Some(path) = env::var_os(SHARED) {
            let file = File::options().read(true).write(true).open(path).unwrap();
            let (mut handle, fd) = (0, usize::try_from(file.as_raw_fd()).unwrap());
            let kind = sys::CUmemAllocationHandleType_enum(1);
            let os = std::ptr::without_provenance_mut(fd);
            // SAFETY: `handle` is a live local; the descriptor is open.
            unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, os, kind) }.result().unwrap();
            map(start, 1, 0, handle).result().unwrap();
            set_access(start, 1, READ_WRITE).result().unwrap();
            assert_eq!((get(start), put(start + 1, 8)), (7, None));
            return;
        }
        let handle = create(1);
        map(start, 1, 0, handle).result().unwrap();
        set_access(start, 1, READ_WRITE).result().unwrap();
        assert_eq!(put(start, 7), None);
        let mut fd = -1;
        let kind = sys::CUmemAllocationHandleType_enum(1);
        // SAFETY: the driver writes a descriptor to `fd`, a live local.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, kind, 0) }.result().unwrap();
        // SAFETY: the driver has just made the descriptor and handed it over.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let path = format!("/proc/{}/fd/{}", process::id(), fd.as_raw_fd());
        let other =
            Command::new(env::current_exe().unwrap()).args([NAME, "--exact"]).env(SHARED, path).output();
        let other = other.unwrap();
        assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
        assert_eq!([get(start), get(start + 1)], [7, 8]);
    });
}
