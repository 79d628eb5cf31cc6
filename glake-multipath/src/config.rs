//! How an engine is set up.

use glake_core::units::DeviceId;

use crate::pace::Sizes;

/// Configuration of an [`Engine`](crate::Engine).
///
/// ```
/// use glake_multipath::Config;
/// let config = Config::new().relays(Vec::new()).chunk_bytes(4 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) relays: Option<Vec<DeviceId>>,
    pub(crate) most_relays: usize,
    pub(crate) relay_from_bytes: Option<u64>,
    pub(crate) chunk_bytes: Option<u64>,
    pub(crate) n_slots: u64,
    pub(crate) staging_bytes: u64,
    pub(crate) n_workers: usize,
    pub(crate) n_threads: Option<usize>,
    pub(crate) pinned_bytes: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) stage_from_bytes: u64,
}

/// The smallest chunk of a transfer over several lanes.
pub(crate) const LEAST_BYTES: u64 = 1 << 20;
/// From where on relays are used, and the largest chunk, where nothing was measured and nobody says otherwise.
const RELAY_FROM_BYTES: u64 = 8 << 20;
const CHUNK_BYTES: u64 = 16 << 20;
/// The largest chunk of a transfer over one lane. They are cut only so that it can be cancelled.
const SINGLE_BYTES: u64 = 64 << 20;

/// More threads than this for each link copy no faster: the host's memory is busy then.
const MOST_THREADS: usize = 8;
/// A thread that copies less than this takes longer to start.
const THREAD_BYTES: u64 = 1 << 20;

impl Config {
    /// Relays over all peers that are worth it, through rings of two slots, from the size on and in the chunks that a
    /// [calibration](crate::calibrate) found; without one from 8 MiB on, in chunks of at most 16 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self {
            relays: None,
            most_relays: usize::MAX,
            relay_from_bytes: None,
            chunk_bytes: None,
            n_slots: 2,
            staging_bytes: 64 << 20,
            n_workers: 2,
            n_threads: None,
            pinned_bytes: 256 << 20,
            slot_bytes: 2 << 20,
            stage_from_bytes: 16 << 20,
        }
    }

    /// Relays over these devices only, whatever was measured; over none, if empty.
    #[must_use]
    pub fn relays(self, relays: Vec<DeviceId>) -> Self {
        Self { relays: Some(relays), ..self }
    }

    /// Relays a transfer over at most so many devices: the first of those that
    /// [`Topology::relays_for`](crate::topology::Topology::relays_for) names, one for each link to the host.
    #[must_use]
    pub fn most_relays(self, n: usize) -> Self {
        Self { most_relays: n, ..self }
    }

    /// Relays transfers of at least so many bytes.
    #[must_use]
    pub fn relay_from_bytes(self, bytes: u64) -> Self {
        Self { relay_from_bytes: Some(bytes), ..self }
    }

    /// The largest chunk of a transfer over several lanes, and the size of a relay's slots. At least 64 KiB.
    #[must_use]
    pub fn chunk_bytes(self, bytes: u64) -> Self {
        Self { chunk_bytes: Some(bytes.max(64 << 10)), ..self }
    }

    /// The most staging memory on each device in bytes: 64 MiB if not set. A relay lane takes two chunks.
    #[must_use]
    pub fn staging_bytes(self, bytes: u64) -> Self {
        Self { staging_bytes: bytes, ..self }
    }

    /// How many submitted transfers run at a time: 2 unless told, at least 1. Beside them as many of a
    /// higher priority do, so there are at most three times as many threads.
    #[must_use]
    pub fn n_workers(self, n: usize) -> Self {
        Self { n_workers: n.max(1), ..self }
    }

    /// How many threads fill and empty pinned slots for a transfer of memory that is not pinned, or of a
    /// file. Without this, three for four processors, at most 8 for each link, and one for each MiB.
    #[must_use]
    pub fn n_threads(self, n: usize) -> Self {
        Self { n_threads: Some(n.max(1)), ..self }
    }

    /// The most pinned memory for such slots, in bytes: 256 MiB if not set. Where no slot fits, memory is copied as
    /// it is, and files are not.
    #[must_use]
    pub fn pinned_bytes(self, bytes: u64) -> Self {
        Self { pinned_bytes: bytes, ..self }
    }

    /// The size of a slot in bytes: 2 MiB if not set, at least 64 KiB.
    #[must_use]
    pub fn slot_bytes(self, bytes: u64) -> Self {
        Self { slot_bytes: bytes.max(64 << 10), ..self }
    }

    /// Stages memory that is not pinned from so many bytes on: 16 MiB if not set. The driver's own way is as fast
    /// for less.
    #[must_use]
    pub fn stage_from_bytes(self, bytes: u64) -> Self {
        Self { stage_from_bytes: bytes, ..self }
    }

    /// The threads of a staged transfer of `bytes` over `n_lanes`.
    pub(crate) fn staging_threads(&self, n_lanes: usize, bytes: u64) -> usize {
        self.n_threads.unwrap_or_else(|| {
            let n = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let n_useful = usize::try_from(bytes / THREAD_BYTES).unwrap_or(usize::MAX);
            (n - n / 4).min(n_lanes.saturating_mul(MOST_THREADS)).min(n_useful).max(1)
        })
    }

    /// The size from which on a transfer is relayed, where `calibrated` is what was measured.
    pub(crate) fn relay_from(&self, calibrated: Option<u64>) -> u64 {
        self.relay_from_bytes.or(calibrated).unwrap_or(RELAY_FROM_BYTES)
    }

    /// The largest chunk.
    pub(crate) fn chunk(&self) -> u64 {
        self.chunk_bytes.unwrap_or(CHUNK_BYTES)
    }

    /// The sizes of chunks for a transfer over `n_lanes`.
    pub(crate) fn sizes(&self, n_lanes: usize) -> Sizes {
        if n_lanes > 1 {
            Sizes { least_bytes: LEAST_BYTES.min(self.chunk()), most_bytes: self.chunk() }
        } else {
            Sizes { least_bytes: SINGLE_BYTES, most_bytes: SINGLE_BYTES }
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}
