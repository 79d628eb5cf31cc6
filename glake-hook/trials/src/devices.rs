//! Several devices.

use cudarc::driver::{CudaContext, sys};
use glake_hook::{Config, DeviceId};

use crate::driver::{FIRST, Kernel, MIB, Program, address};

/// The second device; none on a machine with one.
pub(crate) fn second() -> Option<std::sync::Arc<CudaContext>> {
    if CudaContext::device_count().unwrap() < 2 {
        println!("one device: nothing to try");
        return None;
    }
    Some(CudaContext::new(1).unwrap())
}

pub(crate) fn two_devices_have_a_pool_each() {
    let program = Program::new(Config::new().limit_bytes(32 << 20));
    let Some(second) = second() else { return };
    let (a, b) = (program.context.new_stream().unwrap(), second.new_stream().unwrap());
    let here = a.clone_htod(&vec![1u8; 20 * MIB]).unwrap();
    let there = b.clone_htod(&vec![2u8; 20 * MIB]).unwrap();
    for device in [FIRST, DeviceId(1)] {
        assert_eq!(program.glake.memory_stats(device).requested_bytes, 20 << 20, "{device:?}");
    }
    // Default streams, whose handles are the same on both, and frees with the other context current.
    let (c, d) = (program.context.default_stream(), second.default_stream());
    let (small_here, small_there) = (c.clone_htod(&[3u8]).unwrap(), d.clone_htod(&[4u8]).unwrap());
    assert_eq!((c.clone_dtoh(&small_here).unwrap(), d.clone_dtoh(&small_there).unwrap()), (vec![3], vec![4]));
    let leaked = small_there.leak();
    program.context.bind_to_thread().unwrap();
    // SAFETY: given up; the null stream is the first device's.
    unsafe { sys::cuMemFreeAsync(leaked, std::ptr::null_mut()) }.result().unwrap();
    assert_eq!(b.clone_dtoh(&there).unwrap(), vec![2u8; 20 * MIB]);
    drop((here, there, small_here));
    for device in [FIRST, DeviceId(1)] {
        assert_eq!(program.glake.memory_stats(device).n_live, 0, "{device:?}");
    }
    program.is_clean();
}

pub(crate) fn peers_reach_the_pool() {
    let program = Program::new(Config::new());
    let Some(second) = second() else { return };
    let (a, b) = (program.context.new_stream().unwrap(), second.new_stream().unwrap());
    let before = a.clone_htod(&vec![7u8; MIB]).unwrap();
    second.bind_to_thread().unwrap();
    // SAFETY: both contexts live.
    unsafe { sys::cuCtxEnablePeerAccess(program.context.cu_ctx(), 0) }.result().unwrap();
    let after = a.clone_htod(&vec![8u8; MIB]).unwrap();
    a.synchronize().unwrap();
    // A kernel of the second device reads both.
    let copy = Kernel::load(&second, "glake_copy");
    for (from, value) in [(&before, 7u8), (&after, 8)] {
        let to = b.alloc_zeros::<u8>(MIB).unwrap();
        // SAFETY: two addresses and the bytes that lie at both.
        unsafe { copy.launch(&b, 4, &mut [address(&to).0, address(from).0, MIB as u64]) };
        assert_eq!(b.clone_dtoh(&to).unwrap(), vec![value; MIB]);
    }
    drop((before, after));
    program.is_clean();
}

pub(crate) fn peers_reach_what_a_memory_pool_grants() {
    let program = Program::new(Config::new());
    let Some(second) = second() else { return };
    let (a, b) = (program.context.new_stream().unwrap(), second.new_stream().unwrap());
    let mut pool = std::ptr::null_mut();
    // SAFETY: a pool is written.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, 0) }.result().unwrap();
    let grant = sys::CUmemAccessDesc {
        location: device_one(),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: one grant is read.
    unsafe { sys::cuMemPoolSetAccess(pool, &raw const grant, 1) }.result().unwrap();
    let from = a.clone_htod(&vec![5u8; MIB]).unwrap();
    a.synchronize().unwrap();
    let copy = Kernel::load(&second, "glake_copy");
    let to = b.alloc_zeros::<u8>(MIB).unwrap();
    // SAFETY: two addresses and the bytes that lie at both.
    unsafe { copy.launch(&b, 4, &mut [address(&to).0, address(&from).0, MIB as u64]) };
    assert_eq!(b.clone_dtoh(&to).unwrap(), vec![5u8; MIB]);
    drop((from, to));
    program.is_clean();
}

/// The second device as a location. (Its field has two names in cudarc.)
fn device_one() -> sys::CUmemLocation {
    // SAFETY: zero is a value of each field.
    let mut location = unsafe { std::mem::zeroed::<sys::CUmemLocation>() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the second field is the device's number.
    let id = unsafe { (&raw mut location).cast::<i32>().add(1) };
    // SAFETY: as above.
    unsafe { id.write(1) };
    location
}

pub(crate) fn a_free_of_another_device_breaks_no_capture() {
    const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let program = Program::new(Config::new());
    let Some(second) = second() else { return };
    let (a, b) = (program.context.new_stream().unwrap(), second.new_stream().unwrap());
    let ptr = a.clone_htod(&[1u8]).unwrap().leak();
    drop(b.clone_htod(&[1u8]).unwrap());
    a.begin_capture(GLOBAL).unwrap();
    // Memory of the one, freed on the default stream of the other.
    second.bind_to_thread().unwrap();
    // SAFETY: given up.
    unsafe { sys::cuMemFreeAsync(ptr, std::ptr::null_mut()) }.result().unwrap();
    let mut graph = std::ptr::null_mut();
    // SAFETY: a graph is written, and destroyed.
    unsafe {
        sys::cuStreamEndCapture(a.cu_stream(), &raw mut graph).result().unwrap();
        sys::cuGraphDestroy(graph).result().unwrap();
    }
    program.is_clean();
}
