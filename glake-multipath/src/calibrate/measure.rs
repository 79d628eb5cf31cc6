//! A machine measured: each link first, then the host's own copies, then relays as far as the time goes.

use std::sync::Arc;

use glake_core::driver::{Driver, DriverError};
use glake_core::units::DeviceId;

use super::budget::{Deadline, Miss, Scale};
use super::fit::PathRate;
use super::memcpy::{self, Clock};
use super::rig::Rig;
use super::{CalibrateError, Calibration, End, LinkCalibration, Missing, Part, RelayRate, scattered, steps};
use crate::lane::Direction;
use crate::topology::{Topology, one_per_uplink};

const DIRECTIONS: [Direction; 2] = [Direction::ToDevice, Direction::ToHost];
/// What getting memory and pinned memory is expected to take as long as nobody has seen it.
const SETUP_NS: u64 = 20_000_000;

impl Calibration {
    /// Measures the machine of `driver`, in at most `budget_ns` of the driver's clock; a second is more than enough for
    /// two devices on links of their own. What there is no time for, and paths that fail, are
    /// [`missing`](Calibration::missing).
    ///
    /// It takes up to 64 MiB on each device, as much pinned memory, and other memory of the host, and gives all of it
    /// back. What else runs on the links meanwhile makes them look slow.
    ///
    /// # Errors
    /// [`CalibrateError`] if the topology is another machine's, or the driver fails before the first link is measured.
    pub fn measure(
        driver: &Arc<dyn Driver>,
        topology: &Topology,
        budget_ns: u64,
    ) -> Result<Self, CalibrateError> {
        let usable = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let n_cpus = topology.n_cpus().map_or(usable, |n| n.min(usable));
        Measure::new(driver, topology, budget_ns, Scale::FULL).all(n_cpus, &|| driver.now_ns())
    }
}

/// A measurement under way.
#[derive(Debug)]
pub(super) struct Measure<'a> {
    driver: &'a Arc<dyn Driver>,
    topology: &'a Topology,
    scale: Scale,
    end: Deadline<'a>,
    setup_ns: u64,
    error: Option<DriverError>,
    found: Calibration,
}

impl<'a> Measure<'a> {
    pub(super) fn new(
        driver: &'a Arc<dyn Driver>,
        topology: &'a Topology,
        budget_ns: u64,
        scale: Scale,
    ) -> Self {
        // What is begun is expected to end before. The rest is for what takes longer.
        let at_ns = driver.now_ns().saturating_add(budget_ns - budget_ns / 8);
        Self {
            driver,
            topology,
            scale,
            end: Deadline { driver: &**driver, at_ns },
            setup_ns: SETUP_NS,
            error: None,
            found: Calibration::new(topology.key()),
        }
    }

    /// Measures everything; `clock` times the host's own copies.
    pub(super) fn all(mut self, n_cpus: u64, clock: Clock<'_>) -> Result<Calibration, CalibrateError> {
        let (n_devices, n_places) = (self.driver.n_devices() as usize, self.topology.n_devices());
        if n_devices != n_places {
            return Err(CalibrateError::ForeignTopology { n_devices, n_places });
        }
        let devices: Vec<DeviceId> = (0..self.driver.n_devices()).map(DeviceId).collect();
        let half = self.end.part(2);
        for (at, device) in devices.iter().enumerate() {
            self.links(*device, half.part(devices.len() - at));
        }
        self.memcpy(n_cpus, clock);
        for (at, device) in devices.iter().enumerate() {
            self.pairs(*device, self.end.part(devices.len() - at));
        }
        match self.error {
            Some(error) if self.found.links.is_empty() => Err(CalibrateError::Driver(error)),
            _ => Ok(self.found),
        }
    }

    /// What a step found; otherwise notes that `part` is missing.
    fn note<T>(&mut self, part: Part, outcome: Result<T, Miss>) -> Option<T> {
        let miss = match outcome {
            Ok(found) => return Some(found),
            Err(miss) => miss,
        };
        if let Miss::Failed(error) = miss {
            tracing::debug!(?part, %error, "could not be measured");
            self.error = self.error.or(Some(error));
        }
        self.found.missing.push(Missing { part, reason: miss.reason() });
        None
    }

    fn rig(&mut self, device: DeviceId) -> Result<Rig<'a>, Miss> {
        self.end.admit(self.setup_ns)?;
        let start_ns = self.driver.now_ns();
        let rig = Rig::new(self.driver, device, self.scale)?;
        self.setup_ns = self.driver.now_ns().saturating_sub(start_ns).saturating_mul(2);
        Ok(rig)
    }

    /// The links of a device themselves, both ways: their rates, whatever else there is time for, and after that
    /// what `until` leaves time for.
    fn links(&mut self, device: DeviceId, until: Deadline<'a>) {
        let ends = DIRECTIONS.map(|direction| End { device, direction });
        let mut rig = match self.rig(device) {
            Ok(rig) => rig,
            Err(miss) => {
                for end in ends {
                    self.note::<()>(Part::Link(end), Err(miss));
                }
                return;
            }
        };
        let mut links = Vec::new();
        for end in ends {
            let direct = steps::direct(&mut rig, end.direction, self.end);
            links.extend(self.note(Part::Link(end), direct).map(|direct| LinkCalibration::new(end, direct)));
        }
        for link in &mut links {
            let (end, direct) = (link.end(), link.direct);
            let chunk = steps::chunk(&mut rig, end.direction, direct, until);
            link.chunk_bytes = self.note(Part::Chunk(end), chunk);
            let ranges = scattered::scattered(&mut rig, end.direction, direct, until);
            link.scattered = self.note(Part::Scattered(end), ranges);
        }
        self.found.links.append(&mut links);
    }

    fn memcpy(&mut self, n_cpus: u64, clock: Clock<'_>) {
        let Scale { memory_bytes, pageable_bytes, .. } = self.scale;
        // Its memory is as much to get as that of a device, and to be touched.
        let pinned = self.end.admit(self.setup_ns.saturating_mul(2));
        let pinned = pinned.and_then(|()| Ok(self.driver.pin(memory_bytes, DeviceId(0))?));
        let Some(mut pinned) = self.note(Part::Memcpy { n_threads: 1 }, pinned) else { return };
        // Memory of zeros may not be there before it is written.
        let pageable = vec![1; usize::try_from(pageable_bytes).unwrap_or(0)];
        let end_ns = clock().saturating_add(self.end.left_ns() / 4);
        let (rates, missing) = memcpy::rates((*pinned).as_mut(), &pageable, n_cpus, clock, end_ns);
        self.found.memcpy = rates;
        if let Some((n_threads, miss)) = missing {
            self.note::<()>(Part::Memcpy { n_threads }, Err(miss));
        }
    }

    /// The relays of a device.
    fn pairs(&mut self, device: DeviceId, until: Deadline<'a>) {
        let relays = self.topology.relays_for(device);
        let ends = DIRECTIONS.map(|direction| End { device, direction });
        let mut links: Vec<(End, PathRate)> = Vec::new();
        links.extend(
            ends.iter()
                .filter_map(|end| self.found.link(device, end.direction).map(|link| (*end, link.direct))),
        );
        if relays.is_empty() || links.is_empty() {
            return;
        }
        let mut rig = match until.admit(self.setup_ns).and_then(|()| self.rig(device)) {
            Ok(rig) => rig,
            Err(miss) => {
                for (end, _) in links {
                    self.note::<()>(Part::Together(end), Err(miss));
                }
                return;
            }
        };
        for (end, direct) in links {
            let mut found = Vec::new();
            for relay in &relays {
                let path = steps::relay(&mut rig, end.direction, *relay, direct, until);
                found.extend(self.note(Part::Relay(end, *relay), path).map(|path| (*relay, path)));
            }
            let kept = one_per_uplink(self.topology, found.iter().map(|relay| relay.0));
            let kept: Vec<_> = found.iter().copied().filter(|relay| kept.contains(&relay.0)).collect();
            let together = if kept.is_empty() {
                None
            } else {
                let together = steps::together(&mut rig, end.direction, &kept, direct, until);
                self.note(Part::Together(end), together)
            };
            let link = self.found.links.iter_mut().find(|link| link.end() == end);
            if let Some(link) = link {
                link.relays = found.into_iter().map(|(relay, path)| RelayRate { relay, path }).collect();
                link.together_bytes_per_ms = together;
            }
        }
    }
}
