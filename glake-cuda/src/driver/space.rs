//! The map of everything that the driver handed out: which reservation, which mapping, which
//! handle. Pure: it decides, [`vmm`](super::vmm) acts.
//!
//! Every call is checked here first, so that a mistake gives the same typed error as on the
//! simulated driver and never reaches CUDA. Look-ups take O(log n), walks O(mappings in the range).

use std::collections::BTreeMap;

use glake_core::driver::{Access, DriverError, Result};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, HandleId};

mod entry;

use entry::Mapped;
pub(crate) use entry::{Cover, Need, Physical, bit};

/// The map.
#[derive(Debug, Default)]
pub(crate) struct Space {
    granule_bytes: u64,
    reservations: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapped>,
    handles: BTreeMap<HandleId, Physical>,
    last_handle: u64,
}

impl Space {
    /// An empty map; addresses and sizes are multiples of `granule_bytes`.
    pub(crate) fn new(granule_bytes: u64) -> Self {
        Self { granule_bytes, ..Self::default() }
    }

    /// Whether `bytes` and `align_bytes` can be reserved.
    pub(crate) fn check_reserve(&self, bytes: u64, align_bytes: u64) -> Result<()> {
        self.check_bytes(bytes)?;
        let aligned = align_bytes.is_multiple_of(self.granule_bytes) && align_bytes.is_power_of_two();
        if aligned {
            Ok(())
        } else {
            Err(DriverError::InvalidValue(
                "the alignment must be a power of two and a multiple of the granularity",
            ))
        }
    }

    /// Whether `bytes` is a size of a handle or reservation.
    pub(crate) fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes != 0 && bytes.is_multiple_of(self.granule_bytes) {
            Ok(())
        } else {
            Err(DriverError::InvalidValue("the size must be a multiple of the granularity, and not zero"))
        }
    }

    /// Notes a reservation.
    pub(crate) fn reserved(&mut self, range: AddressRange) {
        self.reservations.insert(range.start.0, range.bytes);
    }

    /// Whether `range` is a whole reservation with nothing in it.
    pub(crate) fn check_unreserve(&self, range: AddressRange) -> Result<()> {
        if self.reservations.get(&range.start.0) != Some(&range.bytes) {
            Err(DriverError::UnknownAddress(range.start))
        } else if self.touches(range) {
            Err(DriverError::StillMapped(range))
        } else {
            Ok(())
        }
    }

    /// Forgets a reservation.
    pub(crate) fn unreserved(&mut self, start: DevicePtr) {
        self.reservations.remove(&start.0);
    }

    /// Notes new physical memory.
    pub(crate) fn created(&mut self, raw: u64, device: DeviceId, bytes: u64) -> HandleId {
        self.hold(raw, device, bytes, bytes)
    }

    /// Notes physical memory that was imported, and is accounted for elsewhere.
    pub(crate) fn imported(&mut self, raw: u64, device: DeviceId, bytes: u64) -> HandleId {
        self.hold(raw, device, bytes, 0)
    }

    fn hold(&mut self, raw: u64, device: DeviceId, bytes: u64, accounted_bytes: u64) -> HandleId {
        self.last_handle += 1;
        let handle = HandleId(self.last_handle);
        let physical = Physical { raw, device, bytes, accounted_bytes, n_mapped: 0, is_released: false };
        self.handles.insert(handle, physical);
        handle
    }

    /// A handle that is not released.
    pub(crate) fn handle(&self, handle: HandleId) -> Result<Physical> {
        let live = self.handles.get(&handle).filter(|physical| !physical.is_released);
        live.copied().ok_or(DriverError::UnknownHandle(handle))
    }

    /// Notes a release; returns the bytes that went back to the device, none while mapped.
    pub(crate) fn released(&mut self, handle: HandleId) -> u64 {
        match self.handles.get_mut(&handle) {
            Some(physical) => physical.is_released = true,
            None => return 0,
        }
        self.collect(handle)
    }

    /// Where `handle` would be mapped, if it may.
    pub(crate) fn check_map(&self, at: DevicePtr, handle: HandleId) -> Result<(AddressRange, Physical)> {
        let physical = self.handle(handle)?;
        let range = AddressRange::new(at, physical.bytes);
        if !at.is_aligned(self.granule_bytes) || self.reservation_around(range).is_none() {
            Err(DriverError::UnknownAddress(at))
        } else if self.touches(range) {
            Err(DriverError::StillMapped(range))
        } else {
            Ok((range, physical))
        }
    }

    /// Notes a mapping.
    pub(crate) fn mapped(&mut self, range: AddressRange, handle: HandleId) {
        let Some(physical) = self.handles.get_mut(&handle) else { return };
        physical.n_mapped += 1;
        let owner = physical.device;
        let handle = Some(handle);
        self.mapped
            .insert(range.start.0, Mapped { bytes: range.bytes, owner, handle, readers: 0, writers: 0 });
    }

    /// Notes foreign memory, which must not overlap anything known.
    pub(crate) fn adopt(&mut self, range: AddressRange, owner: DeviceId, access: Access) -> Result<()> {
        let fits = range.bytes != 0 && range.start.checked_add(range.bytes).is_some();
        if !fits {
            return Err(DriverError::InvalidValue("the range is empty or leaves the address space"));
        }
        if self.touches(range) || self.reservation_touches(range) {
            return Err(DriverError::StillMapped(range));
        }
        let mut mapped = Mapped { bytes: range.bytes, owner, handle: None, readers: 0, writers: 0 };
        mapped.set(&[owner], access);
        self.mapped.insert(range.start.0, mapped);
        Ok(())
    }

    /// Forgets adopted memory that starts at `start`.
    pub(crate) fn disown(&mut self, start: DevicePtr) -> Result<()> {
        match self.mapped.get(&start.0) {
            Some(mapped) if mapped.handle.is_none() => {
                self.mapped.remove(&start.0);
                Ok(())
            }
            _ => Err(DriverError::UnknownAddress(start)),
        }
    }

    /// Whether `range` covers whole mappings of one reservation, and nothing else.
    pub(crate) fn check_whole(&self, range: AddressRange) -> Result<()> {
        let cut = Err(DriverError::InvalidValue(
            "the range cuts a mapping: a handle is mapped whole or not at all",
        ));
        let aligned =
            range.start.is_aligned(self.granule_bytes) && range.bytes.is_multiple_of(self.granule_bytes);
        if range.bytes == 0 || !aligned {
            return Err(DriverError::InvalidValue("a range of mappings is whole pages, and not empty"));
        }
        let mut at = range.start;
        while at < range.end() {
            match self.around(at) {
                Some((start, mapped)) if start == at && mapped.handle.is_some() => at = at + mapped.bytes,
                Some((_, mapped)) if mapped.handle.is_some() => return cut,
                _ => return Err(DriverError::NotMapped(range)),
            }
        }
        if at != range.end() {
            return cut;
        }
        match self.reservation_around(range) {
            Some(_) => Ok(()),
            None => Err(DriverError::InvalidValue("the range crosses from one reservation into another")),
        }
    }

    /// Forgets the mappings of a checked range; returns the bytes that went back to each device.
    pub(crate) fn unmapped(&mut self, range: AddressRange) -> Vec<(DeviceId, u64)> {
        let starts: Vec<u64> = self.mapped.range(range.start.0..range.end().0).map(|(at, _)| *at).collect();
        let mut freed = Vec::new();
        for start in starts {
            let Some(Mapped { owner, handle: Some(handle), .. }) = self.mapped.remove(&start) else {
                continue;
            };
            if let Some(physical) = self.handles.get_mut(&handle) {
                physical.n_mapped -= 1;
            }
            freed.push((owner, self.collect(handle)));
        }
        freed
    }

    /// Notes the access rights of a checked range.
    pub(crate) fn accessed(&mut self, range: AddressRange, devices: &[DeviceId], access: Access) {
        for (_, mapped) in self.mapped.range_mut(range.start.0..range.end().0) {
            mapped.set(devices, access);
        }
    }

    /// The device that the memory at `at` lies on; device 0 where there is none.
    pub(crate) fn owner(&self, at: DevicePtr) -> DeviceId {
        self.around(at).map_or(DeviceId(0), |(_, mapped)| mapped.owner)
    }

    /// The devices that own memory in `range`, and those that may touch it, a bit each.
    pub(crate) fn devices_of(&self, range: AddressRange) -> (u64, u64) {
        let mappings = self.mapped.range(range.start.0..range.end().0);
        mappings
            .fold((0, 0), |(owners, users), (_, mapped)| (owners | bit(mapped.owner), users | mapped.readers))
    }

    /// Whether `device` may touch all of `range` like that. An empty range is nobody's.
    pub(crate) fn check_access(&self, range: AddressRange, need: Need, device: DeviceId) -> Result<()> {
        self.cover(range, need, device).map(drop)
    }

    /// As [`check_access`](Self::check_access), and what `range` lies on.
    pub(crate) fn cover(&self, range: AddressRange, need: Need, device: DeviceId) -> Result<Cover> {
        let (mut at, mut left) = (range.start, range.bytes);
        let mut cover = Cover::default();
        let above =
            self.mapped.range(at.0.saturating_add(1)..).map(|(start, mapped)| (DevicePtr(*start), mapped));
        let mut mappings = self.around(at).into_iter().chain(above);
        while left > 0 {
            let here = mappings.next().filter(|(start, mapped)| *start <= at && at - *start < mapped.bytes);
            let Some((start, mapped)) = here else {
                let known = self.reservation_around(AddressRange::new(at, 1)).is_some();
                let part = AddressRange::new(at, left);
                return Err(if known {
                    DriverError::NotMapped(part)
                } else {
                    DriverError::UnknownAddress(at)
                });
            };
            let bytes = left.min(mapped.bytes - (at - start));
            if !mapped.allows(need, device) {
                return Err(DriverError::NoAccess(AddressRange::new(at, bytes)));
            }
            cover.n_mappings += 1;
            cover.owners |= bit(mapped.owner);
            at = DevicePtr(at.0.saturating_add(bytes));
            left -= bytes;
        }
        Ok(cover)
    }

    /// All handles, reservations and mappings, for closing.
    pub(crate) fn drain(&mut self) -> (Vec<AddressRange>, Vec<u64>, Vec<AddressRange>) {
        let owned = |(_, mapped): &(&u64, &Mapped)| mapped.handle.is_some();
        let mappings = self.mapped.iter().filter(owned);
        let mappings = mappings.map(|(at, mapped)| AddressRange::new(DevicePtr(*at), mapped.bytes)).collect();
        let live = self.handles.values().filter(|physical| !physical.is_released);
        let handles = live.map(|physical| physical.raw).collect();
        let reservations = self.reservations.iter();
        let reservations =
            reservations.map(|(at, bytes)| AddressRange::new(DevicePtr(*at), *bytes)).collect();
        *self = Self { granule_bytes: self.granule_bytes, last_handle: self.last_handle, ..Self::default() };
        (mappings, handles, reservations)
    }

    /// Takes out the handles and reservations in which nothing is mapped, for dropping.
    pub(crate) fn drain_idle(&mut self) -> (Vec<u64>, Vec<AddressRange>) {
        let idle = |physical: &&Physical| !physical.is_released && physical.n_mapped == 0;
        let handles = self.handles.values().filter(idle).map(|physical| physical.raw).collect();
        self.handles.retain(|_, physical| physical.n_mapped > 0);
        let ranges = self.reservations.iter();
        let ranges = ranges.map(|(at, bytes)| AddressRange::new(DevicePtr(*at), *bytes));
        let empty: Vec<AddressRange> = ranges.filter(|range| !self.touches(*range)).collect();
        self.reservations.retain(|at, _| !empty.iter().any(|range| range.start.0 == *at));
        (handles, empty)
    }

    /// Drops the entry of a handle that is released and not mapped; returns its bytes.
    fn collect(&mut self, handle: HandleId) -> u64 {
        match self.handles.get(&handle) {
            Some(physical) if physical.is_released && physical.n_mapped == 0 => {
                let bytes = physical.accounted_bytes;
                self.handles.remove(&handle);
                bytes
            }
            _ => 0,
        }
    }

    /// The mapping that covers `at`.
    fn around(&self, at: DevicePtr) -> Option<(DevicePtr, &Mapped)> {
        let (start, mapped) = self.mapped.range(..=at.0).next_back()?;
        (at.0 - start < mapped.bytes).then_some((DevicePtr(*start), mapped))
    }

    /// The reservation that contains `range`.
    fn reservation_around(&self, range: AddressRange) -> Option<AddressRange> {
        let (start, bytes) = self.reservations.range(..=range.start.0).next_back()?;
        let reservation = AddressRange::new(DevicePtr(*start), *bytes);
        reservation.contains(range).then_some(reservation)
    }

    /// Whether something is mapped in `range`.
    fn touches(&self, range: AddressRange) -> bool {
        self.around(range.start).is_some() || self.mapped.range(range.start.0..range.end().0).next().is_some()
    }

    /// Whether a reservation overlaps `range`.
    fn reservation_touches(&self, range: AddressRange) -> bool {
        self.reservation_around(AddressRange::new(range.start, 1)).is_some()
            || self.reservations.range(range.start.0..range.end().0).next().is_some()
    }
}

#[cfg(test)]
mod tests;
