//! Captured graphs beside the pool and the driver. Fails where there is no GPU.
#![cfg(feature = "gpu")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]
#![allow(clippy::disallowed_methods, reason = "the driver's own threads take their time")]

#[path = "shared/graphs.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    glake_cuda::open().expect("the feature `gpu` needs a GPU")
}

/// Kernels take their time by themselves.
fn work_late() {}
