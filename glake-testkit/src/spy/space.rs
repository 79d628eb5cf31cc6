//! What is mapped where.

use std::collections::{BTreeMap, HashMap};

use glake_core::units::{AddressRange, DevicePtr, HandleId};

/// A piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The handle, by the order in which handles were created: a number is never used again.
    pub serial: u64,
    /// Offset in the handle in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Space {
    /// Serial and size of the handle that bears the driver's id now.
    handles: HashMap<HandleId, (u64, u64)>,
    n_handles: u64,
    /// Serial and size by address.
    mappings: BTreeMap<DevicePtr, (u64, u64)>,
    pub(super) mapped_bytes: u64,
}

impl Space {
    pub(super) fn create(&mut self, handle: HandleId, bytes: u64) {
        self.n_handles += 1;
        self.handles.insert(handle, (self.n_handles, bytes));
    }

    pub(super) fn map(&mut self, at: DevicePtr, handle: HandleId) {
        let Some(&mapping) = self.handles.get(&handle) else { return };
        self.mappings.insert(at, mapping);
        self.mapped_bytes += mapping.1;
    }

    pub(super) fn unmap(&mut self, range: AddressRange) {
        let gone: Vec<_> = self.mappings.range(range.start..range.end()).map(|(&at, _)| at).collect();
        for at in gone {
            self.mappings.remove(&at);
        }
    }

    pub(super) fn resolve(&self, range: AddressRange) -> Option<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut at = range.start;
        while at < range.end() {
            let (&start, &(serial, bytes)) = self.mappings.range(..=at).next_back()?;
            let end = (start + bytes).min(range.end());
            if end <= at {
                return None;
            }
            extents.push(Extent { serial, offset_bytes: at - start, bytes: end - at });
            at = end;
        }
        Some(extents)
    }
}
