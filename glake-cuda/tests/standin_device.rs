//! What only the CUDA driver does, over the stand-in: work completes late, so that what waits for it shows.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "some tests are about time")]

#[path = "shared/device.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    glake_standin::enter().complete(glake_standin::Completion::Lag(2_000));
    glake_cuda::open().expect("the stand-in is there")
}
