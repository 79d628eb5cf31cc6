//! Streams, threads, contexts.

use std::sync::{Arc, mpsc};
use std::thread;

use cudarc::driver::{CudaContext, CudaSlice, sys};
use glake_hook::{Config, PassedOn};

use crate::driver::{MIB, Program, address, delay, is_standin, n_calls, past_the_hook, pin, unpin};

pub(crate) fn threads_free_what_others_allocated() {
    let program = Program::new(Config::new().limit_bytes(256 << 20));
    let (give, take) = mpsc::channel::<(CudaSlice<u32>, u32)>();
    thread::scope(|scope| {
        let context = &program.context;
        // All use the handle of the calling thread's own stream.
        scope.spawn(move || {
            for i in 0..200u32 {
                let stream = context.per_thread_stream();
                let n = 1 + (i as usize * 7919) % 400_000;
                if i % 50 == 0 {
                    delay(&stream);
                }
                give.send((stream.clone_htod(&vec![i; n]).unwrap(), i)).unwrap();
            }
        });
        scope.spawn(move || {
            let stream = context.per_thread_stream();
            for (slice, i) in take {
                // cudarc orders its own copies where it knows the stream; a thread's it does not.
                context.synchronize().unwrap();
                let back = stream.clone_dtoh(&slice).unwrap();
                assert!(back.iter().all(|value| *value == i), "allocation {i} was overwritten");
                drop(slice);
            }
            stream.synchronize().unwrap();
        });
    });
    program.context.synchronize().unwrap();
    program.is_clean();
}

pub(crate) fn streams_come_and_go() {
    let program = Program::new(Config::new());
    for i in 0..300u32 {
        let stream = program.context.new_stream().unwrap();
        let small = stream.clone_htod(&[i; 100]).unwrap();
        let large = stream.clone_htod(&vec![i; 300_000]).unwrap();
        assert_eq!(stream.clone_dtoh(&small).unwrap()[99], i);
        assert_eq!(stream.clone_dtoh(&large).unwrap()[299_999], i);
        drop(small);
        // The slice outlives the program's own hold of the stream.
        drop(stream);
        drop(large);
    }
    program.context.synchronize().unwrap();
    program.is_clean();
    assert!(program.stats().peak_reserved_bytes <= 64 << 20, "{}", program.stats());
}

pub(crate) fn two_streams_share_a_budget() {
    let program = Program::new(Config::new().limit_bytes(64 << 20));
    let streams = [program.context.new_stream().unwrap(), program.context.new_stream().unwrap()];
    for i in 0..40u8 {
        let stream = &streams[usize::from(i % 2)];
        delay(stream);
        // More than half of the budget: each has what the other has just freed.
        let mut all = stream.alloc_zeros::<u8>(48 * MIB).unwrap();
        stream.memcpy_htod(&vec![i; 48 * MIB], &mut all).unwrap();
        assert!(stream.clone_dtoh(&all).unwrap().iter().all(|byte| *byte == i));
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    program.is_clean();
    assert!(program.stats().peak_reserved_bytes <= 64 << 20);
}

pub(crate) fn a_second_context_is_left_to_the_driver() {
    let program = Program::new(Config::new());
    let other = a_context_of_its_own(&program);
    let stream = other.new_stream().unwrap();
    let there = stream.clone_htod(&[1u8, 2, 3]).unwrap();
    assert!(!program.glake.owns(address(&there)));
    let PassedOn { n_allocations, bytes, .. } = program.glake.passed_on();
    assert_eq!((n_allocations, bytes), (1, 3));
    assert_eq!(stream.clone_dtoh(&there).unwrap(), [1, 2, 3]);
    drop(there);
    stream.synchronize().unwrap();
    assert_eq!(program.glake.passed_on().n_frees, 1);
    // The primary context is served as ever.
    let stream = program.context.new_stream().unwrap();
    let here = stream.clone_htod(&[4u8]).unwrap();
    assert!(program.glake.owns(address(&here)));
    // Freed while another context is current.
    let leaked = here.leak();
    other.bind_to_thread().unwrap();
    // SAFETY: given up.
    unsafe { sys::cuMemFreeAsync(leaked, stream.cu_stream()) }.result().unwrap();
    // SAFETY: a context is written.
    let current = unsafe {
        let mut current = std::ptr::null_mut();
        sys::cuCtxGetCurrent(&raw mut current).result().unwrap();
        current
    };
    assert_eq!(current, other.cu_ctx(), "the thread is where it was");
    program.is_empty();
}

pub(crate) fn a_program_with_contexts_of_its_own() {
    let glake = glake_hook::install(Config::new()).unwrap();
    let context = create_context(0);
    let mut ptr = 0;
    // SAFETY: an address is written, and given up.
    unsafe {
        sys::cuMemAlloc_v2(&raw mut ptr, MIB).result().unwrap();
        sys::cuMemFree_v2(ptr).result().unwrap();
    }
    assert_eq!(glake.passed_on().n_allocations, 1);
    let (mut flags, mut is_active) = (0, 0);
    // SAFETY: two integers are written.
    unsafe { sys::cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut is_active) }.result().unwrap();
    assert_eq!(is_active, 0, "a primary context takes memory, and nobody wants it");
    // Pinned memory is the context's, and ends with it: nothing is kept.
    let n_frees = n_calls("cuMemFreeHost");
    unpin(pin(MIB));
    assert!(!is_standin() || n_calls("cuMemFreeHost") == n_frees + 1);
    let host = pin(MIB);
    // SAFETY: the thread's own.
    unsafe { sys::cuCtxSetCurrent(std::ptr::null_mut()) }.result().unwrap();
    let mut refused = std::ptr::null_mut();
    // SAFETY: an address would be written.
    let code = unsafe { sys::cuMemHostAlloc(&raw mut refused, MIB, 0) };
    assert_eq!(code, sys::CUresult::CUDA_ERROR_INVALID_CONTEXT);
    // SAFETY: made above.
    unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
    unpin(host);
}

/// A context of a device beside the primary one, which is current then. (cudarc has it for some versions of CUDA
/// only.)
fn create_context(device: sys::CUdevice) -> sys::CUcontext {
    type Create = unsafe extern "C" fn(*mut sys::CUcontext, u32, sys::CUdevice) -> sys::CUresult;
    // SAFETY: the function's type.
    let create = unsafe { past_the_hook::<Create>("cuCtxCreate_v2") };
    let mut context = std::ptr::null_mut();
    // SAFETY: a context is written.
    unsafe { create(&raw mut context, 0, device) }.result().unwrap();
    context
}

/// One that cudarc knows.
pub(crate) fn a_context_of_its_own(program: &Program) -> Arc<CudaContext> {
    let context = create_context(program.context.cu_device());
    // SAFETY: it was just made, for the device, and is given up.
    unsafe { CudaContext::from_raw_context(0, program.context.cu_device(), context) }.unwrap()
}
