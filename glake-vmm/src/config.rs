//! How a pool is set up.

use glake_core::units::DeviceId;

/// How the pool weighs waste against driver time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Handles grow with the pool: little driver time, about 1 % waste.
    #[default]
    Default,
    /// Handles of one page: the least waste, more driver time.
    Compact,
    /// Handles stay where they are, so that no memory is ever seen at two addresses: for programs
    /// whose kernels overlap on one stream (programmatic dependent launch) or talk to each other
    /// while they run. Free memory that is cut up is given back and created anew instead, for which a
    /// request at the limit waits for the device.
    Pinned,
}

/// Configuration of a [`StitchPool`](crate::StitchPool).
///
/// ```
/// use glake_core::units::DeviceId;
/// use glake_vmm::{Config, Mode};
/// let config = Config::new(DeviceId(0)).mode(Mode::Compact).limit_bytes(8 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub(crate) device: DeviceId,
    pub(crate) mode: Mode,
    pub(crate) limit_bytes: u64,
    pub(crate) stitch_above_bytes: u64,
    pub(crate) headroom_bytes: u64,
    pub(crate) leave_bytes: u64,
}

impl Config {
    /// A pool on `device`, in default mode without a limit.
    #[must_use]
    pub fn new(device: DeviceId) -> Self {
        Self {
            device,
            mode: Mode::Default,
            limit_bytes: u64::MAX,
            stitch_above_bytes: 0,
            headroom_bytes: 0,
            leave_bytes: 0,
        }
    }

    /// The same on another device.
    #[must_use]
    pub fn on(self, device: DeviceId) -> Self {
        Self { device, ..self }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The most physical bytes that the pool may hold.
    #[must_use]
    pub fn limit_bytes(self, bytes: u64) -> Self {
        Self { limit_bytes: bytes, ..self }
    }

    /// Below this many physical bytes the pool grows rather than stitch: less driver time while
    /// memory is plenty. 0, the default, stitches always.
    #[must_use]
    pub fn stitch_above_bytes(self, bytes: u64) -> Self {
        Self { stitch_above_bytes: bytes, ..self }
    }

    /// How many free bytes background work keeps ready at the end of the pool, so that a request
    /// seldom waits for the driver to create memory. 0, the default, creates only what is asked for.
    #[must_use]
    pub fn headroom_bytes(self, bytes: u64) -> Self {
        Self { headroom_bytes: bytes, ..self }
    }

    /// How many free bytes background work leaves to others on the device, by giving back what is
    /// free in the pool. 0, the default, gives nothing back unasked.
    #[must_use]
    pub fn leave_bytes(self, bytes: u64) -> Self {
        Self { leave_bytes: bytes, ..self }
    }
}
