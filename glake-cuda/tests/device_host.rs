//! Host memory that the CUDA driver holds, on a GPU. Fails where there is none.
#![cfg(feature = "gpu")]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "these tests need a device and fail without"
)]

use cudarc::driver::{CudaContext, sys};
use glake_core::driver::HostMemory;

#[path = "shared/host.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    glake_cuda::open().expect("the feature `gpu` needs a GPU")
}

/// Managed memory moves between host and device: it is not pinned, wherever it is.
#[test]
fn managed_memory_is_not_pinned() {
    let driver = driver();
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    let mut start = 0;
    // SAFETY: `start` is a live local; 1 stands for memory that every stream may use.
    unsafe { sys::cuMemAllocManaged(&raw mut start, 4096, 1) }.result().unwrap();
    let at = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(start).unwrap());
    // SAFETY: so many bytes have just been allocated there, and no device works on them.
    unsafe { std::ptr::write_bytes(at, 0, 4096) };
    // SAFETY: they are initialised, and nobody writes them.
    assert!(!driver.is_pinned(unsafe { std::slice::from_raw_parts(at, 4096) }));
    // SAFETY: nobody uses it any more.
    unsafe { sys::cuMemFree_v2(start) }.result().unwrap();
    drop(context);
}

/// A device is late by itself.
fn work_late() {}
