//! The engine over the simulated driver.

use std::sync::Arc;

use glake_core::driver::{Access, HostBuffer, HostMemory, VirtualMemory};
use glake_core::sim::{Completion, LinkRates, SimConfig, SimDriver};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES};
use glake_testkit::rng::Rng;

use crate::topology::Topology;
use crate::{Config, Engine, Segment};

mod background;
mod bytes;
mod copies;
mod enqueued;
mod enqueued_faults;
mod limits;
mod lost;
#[cfg(loom)]
mod model;
mod rates;
mod slots;

const MIB: u64 = 1 << 20;
const GPU: DeviceId = DeviceId(0);

/// An engine over devices with links that take time.
struct Rig {
    driver: Arc<SimDriver>,
    engine: Engine,
}

impl Rig {
    fn new(n_devices: u32, config: Config) -> Self {
        Self::over(timed(n_devices).build(), config)
    }

    fn over(driver: SimDriver, config: Config) -> Self {
        let driver = Arc::new(driver);
        let topology = Topology::of(&*driver).unwrap();
        Self { engine: Engine::with_topology(Arc::clone(&driver), config, topology), driver }
    }

    /// Memory of `device` that it alone can reach.
    fn memory(&self, device: DeviceId, bytes: u64) -> DevicePtr {
        let bytes = bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let range = self.driver.reserve(bytes, PAGE_BYTES).unwrap();
        self.driver.map(range.start, self.driver.create(device, bytes).unwrap()).unwrap();
        self.driver.set_access(range, &[device], Access::ReadWrite).unwrap();
        range.start
    }

    fn pinned(&self, bytes: u64) -> HostBuffer {
        self.driver.pin(bytes, GPU).unwrap()
    }

    fn fill(&self, start: DevicePtr, bytes: u64, value: u8) {
        use glake_core::driver::{Copies, StreamOrder};
        let stream = self.driver.create_stream(GPU).unwrap();
        self.driver.fill(AddressRange::new(start, bytes), value, stream).unwrap();
        self.driver.complete_all();
        self.driver.destroy_stream(stream).unwrap();
    }
}

fn timed(n_devices: u32) -> SimConfig {
    SimConfig::h200(n_devices).completion(Completion::Lag(0)).links(LinkRates::h200())
}

fn noise(bytes: u64, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).collect();
    out.truncate(usize::try_from(bytes).unwrap());
    out
}
