//! Entries of the map.

use glake_core::driver::Access;
use glake_core::units::{DeviceId, HandleId};

/// What a copy or a kernel wants to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Read,
    Write,
}

/// A range that shows memory: a mapping, or adopted memory (then without a handle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(super) bytes: u64,
    /// The device that the memory lies on.
    pub(super) owner: DeviceId,
    pub(super) handle: Option<HandleId>,
    /// Devices that may read, a bit each.
    pub(super) readers: u64,
    /// Devices that may write, a bit each.
    pub(super) writers: u64,
}

/// What a range lies on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cover {
    /// Mappings that it touches.
    pub(crate) n_mappings: u64,
    /// The devices that own the memory, a bit each.
    pub(crate) owners: u64,
}

/// Physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Physical {
    /// The driver's own handle.
    pub(crate) raw: u64,
    pub(crate) device: DeviceId,
    pub(crate) bytes: u64,
    /// What it counts for in the account of its device: nothing if another process made it.
    pub(super) accounted_bytes: u64,
    pub(super) n_mapped: u64,
    pub(super) is_released: bool,
}

impl Mapped {
    /// Notes what devices may do.
    pub(super) fn set(&mut self, devices: &[DeviceId], access: Access) {
        for device in devices {
            let bit = bit(*device);
            self.readers = if access == Access::None { self.readers & !bit } else { self.readers | bit };
            self.writers = if access == Access::ReadWrite { self.writers | bit } else { self.writers & !bit };
        }
    }

    /// Whether a device may.
    pub(super) fn allows(&self, need: Need, device: DeviceId) -> bool {
        let allowed = match need {
            Need::Read => self.readers,
            Need::Write => self.writers,
        };
        allowed & bit(device) != 0
    }
}

/// The bit of a device. `open` admits 64 devices at most.
pub(crate) const fn bit(device: DeviceId) -> u64 {
    1 << (device.0 & 63)
}
