//! Allocations and frees of one program.

use std::ptr;

use cudarc::driver::sys;
use glake_hook::Config;

use crate::driver::{
    FIRST, MIB, Program, address, at, delay, is_standin, n_allocator_calls, n_calls, past_the_hook, pin,
    unpin,
};

pub(crate) fn a_program_allocates_from_the_pool() {
    let program = Program::new(Config::new());
    for stream in [
        program.context.default_stream(),
        program.context.per_thread_stream(),
        program.context.new_stream().unwrap(),
    ] {
        for n in [1usize, 100, 4096, 100_000, 3_000_000] {
            let values: Vec<u32> = (0..u32::try_from(n).unwrap()).collect();
            let there = stream.clone_htod(&values).unwrap();
            assert!(program.glake.owns(address(&there)));
            let mut handle = 0;
            // SAFETY: the address is a slice's.
            let retained =
                unsafe { sys::cuMemRetainAllocationHandle(&raw mut handle, address(&there).0 as *mut _) };
            assert_eq!(retained, sys::CUresult::CUDA_SUCCESS, "it is memory of the virtual memory API");
            // SAFETY: balances the retain.
            assert_eq!(unsafe { sys::cuMemRelease(handle) }, sys::CUresult::CUDA_SUCCESS);
            let copy = stream.clone_dtod(&there).unwrap();
            drop(there);
            assert_eq!(stream.clone_dtoh(&copy).unwrap(), values);
            assert!(program.stats().requested_bytes >= 4 * n as u64);
        }
        stream.synchronize().unwrap();
    }
    program.is_clean();
    assert!(!is_standin() || n_calls("cuMemCreate") > 0);
}

pub(crate) fn zero_bytes_and_foreign_memory_are_the_drivers() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    // A driver gives or refuses it.
    drop(stream.null::<u8>());
    assert_eq!(program.stats().n_allocations, 0);
    let _ = program.context.check_err();
    let mut ptr = 0;
    // SAFETY: an address is written.
    let zero = unsafe { sys::cuMemAllocAsync(&raw mut ptr, 0, stream.cu_stream()) };
    assert_eq!(program.stats().n_allocations, 0, "{zero:?}");

    // Memory of the driver's own, allocated past the hook.
    let foreign = foreign_memory(&program);
    assert!(!program.glake.owns(at(foreign)));
    let before = n_calls("cuMemFree_v2");
    program.context.bind_to_thread().unwrap();
    // SAFETY: the memory is given up.
    assert_eq!(unsafe { sys::cuMemFree_v2(foreign) }, sys::CUresult::CUDA_SUCCESS);
    assert!(!is_standin() || n_calls("cuMemFree_v2") == before + 1, "it went to the driver");
    assert_eq!(program.glake.passed_on().n_frees, 1);

    // What is freed twice is said to be.
    let mut ptr = 0;
    // SAFETY: an address is written, and given up.
    unsafe {
        assert_eq!(sys::cuMemAlloc_v2(&raw mut ptr, 5000), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuMemFree_v2(ptr), sys::CUresult::CUDA_SUCCESS);
        assert_eq!(sys::cuMemFree_v2(ptr), sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuMemFreeAsync(ptr, stream.cu_stream()), sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(sys::cuMemAlloc_v2(ptr::null_mut(), 5000), sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    program.is_empty();
}

/// Memory that the driver itself allocated.
fn foreign_memory(program: &Program) -> sys::CUdeviceptr {
    type Allocate = unsafe extern "C" fn(*mut sys::CUdeviceptr, usize) -> sys::CUresult;
    // SAFETY: the function's type.
    let allocate = unsafe { past_the_hook::<Allocate>("cuMemAlloc_v2") };
    program.context.bind_to_thread().unwrap();
    let mut ptr = 0;
    // SAFETY: an address is written.
    assert_eq!(unsafe { allocate(&raw mut ptr, MIB) }, sys::CUresult::CUDA_SUCCESS);
    ptr
}

pub(crate) fn out_of_memory_is_said_and_got_over() {
    let program = Program::new(Config::new().limit_bytes(64 << 20));
    let stream = program.context.new_stream().unwrap();
    let kept = stream.alloc_zeros::<u8>(40 * MIB).unwrap();
    for _ in 0..3 {
        let refused = stream.alloc_zeros::<u8>(40 * MIB).unwrap_err();
        assert_eq!(refused.0, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let mut ptr = 0;
    // SAFETY: an address would be written.
    let plain = unsafe { sys::cuMemAlloc_v2(&raw mut ptr, 40 * MIB) };
    assert_eq!(plain, sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(program.stats().n_failures, 4);
    let free = program.context.mem_get_info().unwrap().0;
    assert!((20 * MIB..=24 * MIB).contains(&free), "{free} bytes are left of the limit");
    drop(kept);
    drop(stream.alloc_zeros::<u8>(60 * MIB).unwrap());
    stream.synchronize().unwrap();
    program.is_clean();
    assert!(program.stats().peak_reserved_bytes <= 64 << 20);
}

pub(crate) fn memory_without_a_stream_is_ready_at_once() {
    let program = Program::new(Config::new().limit_bytes(8 << 20));
    let stream = program.context.new_stream().unwrap();
    // All there is, used by work that goes on.
    let used = stream.alloc_zeros::<u8>(8 * MIB).unwrap();
    delay(&stream);
    let mut used = used;
    stream.memset_zeros(&mut used).unwrap();
    drop(used);
    let mut ptr = 0;
    // SAFETY: an address is written.
    unsafe { sys::cuMemAlloc_v2(&raw mut ptr, 8 * MIB) }.result().unwrap();
    // Nothing orders what the host does now against the stream.
    let ones = vec![1u8; 8 * MIB];
    // SAFETY: the memory is as long.
    unsafe { sys::cuMemcpyHtoD_v2(ptr, ones.as_ptr().cast(), ones.len()) }.result().unwrap();
    stream.synchronize().unwrap();
    let mut back = vec![0u8; 8 * MIB];
    // SAFETY: as above.
    unsafe { sys::cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), ptr, back.len()) }.result().unwrap();
    assert_eq!(back, ones, "the fill of before came first");
    // SAFETY: given up.
    unsafe { sys::cuMemFree_v2(ptr) }.result().unwrap();
    // Freed without a stream, used on one.
    drop(stream.alloc_zeros::<u8>(8 * MIB).unwrap());
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn pitched_rows_are_aligned() {
    let program = Program::new(Config::new());
    program.context.bind_to_thread().unwrap();
    for (width, height) in [(1usize, 1usize), (100, 7), (512, 3), (5000, 300)] {
        let (mut ptr, mut pitch) = (0, 0);
        // SAFETY: an address and a pitch are written.
        unsafe { sys::cuMemAllocPitch_v2(&raw mut ptr, &raw mut pitch, width, height, 4) }.result().unwrap();
        assert!(pitch >= width && pitch.is_multiple_of(512) && ptr.is_multiple_of(512));
        assert_eq!(program.stats().requested_bytes, (pitch * height) as u64);
        // SAFETY: inside of the last row.
        unsafe { sys::cuMemsetD8_v2(ptr + (pitch * (height - 1)) as u64, 1, width) }.result().unwrap();
        // SAFETY: given up.
        unsafe { sys::cuMemFree_v2(ptr) }.result().unwrap();
    }
    let (mut ptr, mut pitch) = (0, 0);
    // SAFETY: refused, for the size of an element.
    let refused = unsafe { sys::cuMemAllocPitch_v2(&raw mut ptr, &raw mut pitch, 8, 8, 3) };
    assert_ne!(refused, sys::CUresult::CUDA_SUCCESS);
    program.is_empty();
}

pub(crate) fn pinned_memory_is_kept_and_not_too_early() {
    let program = Program::new(Config::new().pinned_bytes(4 << 20));
    let stream = program.context.new_stream().unwrap();
    let first = pin(MIB);
    // SAFETY: as long as that.
    unsafe { first.cast::<u8>().write_bytes(7, MIB) };
    let mut there = stream.alloc_zeros::<u8>(MIB).unwrap();
    delay(&stream);
    {
        use cudarc::driver::DevicePtrMut as _;
        let (to, _guard) = there.device_ptr_mut(&stream);
        // SAFETY: both are as long; the memory is freed behind the copy only.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, first, MIB, stream.cu_stream()) }.result().unwrap();
    }
    unpin(first);
    let second = pin(MIB);
    // SAFETY: as long as that.
    unsafe { second.cast::<u8>().write_bytes(9, MIB) };
    assert_eq!(stream.clone_dtoh(&there).unwrap(), vec![7u8; MIB]);
    stream.synchronize().unwrap();
    unpin(second);
    let n_pins = n_calls("cuMemHostAlloc");
    let third = pin(MIB - 100);
    assert!(third == first || third == second, "both are free by now");
    assert_eq!(n_calls("cuMemHostAlloc"), n_pins);
    unpin(third);
    // What is kept has a limit, and none is kept of what is too large.
    for _ in 0..3 {
        let many: Vec<_> = (0..8).map(|_| pin(MIB)).collect();
        many.into_iter().for_each(unpin);
        unpin(pin(100 * MIB));
    }
    program.glake.set_option("GLAKE_PINNED_CACHE", "0").unwrap();
    if is_standin() {
        let n_pinned = n_calls("cuMemHostAlloc") + n_calls("cuMemAllocHost_v2");
        assert_eq!(n_pinned, n_calls("cuMemFreeHost"), "all went back");
    }
    drop(there);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn the_drivers_pools_are_served() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let allocate = |pool| {
        let mut ptr = 0;
        // SAFETY: an address is written.
        unsafe { sys::cuMemAllocFromPoolAsync(&raw mut ptr, MIB, pool, stream.cu_stream()) }
            .result()
            .unwrap();
        let is_own = program.glake.owns(at(ptr));
        // SAFETY: given up.
        unsafe { sys::cuMemFreeAsync(ptr, stream.cu_stream()) }.result().unwrap();
        is_own
    };
    let mut default = ptr::null_mut();
    // SAFETY: a pool is written.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut default, program.context.cu_device()) }
        .result()
        .unwrap();
    assert!(allocate(default));
    // SAFETY: zero is a value of each field.
    let mut properties = unsafe { std::mem::zeroed::<sys::CUmemPoolProps>() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let make = |properties: &sys::CUmemPoolProps| {
        let mut pool = ptr::null_mut();
        // SAFETY: a pool is written, the properties are read.
        unsafe { sys::cuMemPoolCreate(&raw mut pool, properties) }.result().unwrap();
        pool
    };
    let plain = make(&properties);
    assert!(allocate(plain));
    assert_eq!(n_allocator_calls(), 0);
    // A limit, or the wish to share, is a promise that only the driver can keep.
    properties.maxSize = 64 * MIB;
    let limited = make(&properties);
    assert!(!allocate(limited));
    assert_eq!(program.glake.passed_on().n_allocations, 1);
    stream.synchronize().unwrap();
    for pool in [plain, limited] {
        // SAFETY: the program's own, and empty.
        unsafe { sys::cuMemPoolDestroy(pool) }.result().unwrap();
    }
    assert_eq!(program.glake.memory_stats(FIRST).n_live, 0);
}

pub(crate) fn a_pool_in_the_defaults_place_is_used() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let device = program.context.cu_device();
    let is_served = || {
        let mut ptr = 0;
        // SAFETY: an address is written, and given up.
        unsafe {
            sys::cuMemAllocAsync(&raw mut ptr, MIB, stream.cu_stream()).result().unwrap();
            sys::cuMemFreeAsync(ptr, stream.cu_stream()).result().unwrap();
        }
        program.glake.owns(at(ptr))
    };
    // SAFETY: zero is a value of each field.
    let mut properties = unsafe { std::mem::zeroed::<sys::CUmemPoolProps>() };
    properties.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    for (limit_bytes, serves) in [(0, true), (64 * MIB, false)] {
        properties.maxSize = limit_bytes;
        let mut pool = ptr::null_mut();
        // SAFETY: a pool is written, the properties are read.
        unsafe { sys::cuMemPoolCreate(&raw mut pool, &raw const properties) }.result().unwrap();
        // SAFETY: the pool is the device's.
        unsafe { sys::cuDeviceSetMemPool(device, pool) }.result().unwrap();
        assert_eq!(is_served(), serves);
        stream.synchronize().unwrap();
        // SAFETY: the program's own, and empty.
        unsafe { sys::cuMemPoolDestroy(pool) }.result().unwrap();
        assert!(is_served(), "the default is the current one again");
    }
    program.is_empty();
}

unsafe extern "C" {
    fn cudaMallocAsync(ptr: *mut *mut std::ffi::c_void, bytes: usize, stream: sys::CUstream) -> u32;
    fn cudaFreeAsync(ptr: *mut std::ffi::c_void, stream: sys::CUstream) -> u32;
}

pub(crate) fn the_runtime_api_is_served() {
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    let mut host = ptr::null_mut();
    // SAFETY: an address is written.
    assert_eq!(unsafe { cudaMallocAsync(&raw mut host, MIB, stream.cu_stream()) }, 0);
    assert_eq!(program.glake.allocation_at(at(host.addr() as u64)).unwrap().bytes, 1 << 20);
    // SAFETY: given up.
    assert_eq!(unsafe { cudaFreeAsync(host, stream.cu_stream()) }, 0);
    stream.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn what_the_drivers_pool_keeps_is_had_back() {
    type Allocate = unsafe extern "C" fn(*mut sys::CUdeviceptr, usize, sys::CUstream) -> sys::CUresult;
    type Free = unsafe extern "C" fn(sys::CUdeviceptr, sys::CUstream) -> sys::CUresult;
    let program = Program::new(Config::new());
    let stream = program.context.new_stream().unwrap();
    // SAFETY: the functions' types.
    let (allocate, free) =
        unsafe { (past_the_hook::<Allocate>("cuMemAllocAsync"), past_the_hook::<Free>("cuMemFreeAsync")) };
    let mut pool = ptr::null_mut();
    let mut keep_all = u64::MAX;
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: a pool is written, and a number of 64 bits read.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&raw mut pool, program.context.cu_device()).result().unwrap();
        sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep_all).cast()).result().unwrap();
    }
    // A library that finds the driver by itself has used most of the device.
    let before = program.context.mem_get_info().unwrap().0;
    let mut used = 0;
    // SAFETY: an address is written, and given up.
    unsafe {
        allocate(&raw mut used, before / 4 * 3, stream.cu_stream()).result().unwrap();
        free(used, stream.cu_stream()).result().unwrap();
    }
    stream.synchronize().unwrap();
    assert!(program.context.mem_get_info().unwrap().0 < before / 2, "the driver's pool keeps it");
    // SAFETY: nobody reads it.
    let half = unsafe { stream.alloc::<u8>(before / 2) }.unwrap();
    assert!(program.glake.owns(address(&half)));
    drop(half);
    stream.synchronize().unwrap();
    program.is_empty();
}
