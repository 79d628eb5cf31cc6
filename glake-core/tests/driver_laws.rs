//! The simulated driver keeps the laws of drivers, whenever its work completes.
#![allow(clippy::unnecessary_wraps, reason = "makers of drivers may find no device; simulated ones do")]

use std::sync::Arc;

use glake_core::driver::Driver;
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::units::DeviceId;
use glake_testkit::{destructive_driver_laws, driver_laws};

fn immediate() -> Option<Arc<dyn Driver>> {
    Some(Arc::new(SimDriver::h200(2)))
}

fn manual() -> Option<Arc<dyn Driver>> {
    Some(Arc::new(SimConfig::h200(2).completion(Completion::Manual).build()))
}

fn lagging() -> Option<Arc<dyn Driver>> {
    Some(Arc::new(SimConfig::h200(2).completion(Completion::Lag(20_000_000)).build()))
}

/// Three devices, of which two do not reach each other.
fn apart() -> Option<Arc<dyn Driver>> {
    Some(Arc::new(SimConfig::h200(3).without_peers(DeviceId(0), DeviceId(1)).build()))
}

/// Work is done while it is enqueued.
mod done_at_once {
    super::driver_laws!(super::immediate);
}

/// Not every device is a peer of every other.
mod cut_off {
    super::driver_laws!(super::apart);
}

/// Work is done when something blocks on it, and not before.
mod done_when_needed {
    super::driver_laws!(super::manual);
    super::destructive_driver_laws!(super::manual);
}

/// The device is 20 ms behind the host.
mod done_later {
    super::driver_laws!(super::lagging);
    super::destructive_driver_laws!(super::lagging);
}
