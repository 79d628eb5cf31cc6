//! The laws of allocators of several streams, held by the pool over the CUDA driver, over the stand-in.
#![cfg(feature = "cuda")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use glake_core::driver::{StreamOrder, VirtualMemory};
use glake_core::sim;
use glake_core::units::{DeviceId, StreamId};
use glake_cuda::CudaDriver;
use glake_standin::{Completion, StandIn};
use glake_testkit::program::streams::{Control, MEMORY_BYTES, Machine};
use glake_testkit::stream_laws;
use glake_vmm::{Config, Mode, StitchPool};

const DEVICE: DeviceId = DeviceId(0);

/// One driver for all tests: what a dropped pool had mapped goes back at later calls.
fn driver() -> Arc<CudaDriver> {
    static DRIVER: OnceLock<Arc<CudaDriver>> = OnceLock::new();
    let open = || Arc::new(glake_cuda::open().expect("the stand-in is there"));
    Arc::clone(DRIVER.get_or_init(open))
}

/// What makes the stand-in get on. Its calls cannot be made to fail one by one, whichever they are.
#[derive(Debug)]
struct Steered {
    stand_in: StandIn,
    driver: Arc<CudaDriver>,
    /// The legacy stream and events of the whole device are everybody's.
    _alone: MutexGuard<'static, ()>,
}

impl Control for Steered {
    fn complete(&self, stream: StreamId, n: usize) {
        let _ = self.stand_in.run(stream.0, n as u64);
    }

    fn complete_all(&self) {
        self.driver.synchronize_all(DEVICE).unwrap();
    }

    fn n_pending(&self, stream: StreamId) -> Option<usize> {
        usize::try_from(self.stand_in.n_pending(stream.0)).ok()
    }
}

fn machine(completion: sim::Completion, mode: Mode) -> Machine {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let completion = match completion {
        sim::Completion::Immediate => Completion::Immediate,
        sim::Completion::Manual => Completion::Manual,
        sim::Completion::Lag(_) => Completion::Lag(12),
    };
    let stand_in = glake_standin::enter();
    stand_in.complete(completion);
    let driver = driver();
    // What an earlier machine left goes back now, and not amid this one's work.
    driver.synchronize_all(DEVICE).unwrap();
    driver.memory_info(DEVICE).unwrap();
    let control = Steered { stand_in, driver: Arc::clone(&driver), _alone: alone };
    Machine::over(driver, Box::new(control), |spy| {
        let config = Config::new(DEVICE).mode(mode).limit_bytes(MEMORY_BYTES);
        Box::new(StitchPool::new(spy, config).unwrap())
    })
}

fn default_streams(completion: sim::Completion) -> Machine {
    machine(completion, Mode::Default)
}

fn compact_streams(completion: sim::Completion) -> Machine {
    machine(completion, Mode::Compact)
}

stream_laws!(default_stream_laws, default_streams);
stream_laws!(compact_stream_laws, compact_streams);
