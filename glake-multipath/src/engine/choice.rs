//! Which lanes a transfer gets.

use glake_core::driver::DriverError;
use glake_core::units::DeviceId;

use super::Shared;
use crate::busy::Behind;
use crate::calibrate::LinkCalibration;
use crate::chunk::Chunks;
use crate::lane::{Direction, Lane, Path, Route};
use crate::topology::one_per_uplink;

/// What a path that nobody measured is expected to move at first, in bytes per millisecond.
const RATE: u64 = 55_000_000;

impl Shared {
    /// The lanes for a transfer: one over the device's own link, and relays where they pay. One that is `behind`
    /// something may have lanes that are busy behind the same.
    ///
    /// # Errors
    /// Why there is no lane at all.
    pub(super) fn lanes_for(
        &self,
        device: DeviceId,
        direction: Direction,
        chunks: &Chunks,
        behind: Option<Behind>,
    ) -> Result<Vec<Lane>, DriverError> {
        let take = |route| self.take_lane(device, route, behind);
        let take_or_not = |route| {
            take(route).unwrap_or_else(|error| {
                tracing::debug!(?route, %error, "a transfer goes without that lane");
                None
            })
        };
        let scattering = if chunks.is_scattered() { take_or_not(Route::Scattering) } else { None };
        let own = match scattering {
            None => take(Route::Direct)?,
            lane => lane,
        };
        let mut lanes: Vec<Lane> = own.into_iter().collect();
        let from_bytes = self.link(device, direction).and_then(LinkCalibration::relay_from_bytes);
        if chunks.left_bytes() >= self.config.relay_from(from_bytes) {
            let relays = self.relays(device, direction).into_iter();
            lanes.extend(relays.filter_map(|relay| take_or_not(Route::Via(relay))));
        }
        Ok(lanes)
    }

    pub(super) fn take_lane(
        &self,
        device: DeviceId,
        route: Route,
        behind: Option<Behind>,
    ) -> Result<Option<Lane>, DriverError> {
        let there = behind.and_then(|behind| self.busy.take(behind, device, route));
        if let Some(lane) = there.or_else(|| self.lanes.take_idle(device, route)) {
            return Ok(Some(lane));
        }
        for (device, lane) in self.busy.take_done() {
            match lane {
                Ok(lane) => self.lanes.put(device, lane),
                Err(lane) => self.lanes.drop_lane(&self.config, device, lane),
            }
        }
        self.lanes.take(&self.driver, &self.config, device, route)
    }

    /// What a lane on a path is expected to move, in bytes per millisecond.
    pub(super) fn rate(&self, device: DeviceId, direction: Direction, path: Path) -> u64 {
        let measured = self.link(device, direction).and_then(|link| link.path(path));
        measured.map_or(RATE, |path| path.bytes_per_ms)
    }

    /// The devices that relay for `device`: one for each link to the host that is not its own.
    fn relays(&self, device: DeviceId, direction: Direction) -> Vec<DeviceId> {
        let is_used = |relay: &DeviceId| match (&self.config.relays, &self.calibration) {
            (Some(allowed), _) => allowed.contains(relay),
            (None, Some(calibration)) => calibration.is_worth(device, direction, *relay),
            (None, None) => true,
        };
        let used = self.topology.relays_for(device).into_iter().filter(is_used);
        let mut relays = one_per_uplink(&self.topology, used);
        relays.truncate(self.config.most_relays);
        relays
    }

    /// What was measured of transfers with `device`.
    fn link(&self, device: DeviceId, direction: Direction) -> Option<&LinkCalibration> {
        self.calibration.as_ref()?.link(device, direction)
    }
}
