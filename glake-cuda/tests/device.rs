//! What only the CUDA driver does. Fails where there is no GPU.
#![cfg(feature = "gpu")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "some tests are about time")]

#[path = "shared/device.rs"]
mod shared;

fn driver() -> glake_cuda::CudaDriver {
    glake_cuda::open().expect("the feature `gpu` needs a GPU")
}
