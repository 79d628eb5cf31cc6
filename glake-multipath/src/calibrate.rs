//! What the links of a machine carry, measured once and kept in a file.
//!
//! [`Calibration`] is a value: what was measured, in bytes per millisecond (1,000,000 are 1 GB/s) and nanoseconds
//! of the driver's clock, and what was not, and why. An engine that has one
//! ([`Engine::with_calibration`](crate::Engine::with_calibration)) knows what each lane moves before the first
//! chunk, from which size on relays pay, whether they pay at all, and how large chunks should be.
//!
//! ```
//! use std::sync::Arc;
//! use glake_core::driver::Driver;
//! use glake_core::sim::{Completion, LinkRates, SimConfig};
//! use glake_core::units::DeviceId;
//! use glake_multipath::Direction;
//! use glake_multipath::calibrate::{Calibration, DEFAULT_BUDGET_NS};
//! use glake_multipath::topology::Topology;
//!
//! let config = SimConfig::h200(1).completion(Completion::Lag(0)).links(LinkRates::h200());
//! let driver: Arc<dyn Driver> = Arc::new(config.build());
//! let calibration = Calibration::measure(&driver, &Topology::of(&*driver)?, DEFAULT_BUDGET_NS)?;
//! let link = calibration.link(DeviceId(0), Direction::ToDevice).ok_or("not measured")?;
//! assert!(link.direct.bytes_per_ms.abs_diff(55_400_000) < 100_000);
//! assert_eq!(link.relay_from_bytes(), None); // there is no other device
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Layers, each using only those above it: `fit` (pure: from times to rates, sizes, thresholds), `budget` (what
//! may still be begun), `rig` (memory and lanes to measure with), `steps` and `scattered` (one measurement each), `memcpy` (the
//! host's own copies), `measure` (all of it, in order), `store` (files).

use glake_core::units::DeviceId;
use serde::{Deserialize, Serialize};

use crate::config::LEAST_BYTES;
use crate::lane::{Direction, Path};
use crate::topology::TopologyKey;

mod budget;
mod error;
mod fit;
mod ids;
mod measure;
mod memcpy;
mod rig;
mod scattered;
mod steps;
mod store;

pub use error::{CalibrateError, StoreError};
pub use fit::PathRate;
pub use store::default_folder;

/// The time that a calibration may take where nobody says otherwise.
pub const DEFAULT_BUDGET_NS: u64 = 2_000_000_000;

/// What the links of a machine carry. See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Calibration {
    /// The version of this form: [`Calibration::VERSION`].
    pub version: u32,
    /// The machine that was measured.
    #[serde(with = "ids::key")]
    pub topology: TopologyKey,
    /// Each device's link to the host, each way, as far as measured; by device, to the device first.
    pub links: Vec<LinkCalibration>,
    /// What threads of the host copy together from pageable to pinned memory; by their number, ascending.
    pub memcpy: Vec<MemcpyRate>,
    /// What was not measured.
    pub missing: Vec<Missing>,
}

/// One device and one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LinkCalibration {
    /// The device at the end of the transfer.
    #[serde(with = "ids::device")]
    pub device: DeviceId,
    /// Which way.
    pub direction: Direction,
    /// The path over the device's own link.
    pub direct: PathRate,
    /// Each relay alone, in the order of [`Topology::relays_for`](crate::topology::Topology::relays_for).
    pub relays: Vec<RelayRate>,
    /// The direct path and one relay of each other uplink, all at once.
    pub together_bytes_per_ms: Option<u64>,
    /// The smallest chunk that is within 1 % of the best on the direct path.
    pub chunk_bytes: Option<u64>,
    /// Many short ranges.
    pub scattered: Option<Scattered>,
}

/// A path over one relay, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RelayRate {
    /// The device that relays.
    #[serde(with = "ids::device")]
    pub relay: DeviceId,
    /// The path over it. Its start is that of a chunk of 1 MiB: the copies of both stages, one behind the other.
    pub path: PathRate,
}

/// What threads of the host copy together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MemcpyRate {
    /// How many threads.
    pub n_threads: u64,
    /// Their rate in sum.
    pub bytes_per_ms: u64,
}

/// Ranges that lie apart on the device, two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Scattered {
    /// How long each range was.
    pub range_bytes: u64,
    /// A copy for each range.
    pub loop_bytes_per_ms: u64,
    /// One copy between the host and a staging area on the device, and a gather between that and the ranges.
    pub gathered_bytes_per_ms: u64,
}

/// Something that was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Missing {
    /// What.
    pub part: Part,
    /// Why.
    pub reason: Reason,
}

/// A part of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Part {
    /// The host's own copies with that many threads and more.
    Memcpy {
        /// How many.
        n_threads: u64,
    },
    /// A whole link: its direct path could not be measured.
    Link(End),
    /// The best chunk of a link.
    Chunk(End),
    /// Scattered ranges over a link.
    Scattered(End),
    /// A relay alone.
    Relay(End, #[serde(with = "ids::device")] DeviceId),
    /// Direct path and relays at once, or all relays where not even one could be begun with.
    Together(End),
}

/// A device and a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The device.
    #[serde(with = "ids::device")]
    pub device: DeviceId,
    /// The direction.
    pub direction: Direction,
}

/// Why something was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// There was no time left for it.
    Budget,
    /// The clock stood still, or there were no threads for it.
    Untimed,
    /// The driver failed.
    Failed,
}

impl Scattered {
    /// Whether staging and gathering is faster than a copy for each range.
    #[must_use]
    pub const fn gathers(self) -> bool {
        self.gathered_bytes_per_ms > self.loop_bytes_per_ms
    }
}

impl LinkCalibration {
    fn new(end: End, direct: PathRate) -> Self {
        let End { device, direction } = end;
        Self {
            device,
            direction,
            direct,
            relays: Vec::new(),
            together_bytes_per_ms: None,
            chunk_bytes: None,
            scattered: None,
        }
    }

    const fn end(&self) -> End {
        End { device: self.device, direction: self.direction }
    }

    /// What a path carries.
    #[must_use]
    pub fn path(&self, path: Path) -> Option<PathRate> {
        match path {
            Path::Direct => Some(self.direct),
            Path::Host => None,
            Path::Via(relay) => self.relays.iter().find(|found| found.relay == relay).map(|found| found.path),
        }
    }

    /// Whether the relays add at least 5 % to what the direct path carries. `None` where that was not measured.
    #[must_use]
    pub fn relays_pay(&self) -> Option<bool> {
        let together = u128::from(self.together_bytes_per_ms?);
        Some(together * 100 >= u128::from(self.direct.bytes_per_ms) * 105)
    }

    /// The size of a transfer from which on a relay pays: the direct path alone takes no less time for all of it than
    /// the quickest relay for one chunk of 1 MiB. `None` where no relay was measured or they add nothing.
    #[must_use]
    pub fn relay_from_bytes(&self) -> Option<u64> {
        let sizes =
            self.relays.iter().map(|relay| fit::break_even_bytes(self.direct, relay.path, LEAST_BYTES));
        sizes.min().filter(|_| self.relays_pay() != Some(false))
    }
}

impl Calibration {
    /// The version of the form that this library reads and writes.
    pub const VERSION: u32 = 1;

    fn new(topology: TopologyKey) -> Self {
        Self { version: Self::VERSION, topology, links: Vec::new(), memcpy: Vec::new(), missing: Vec::new() }
    }

    /// What was measured of transfers between the host and `device`.
    #[must_use]
    pub fn link(&self, device: DeviceId, direction: Direction) -> Option<&LinkCalibration> {
        self.links.iter().find(|link| link.device == device && link.direction == direction)
    }

    /// The chunk that suits every link: the largest of their best ones.
    #[must_use]
    pub fn chunk_bytes(&self) -> Option<u64> {
        self.links.iter().filter_map(|link| link.chunk_bytes).max()
    }

    /// The fewest threads that copy within 1 % of the host's peak.
    #[must_use]
    pub fn n_memcpy_threads(&self) -> Option<u64> {
        let best = self.memcpy.iter().map(|rate| rate.bytes_per_ms).max()?;
        let is_near = |rate: &&MemcpyRate| fit::is_within(rate.bytes_per_ms, best, 1);
        self.memcpy.iter().find(is_near).map(|rate| rate.n_threads)
    }

    /// Whether a relay is worth a lane: not where the relays of that link were seen to add nothing, nor where this
    /// one failed. What was not measured is worth a try.
    #[must_use]
    pub fn is_worth(&self, device: DeviceId, direction: Direction, relay: DeviceId) -> bool {
        let adds_nothing = self.link(device, direction).is_some_and(|link| link.relays_pay() == Some(false));
        let part = Part::Relay(End { device, direction }, relay);
        !adds_nothing && !self.missing.contains(&Missing { part, reason: Reason::Failed })
    }

    /// Whether a call of the driver failed on the way, so that measuring again may tell more.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        self.missing.iter().any(|missing| missing.reason == Reason::Failed)
    }
}

#[cfg(test)]
mod tests;
