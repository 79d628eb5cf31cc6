//! The transfer engine on GPUs. Fails where there is none.
#![cfg(all(feature = "gpu", feature = "multipath"))]
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests panic to fail")]

#[path = "shared/transfers.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    glake_cuda::open().expect("the feature `gpu` needs a GPU")
}

/// Copies take their time by themselves.
fn work_late() {}
