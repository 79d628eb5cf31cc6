//! Device addresses: what is reserved, what is mapped, who may do what with it.

use std::collections::BTreeMap;

use super::pages::PageTable;
use crate::driver::{Access, DriverError, Result};
use crate::units::{AddressRange, DevicePtr, PAGE_BYTES};

/// The first address that is ever reserved.
const FIRST: u64 = 1 << 40;
/// The end of the addresses: 47 bits, as on x86-64.
const END: u64 = 1 << 47;

/// A handle's memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// Id of the physical memory.
    pub(super) memory: u64,
    /// The devices that may read and write, as bit masks.
    pub(super) readers: u64,
    pub(super) writers: u64,
}

/// Part of a range, inside one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) memory: u64,
    /// Where in the memory the part begins.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// What work does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    Read,
    Write,
}

/// The address space, shared by all devices.
#[derive(Debug)]
pub(super) struct Space {
    /// Bytes of each reservation by its address.
    reservations: BTreeMap<u64, u64>,
    /// No reservation lies at or above this address.
    top: u64,
    pages: PageTable,
    mappings: Vec<Mapping>,
    free: Vec<u32>,
}

fn aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(PAGE_BYTES)
}

impl Space {
    pub(super) fn new() -> Self {
        Self {
            reservations: BTreeMap::new(),
            top: FIRST,
            pages: PageTable::new(FIRST),
            mappings: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Above everything reserved while there is room there, then in the lowest gap that fits.
    pub(super) fn reserve(&mut self, bytes: u64, align_bytes: u64) -> Result<AddressRange> {
        if bytes == 0 || align_bytes == 0 || !aligned(bytes) || !aligned(align_bytes) {
            return Err(DriverError::InvalidValue("a reservation and its alignment are whole pages"));
        }
        let fits = |from: u64, end: u64| {
            let start = from.checked_next_multiple_of(align_bytes)?;
            (start.checked_add(bytes)? <= end).then_some(start)
        };
        let start = fits(self.top, END).or_else(|| {
            let mut from = FIRST;
            self.reservations.iter().find_map(|(&start, &bytes)| {
                let found = fits(from, start);
                from = start + bytes;
                found
            })
        });
        let start = start.ok_or(DriverError::OutOfAddresses { bytes })?;
        self.reservations.insert(start, bytes);
        self.top = self.top.max(start + bytes);
        Ok(AddressRange::new(DevicePtr(start), bytes))
    }

    pub(super) fn unreserve(&mut self, range: AddressRange) -> Result<()> {
        let start = range.start.0;
        if self.reservations.get(&start) != Some(&range.bytes) {
            return Err(DriverError::UnknownAddress(range.start));
        }
        if self.pages.any(start, range.bytes) {
            return Err(DriverError::StillMapped(range));
        }
        self.reservations.remove(&start);
        self.top = self.reservations.last_key_value().map_or(FIRST, |(start, bytes)| start + bytes);
        Ok(())
    }

    /// Whether `bytes` bytes at `start` lie inside one reservation.
    fn is_reserved(&self, start: u64, bytes: u64) -> bool {
        let Some((&first, &length)) = self.reservations.range(..=start).next_back() else { return false };
        start.checked_add(bytes).is_some_and(|end| end <= first + length)
    }

    pub(super) fn map(&mut self, at: DevicePtr, bytes: u64, memory: u64) -> Result<()> {
        let start = at.0;
        if !aligned(start) || !self.is_reserved(start, bytes) {
            return Err(DriverError::UnknownAddress(at));
        }
        if self.pages.any(start, bytes) {
            return Err(DriverError::StillMapped(AddressRange::new(at, bytes)));
        }
        let mapping = Mapping { start, bytes, memory, readers: 0, writers: 0 };
        let index = if let Some(index) = self.free.pop() {
            self.mappings[index as usize] = mapping;
            index
        } else {
            self.mappings.push(mapping);
            u32::try_from(self.mappings.len() - 1).unwrap_or(u32::MAX)
        };
        self.pages.set(start, bytes, Some(index));
        Ok(())
    }

    /// Hands each mapping of `range`, which has to cover whole mappings and nothing else, to `see`.
    pub(super) fn each(
        &self,
        range: AddressRange,
        mut see: impl FnMut(&Mapping) -> Result<()>,
    ) -> Result<()> {
        let end = range.end().0;
        if range.bytes == 0 || !aligned(range.start.0) || !aligned(range.bytes) {
            return Err(DriverError::InvalidValue("a range of mappings is whole pages"));
        }
        let mut at = range.start.0;
        while at < end {
            let mapping = self.mapping(at).ok_or(DriverError::NotMapped(range))?;
            if mapping.start != at || end - at < mapping.bytes {
                return Err(DriverError::InvalidValue("the range cuts a mapping"));
            }
            see(mapping)?;
            at += mapping.bytes;
        }
        Ok(())
    }

    /// Removes the mapping that starts at `start`.
    pub(super) fn unmap_one(&mut self, start: u64) -> Option<Mapping> {
        let index = self.pages.get(start)?;
        let mapping = self.mappings[index as usize];
        self.pages.set(mapping.start, mapping.bytes, None);
        self.free.push(index);
        Some(mapping)
    }

    /// Sets the rights of the devices in the mask on a range that [`each`](Self::each) took.
    pub(super) fn set_access(&mut self, range: AddressRange, devices: u64, access: Access) {
        let mut at = range.start.0;
        while at < range.end().0 {
            let Some(index) = self.pages.get(at) else { return };
            let mapping = &mut self.mappings[index as usize];
            mapping.readers &= !devices;
            mapping.writers &= !devices;
            match access {
                Access::None => {}
                Access::ReadOnly => mapping.readers |= devices,
                Access::ReadWrite => {
                    mapping.readers |= devices;
                    mapping.writers |= devices;
                }
            }
            at = mapping.start + mapping.bytes;
        }
    }

    /// The mapping that covers `at`.
    pub(super) fn mapping(&self, at: u64) -> Option<&Mapping> {
        self.pages.get(at).map(|index| &self.mappings[index as usize])
    }

    /// The physical memory behind `range`, where `device` may touch all of it in that way.
    pub(super) fn translate(
        &self,
        range: AddressRange,
        device: usize,
        touch: Touch,
        mut see: impl FnMut(Segment),
    ) -> Result<()> {
        let (mut at, mut left) = (range.start.0, range.bytes);
        while left > 0 {
            let Some(mapping) = self.mapping(at) else {
                let known = self.is_reserved(at, 1);
                let part = AddressRange::new(DevicePtr(at), left);
                return Err(if known {
                    DriverError::NotMapped(part)
                } else {
                    DriverError::UnknownAddress(part.start)
                });
            };
            let may = if touch == Touch::Read { mapping.readers } else { mapping.writers };
            let offset = at - mapping.start;
            let bytes = left.min(mapping.bytes - offset);
            if may & (1 << device) == 0 {
                return Err(DriverError::NoAccess(AddressRange::new(DevicePtr(at), bytes)));
            }
            see(Segment { memory: mapping.memory, offset, bytes });
            at += bytes;
            left -= bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
