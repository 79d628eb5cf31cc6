//! The CUDA driver keeps the laws of drivers. Fails where there is no GPU.
#![cfg(feature = "gpu")]
#![allow(
    clippy::expect_used,
    clippy::unnecessary_wraps,
    reason = "these tests need a device and fail without"
)]

use std::sync::Arc;

use glake_core::driver::Driver;

fn device() -> Option<Arc<dyn Driver>> {
    Some(Arc::new(glake_cuda::open().expect("the feature `gpu` needs a GPU")))
}

glake_testkit::driver_laws!(device);
