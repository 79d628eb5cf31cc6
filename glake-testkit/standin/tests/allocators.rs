//! The driver's own allocators keep CUDA's rules, and what reaches them is counted.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::ffi::c_void;
use std::sync::Arc;
use std::{mem, ptr};

use cudarc::driver::result::{free_async, free_sync, malloc_async, malloc_sync};
use cudarc::driver::sys::{self, CUresult, CUstream};
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use glake_standin::{Completion, StandIn, alone};
use libloading::Library;

const INVALID: Option<CUresult> = Some(CUresult::CUDA_ERROR_INVALID_VALUE);
const LEGACY: CUstream = ptr::null_mut();
const PER_THREAD: u64 = 2;
const BYTES: usize = 1 << 20;

fn over(name: &str, test: fn(StandIn, &Arc<CudaContext>, &Arc<CudaStream>)) {
    alone(name, &[], |stand_in| {
        stand_in.complete(Completion::Manual);
        let context = CudaContext::new(0).unwrap();
        test(stand_in, &context, &context.new_stream().unwrap());
    });
}

fn failed<T>(result: Result<T, DriverError>) -> Option<CUresult> {
    result.err().map(|error| error.0)
}

fn number(stream: &CudaStream) -> u64 {
    stream.cu_stream().addr() as u64
}

/// A function that cudarc does not have.
///
/// # Safety
/// `F` is the function's type.
unsafe fn symbol<F: Copy>(name: &str) -> F {
    // SAFETY: the stand-in is loaded already, and has no initialisers.
    let library = Box::leak(Box::new(unsafe { Library::new("libcuda.so.1") }.unwrap()));
    // SAFETY: the caller vouches for the type.
    *unsafe { library.get::<F>(name.as_bytes()) }.unwrap()
}

type AllocAsync = unsafe extern "C" fn(*mut u64, usize, CUstream) -> CUresult;
type AllocFromPoolAsync = unsafe extern "C" fn(*mut u64, usize, sys::CUmemoryPool, CUstream) -> CUresult;
type FreeAsync = unsafe extern "C" fn(u64, CUstream) -> CUresult;

type Begin = unsafe extern "C" fn(CUstream, u32) -> CUresult;
type End = unsafe extern "C" fn(CUstream, *mut sys::CUgraph) -> CUresult;

/// What a function that writes an address to its first argument allocates. Nothing is done with the memory
/// but to free it.
macro_rules! allocated {
    ($function:expr $(, $argument:expr)*) => {{
        let function = $function;
        let mut start = Default::default();
        // SAFETY: `start` is a live local; the stand-in checks the rest.
        unsafe { function(&raw mut start $(, $argument)*) }.result().map(|()| start)
    }};
}

fn pool() -> sys::CUmemoryPool {
    // SAFETY: the structure is plain numbers and pointers, and zero is valid for each.
    let mut properties: sys::CUmemPoolProps = unsafe { mem::zeroed() };
    properties.allocType = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    let mut pool = ptr::null_mut();
    // SAFETY: both are live locals.
    unsafe { sys::cuMemPoolCreate(&raw mut pool, &raw const properties) }.result().unwrap();
    pool
}

fn from_pool(pool: sys::CUmemoryPool, stream: &CudaStream) -> Result<u64, DriverError> {
    allocated!(sys::cuMemAllocFromPoolAsync, BYTES, pool, stream.cu_stream())
}

#[test]
fn every_way_to_the_drivers_allocators_is_counted() {
    over("every_way_to_the_drivers_allocators_is_counted", |stand_in, _, stream| {
        let pool = pool();
        let before = (stand_in.n_allocations(), stand_in.allocated_bytes(), stand_in.pinned_bytes());
        assert_eq!(before, (0, 0, 0));
        // SAFETY: the type is that of cuda.h.
        let of_thread = unsafe { symbol::<AllocAsync>("cuMemAllocAsync_ptsz") };
        // SAFETY: as above.
        let of_pool = unsafe { symbol::<AllocFromPoolAsync>("cuMemAllocFromPoolAsync_ptsz") };
        let mut pitch = 0;
        let starts: [Result<u64, DriverError>; 6] = [
            from_pool(pool, stream),
            allocated!(sys::cuMemAlloc_v2, BYTES),
            allocated!(sys::cuMemAllocAsync, BYTES, stream.cu_stream()),
            allocated!(sys::cuMemAllocPitch_v2, &raw mut pitch, 1 << 10, 1 << 10, 4),
            allocated!(of_thread, BYTES, LEGACY),
            allocated!(of_pool, BYTES, pool, LEGACY),
        ];
        assert_eq!((stand_in.n_allocations(), stand_in.n_calls("cuMemAllocAsync_ptsz")), (6, 1));
        assert_eq!((stand_in.allocated_bytes(), stand_in.pinned_bytes()), (6 << 20, 0));
        assert_eq!([0, 1].map(|device| stand_in.allocated_bytes_on(device)), [6 << 20, 0]);
        for start in starts {
            // SAFETY: nobody uses the memory.
            unsafe { free_async(start.unwrap(), stream.cu_stream()) }.unwrap();
        }
        assert_eq!(stand_in.allocated_bytes(), 6 << 20, "the frees are pending");
        for start in starts {
            // SAFETY: the stand-in refuses it.
            let again = unsafe { free_async(start.unwrap(), stream.cu_stream()) };
            assert_eq!(failed(again), INVALID, "freed before");
        }
        stream.synchronize().unwrap();
        assert_eq!((stand_in.allocated_bytes(), stand_in.n_calls("cuMemFreeAsync")), (0, 12));
        let mut pinned = [ptr::null_mut(); 2];
        // SAFETY: the place is a live local.
        unsafe { sys::cuMemHostAlloc(&raw mut pinned[0], BYTES, 0) }.result().unwrap();
        // SAFETY: as above.
        unsafe { sys::cuMemAllocHost_v2(&raw mut pinned[1], BYTES) }.result().unwrap();
        assert_eq!((stand_in.pinned_bytes(), stand_in.n_allocations()), (2 << 20, 6));
        for start in pinned {
            // SAFETY: nobody uses the memory.
            unsafe { sys::cuMemFreeHost(start) }.result().unwrap();
        }
        assert_eq!(stand_in.pinned_bytes(), 0);
    });
}

#[test]
fn a_free_waits_for_the_device_and_wants_the_start_of_what_lives() {
    over("a_free_waits_for_the_device_and_wants_the_start_of_what_lives", |stand_in, _, stream| {
        // SAFETY: nothing is done with the memory.
        let start = unsafe { malloc_sync(BYTES) }.unwrap();
        let event = stream.record_event(None).unwrap();
        // SAFETY: as above.
        let free = |start| failed(unsafe { free_sync(start) });
        assert_eq!([start + 512, 8].map(free), [INVALID; 2]);
        assert_eq!((free(0), stand_in.n_pending(number(stream))), (None, 1));
        assert_eq!(free(start), None);
        assert!(event.is_complete(), "it waited");
        assert_eq!(free(start), INVALID, "freed before");
        // SAFETY: as above.
        let start = unsafe { malloc_async(stream.cu_stream(), BYTES) }.unwrap();
        assert_eq!(free(start), None, "that of a stream, too");
        // SAFETY: as above.
        assert_eq!(failed(unsafe { malloc_sync(0) }), INVALID);
    });
}

#[test]
fn rows_begin_at_multiples_of_the_pitch() {
    over("rows_begin_at_multiples_of_the_pitch", |stand_in, _, _| {
        let (mut start, mut pitch) = (0, 0);
        let mut allocate = |width, height, element| {
            // SAFETY: both are live locals.
            let outcome =
                unsafe { sys::cuMemAllocPitch_v2(&raw mut start, &raw mut pitch, width, height, element) };
            (outcome, pitch)
        };
        assert_eq!(allocate(1000, 8, 16), (CUresult::CUDA_SUCCESS, 1024));
        for (width, height, element) in [(1000, 8, 3), (0, 8, 4), (8, 0, 4), (usize::MAX, 2, 4)] {
            assert_eq!(allocate(width, height, element).0, CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        assert_eq!(stand_in.allocated_bytes(), 8192);
    });
}

#[test]
fn a_pool_that_is_destroyed_keeps_what_is_live() {
    over("a_pool_that_is_destroyed_keeps_what_is_live", |stand_in, _, stream| {
        let mut default = ptr::null_mut();
        // SAFETY: `default` is a live local.
        unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut default, 0) }.result().unwrap();
        // SAFETY: the stand-in checks what it is given.
        let destroy = |pool| unsafe { sys::cuMemPoolDestroy(pool) }.result();
        assert_eq!(failed(destroy(default)), INVALID);
        let pool = pool();
        let start = from_pool(pool, stream).unwrap();
        destroy(pool).unwrap();
        assert_eq!([failed(from_pool(pool, stream)), failed(destroy(pool))], [INVALID; 2]);
        assert_eq!(stand_in.allocated_bytes(), 1 << 20);
        stream.context().bind_to_thread().unwrap();
        // SAFETY: nobody uses the memory.
        unsafe { free_async(start, stream.cu_stream()) }.unwrap();
        stream.synchronize().unwrap();
        assert_eq!(stand_in.allocated_bytes(), 0);
    });
}

/// What a program means by stream 0 hangs on how it was built.
#[test]
fn stream_0_is_the_threads_own_where_the_program_says_so() {
    over("stream_0_is_the_threads_own_where_the_program_says_so", |stand_in, _, _| {
        // SAFETY: the type is that of cuda.h.
        let allocate = unsafe { symbol::<AllocAsync>("cuMemAllocAsync_ptsz") };
        // SAFETY: as above.
        let free = unsafe { symbol::<FreeAsync>("cuMemFreeAsync_ptsz") };
        let start = allocated!(allocate, BYTES, LEGACY).unwrap();
        // SAFETY: nobody uses the memory.
        unsafe { free(start, LEGACY) }.result().unwrap();
        assert_eq!([PER_THREAD, 1].map(|stream| stand_in.n_pending(stream)), [1, 0]);
        let begins = ["cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"].map(|name| {
            // SAFETY: the type is that of cuda.h.
            let begin = unsafe { symbol::<Begin>(name) };
            // SAFETY: the stand-in checks what it is given.
            unsafe { begin(LEGACY, 2) }
        });
        assert_eq!(begins, [CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUresult::CUDA_SUCCESS]);
        // SAFETY: the type is that of cuda.h.
        let end = unsafe { symbol::<End>("cuStreamEndCapture_ptsz") };
        let mut graph = ptr::null_mut();
        // SAFETY: `graph` is a live local.
        unsafe { end(LEGACY, &raw mut graph) }.result().unwrap();
        assert!(!graph.is_null());
    });
}

#[test]
fn plain_memory_alone_can_be_shared_by_a_handle() {
    over("plain_memory_alone_can_be_shared_by_a_handle", |_, _, stream| {
        // SAFETY: nothing is done with the memory.
        let [first, second] = [(); 2].map(|()| unsafe { malloc_sync(BYTES) }.unwrap());
        // SAFETY: as above.
        let of_stream = unsafe { malloc_async(stream.cu_stream(), BYTES) }.unwrap();
        let handle = |start| {
            // SAFETY: the structure is plain bytes.
            let mut handle: sys::CUipcMemHandle = unsafe { mem::zeroed() };
            // SAFETY: `handle` is a live local.
            let outcome = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, start) };
            outcome.result().map(|()| handle.reserved)
        };
        assert_ne!(handle(first).unwrap(), handle(second).unwrap());
        assert_eq!([of_stream, 8].map(|start| failed(handle(start))), [INVALID; 2]);
    });
}

#[test]
fn a_stream_tells_its_device() {
    over("a_stream_tells_its_device", |_, _, stream| {
        let other = CudaContext::new(1).unwrap().new_stream().unwrap();
        let device = |stream: &CudaStream| {
            let mut device = -1;
            // SAFETY: `device` is a live local.
            unsafe { sys::cuStreamGetDevice(stream.cu_stream(), &raw mut device) }.result().unwrap();
            device
        };
        assert_eq!([device(stream), device(&other)], [0, 1]);
    });
}

#[test]
fn a_range_of_addresses_is_told_from_its_inside() {
    over("a_range_of_addresses_is_told_from_its_inside", |_, _, _| {
        // SAFETY: nothing is done with the memory.
        let memory = unsafe { malloc_sync(BYTES) }.unwrap();
        let range = |at| {
            let (mut start, mut bytes) = (0, 0);
            // SAFETY: both are live locals.
            unsafe { sys::cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, at) }.result()?;
            Ok((start, bytes))
        };
        assert_eq!(range(memory + 77), Ok((memory, BYTES)));
        assert_eq!(failed(range(memory + BYTES as u64)), INVALID);
        let mut handle = 0;
        let inside = ptr::without_provenance_mut::<c_void>(usize::try_from(memory).unwrap());
        // SAFETY: `handle` is a live local.
        let retained = unsafe { sys::cuMemRetainAllocationHandle(&raw mut handle, inside) };
        assert_eq!(retained, CUresult::CUDA_ERROR_INVALID_VALUE, "it is no mapping");
    });
}
