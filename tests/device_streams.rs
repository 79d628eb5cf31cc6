//! The laws of allocators of several streams, held by the pool on a GPU. Fails where there is none.
#![cfg(feature = "gpu")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::{Arc, OnceLock};

use glake_core::driver::StreamOrder;
use glake_core::sim::Completion;
use glake_core::units::DeviceId;
use glake_cuda::CudaDriver;
use glake_testkit::program::streams::{Control, MEMORY_BYTES, Machine, StreamNames};
use glake_testkit::stream_laws;
use glake_vmm::{Config, Mode, StitchPool};

const DEVICE: DeviceId = DeviceId(0);

/// One driver for all tests: what a dropped pool had mapped goes back at later calls.
fn driver() -> Arc<CudaDriver> {
    static DRIVER: OnceLock<Arc<CudaDriver>> = OnceLock::new();
    let open = || Arc::new(glake_cuda::open().expect("the feature `gpu` needs a GPU"));
    Arc::clone(DRIVER.get_or_init(open))
}

/// A GPU takes its own time, and CUDA gives names of destroyed streams to others.
#[derive(Debug)]
struct Gpu(Arc<CudaDriver>);

impl Control for Gpu {
    fn complete_all(&self) {
        self.0.synchronize_all(DEVICE).unwrap();
    }

    fn stream_names(&self) -> StreamNames {
        StreamNames::Reused
    }
}

fn machine(mode: Mode) -> Machine {
    let driver = driver();
    Machine::over(Arc::clone(&driver) as _, Box::new(Gpu(driver)), |spy| {
        let config = Config::new(DEVICE).mode(mode).limit_bytes(MEMORY_BYTES);
        Box::new(StitchPool::new(spy, config).unwrap())
    })
}

fn default_streams(_: Completion) -> Machine {
    machine(Mode::Default)
}

fn compact_streams(_: Completion) -> Machine {
    machine(Mode::Compact)
}

// All but that the same operations give the same addresses, which hang on when work is done.
stream_laws! { default_mode, default_streams, whenever work is done; }
stream_laws! { compact_mode, compact_streams, whenever work is done; }
