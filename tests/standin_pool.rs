//! The laws of allocators, held by the pool over the CUDA driver, over the stand-in.
#![cfg(feature = "cuda")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::{Arc, OnceLock};

use glake_core::driver::StreamOrder;
use glake_core::units::DeviceId;
use glake_cuda::CudaDriver;
use glake_standin::Completion;
use glake_testkit::allocator_laws;
use glake_testkit::program::Subject;
use glake_testkit::spy::Spy;
use glake_vmm::{Config, Mode, StitchPool};

const DEVICE: DeviceId = DeviceId(0);
/// As much as an H200 has, so that no request of the laws is too large to be thought of.
const MEMORY_BYTES: &str = "151397597184";
/// Little, so that programs are often at exhaustion.
const LIMIT_BYTES: u64 = 3 << 30;

/// One driver for all tests: what a dropped pool had mapped goes back at later calls.
fn driver(completion: Completion) -> Arc<CudaDriver> {
    static DRIVER: OnceLock<Arc<CudaDriver>> = OnceLock::new();
    glake_standin::enter_with(&[("GLAKE_STANDIN_MEMORY", MEMORY_BYTES)]).complete(completion);
    let open = || Arc::new(glake_cuda::open().expect("the stand-in is there"));
    Arc::clone(DRIVER.get_or_init(open))
}

fn subject(completion: Completion, mode: Mode) -> Subject {
    let spy = Spy::new(driver(completion));
    let stream = spy.create_stream(DEVICE).unwrap();
    let config = Config::new(DEVICE).mode(mode).limit_bytes(LIMIT_BYTES);
    let pool = StitchPool::new(spy.clone(), config).unwrap();
    Subject { allocator: Box::new(pool), stream, spy: Some(spy) }
}

fn at_once() -> Subject {
    subject(Completion::Immediate, Mode::Default)
}

fn after_some_calls() -> Subject {
    subject(Completion::Lag(20), Mode::Compact)
}

allocator_laws!(immediate, at_once);
allocator_laws!(lagging, after_some_calls);
