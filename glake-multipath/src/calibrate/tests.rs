//! Calibrations of simulated machines.

use std::sync::Arc;

use glake_core::driver::{Driver, DriverError};
use glake_core::sim::{Completion, CostTable, Fault, LinkRates, SimConfig, SimDriver, Target};
use glake_core::units::DeviceId;

use super::budget::Scale;
use super::measure::Measure;
use super::*;
use crate::topology::Topology;

mod bounds;
mod engine;
mod rates;
mod store;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SECOND_NS: u64 = 1_000_000_000;
const GPU: DeviceId = DeviceId(0);
const DIRECTIONS: [Direction; 2] = [Direction::ToDevice, Direction::ToHost];

/// A sixteenth of what machines are measured with.
const SMALL: Scale = Scale {
    memory_bytes: 2 * MIB,
    most_chunk_bytes: MIB,
    least_chunk_bytes: 256 * KIB,
    pageable_bytes: 3 * MIB,
};

fn config(n_devices: u32, rates: LinkRates) -> SimConfig {
    SimConfig::h200(n_devices).completion(Completion::Lag(0)).links(rates)
}

/// Links that start copies so quickly that small ones are nearly as fast.
fn quick() -> LinkRates {
    LinkRates { start_ns: 100, ..LinkRates::h200() }
}

fn topology(driver: &SimDriver) -> Topology {
    Topology::of(driver).unwrap()
}

/// Measures with so much, one CPU and that much time.
fn measured(driver: &Arc<SimDriver>, scale: Scale, budget_ns: u64) -> Result<Calibration, CalibrateError> {
    let shared: Arc<dyn Driver> = Arc::clone(driver) as Arc<dyn Driver>;
    let topology = topology(driver);
    Measure::new(&shared, &topology, budget_ns, scale).all(1, &|| driver.now_ns())
}

fn full(config: SimConfig) -> Calibration {
    measured(&Arc::new(config.build()), Scale::FULL, 2 * SECOND_NS).unwrap()
}

fn small(config: SimConfig) -> Calibration {
    measured(&Arc::new(config.build()), SMALL, 2 * SECOND_NS).unwrap()
}

fn end(device: u32, direction: Direction) -> End {
    End { device: DeviceId(device), direction }
}

/// Whether a rate in bytes per millisecond is within 2 % of one in bytes per microsecond.
fn is_near(bytes_per_ms: u64, bytes_per_us: u64) -> bool {
    bytes_per_ms.abs_diff(bytes_per_us * 1000) * 50 <= bytes_per_us * 1000
}
