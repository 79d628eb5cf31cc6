//! The lanes of an engine: made when they are needed, lent to one transfer at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glake_core::driver::{Driver, DriverError};
use glake_core::units::DeviceId;

use crate::config::Config;
use crate::lane::{Lane, Route};

#[derive(Debug, Default)]
struct Stock {
    /// By target and route.
    idle: BTreeMap<(DeviceId, Route), Vec<Lane>>,
    /// Staging memory on each device, idle or lent.
    staging_bytes: BTreeMap<DeviceId, u64>,
}

/// All lanes that no transfer has, and the memory of all that there are.
#[derive(Debug, Default)]
pub(crate) struct Lanes(Mutex<Stock>);

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Stock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane that there is.
    pub(crate) fn take_idle(&self, device: DeviceId, route: Route) -> Option<Lane> {
        self.lock().idle.get_mut(&(device, route)).and_then(Vec::pop)
    }

    /// A lane to and from `device` by `route`; `None` if its slots would be more staging memory than may
    /// be.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn take(
        &self,
        driver: &Arc<dyn Driver>,
        config: &Config,
        device: DeviceId,
        route: Route,
    ) -> Result<Option<Lane>, DriverError> {
        if let Some(lane) = self.take_idle(device, route) {
            return Ok(Some(lane));
        }
        let bytes = config.n_slots.saturating_mul(config.chunk());
        let slots_on = route.slots_on(device);
        if slots_on.is_some_and(|at| !self.book(at, bytes, config.staging_bytes)) {
            return Ok(None);
        }
        let made = Lane::new(driver, device, route, config.n_slots, config.chunk());
        if let (Err(_), Some(at)) = (&made, slots_on) {
            self.unbook(at, bytes);
        }
        made.map(Some)
    }

    /// Takes a lane back whose transfer is over.
    pub(crate) fn put(&self, device: DeviceId, mut lane: Lane) {
        lane.follow(None);
        self.lock().idle.entry((device, lane.route())).or_default().push(lane);
    }

    /// Gives a lane of `device` up that failed.
    pub(crate) fn drop_lane(&self, config: &Config, device: DeviceId, lane: Lane) {
        let slots_on = lane.route().slots_on(device);
        drop(lane);
        if let Some(at) = slots_on {
            self.unbook(at, config.n_slots.saturating_mul(config.chunk()));
        }
    }

    /// Takes `bytes` of staging memory on `at` into account if that leaves it within `most_bytes`; where
    /// it does not, idle lanes with slots there are given up first.
    fn book(&self, at: DeviceId, bytes: u64, most_bytes: u64) -> bool {
        let mut given_up = Vec::new();
        let mut stock = self.lock();
        loop {
            let used = stock.staging_bytes.entry(at).or_default();
            if used.saturating_add(bytes) <= most_bytes {
                *used = used.saturating_add(bytes);
                return true;
            }
            let has_slots_there = |((device, route), lanes): &(&(DeviceId, Route), &mut Vec<Lane>)| {
                route.slots_on(*device) == Some(at) && !lanes.is_empty()
            };
            let Some((_, lanes)) = stock.idle.iter_mut().find(has_slots_there) else { return false };
            given_up.extend(lanes.pop());
            let used = stock.staging_bytes.entry(at).or_default();
            *used = used.saturating_sub(bytes);
        }
    }

    fn unbook(&self, at: DeviceId, bytes: u64) {
        if let Some(used) = self.lock().staging_bytes.get_mut(&at) {
            *used = used.saturating_sub(bytes);
        }
    }
}
