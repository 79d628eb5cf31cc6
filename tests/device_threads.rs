//! Threads that share the pool, on a GPU. Fails where there is none.
#![cfg(feature = "gpu")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]

#[path = "shared/threads.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    glake_cuda::open().expect("the feature `gpu` needs a GPU")
}

/// Kernels take their time by themselves.
fn work_late() {}
