//! The transfer engine over the CUDA driver, over the stand-in.
#![cfg(all(feature = "cuda", feature = "multipath"))]
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests panic to fail")]

#[path = "shared/transfers.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    work_late();
    glake_cuda::open().expect("the stand-in is there")
}

/// Work of the calling thread's streams completes late from now on.
fn work_late() {
    glake_standin::enter().complete(glake_standin::Completion::Lag(7));
}
