//! Virtual memory: each call is checked on the [map](super::space), made, and noted there. The
//! map stays locked while mappings change, so that check and change are one step.

use glake_core::driver::{Access, Call, DriverError, MemoryInfo, Result, Retired, VirtualMemory};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, HandleId};

use super::space::Space;
use super::{CudaDriver, Shared, lock};
use crate::call;
use crate::call::vmm::{self, Right};

impl Shared {
    /// Unmaps whole mappings that the device does not use any more.
    pub(crate) fn unmap(&self, range: AddressRange) -> Result<()> {
        let mut space = lock(&self.space);
        self.checked(Call::Unmap, space.check_whole(range))?;
        let device = self.device(space.owner(range.start))?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the map, still locked, says that the range covers whole mappings of ours.
        device.timed(Call::Unmap, || unsafe { vmm::unmap(range) })?;
        let freed = space.unmapped(range);
        drop(space);
        self.shrink(&freed);
        Ok(())
    }

    /// Gives an empty reservation back.
    pub(crate) fn unreserve(&self, range: AddressRange) -> Result<()> {
        let mut space = lock(&self.space);
        self.checked(Call::Unreserve, space.check_unreserve(range))?;
        let device = self.first()?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the map, still locked, says that this is a reservation of ours, and empty.
        device.timed(Call::Unreserve, || unsafe { vmm::unreserve(range) })?;
        space.unreserved(range.start);
        Ok(())
    }

    /// What `devices` would get on a checked range.
    fn rights(
        &self,
        space: &Space,
        range: AddressRange,
        devices: &[DeviceId],
        access: Access,
    ) -> Result<Vec<Right>> {
        let devices = devices.iter().map(|id| self.device(*id)).collect::<Result<Vec<_>>>()?;
        space.check_whole(range)?;
        let (owners, _) = space.devices_of(range);
        match devices.iter().find(|device| owners & !device.peers != 0) {
            Some(device) => Err(DriverError::NoPeerAccess(device.id)),
            None => Ok(devices.iter().map(|device| Right::of(device.cu, access)).collect()),
        }
    }

    /// Releases a handle; its memory goes when nothing is mapped any more.
    pub(crate) fn release(&self, handle: HandleId) -> Result<()> {
        let mut space = lock(&self.space);
        let physical = self.checked(Call::Release, space.handle(handle))?;
        let device = self.device(physical.device)?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the map, still locked, says that the handle is ours and not released yet.
        device.timed(Call::Release, || unsafe { vmm::release(physical.raw) })?;
        let freed = space.released(handle);
        device.note(|ledger| ledger.shrink(freed));
        Ok(())
    }

    fn shrink(&self, freed: &[(DeviceId, u64)]) {
        for (device, bytes) in freed {
            if let Ok(device) = self.device(*device) {
                device.note(|ledger| ledger.shrink(*bytes));
            }
        }
    }
}

impl VirtualMemory for CudaDriver {
    fn granularity(&self, device: DeviceId) -> Result<u64> {
        self.device(device)?;
        Ok(self.shared.granularity_bytes)
    }

    fn reserve(&self, bytes: u64, align_bytes: u64) -> Result<AddressRange> {
        let allowed = lock(&self.shared.space).check_reserve(bytes, align_bytes);
        self.shared.checked(Call::Reserve, allowed)?;
        self.shared.poll();
        let device = self.shared.first()?;
        let _entered = device.enter_beside_captures()?;
        let start = match device.timed(Call::Reserve, || vmm::reserve(bytes, align_bytes)) {
            Err(DriverError::OutOfMemory | DriverError::Native { code: 1, .. }) => {
                return Err(DriverError::OutOfAddresses { bytes });
            }
            start => start?,
        };
        let range = AddressRange::new(start, bytes);
        lock(&self.shared.space).reserved(range);
        Ok(range)
    }

    fn unreserve(&self, range: AddressRange) -> Result<()> {
        self.shared.poll();
        self.shared.unreserve(range)
    }

    fn create(&self, device: DeviceId, bytes: u64) -> Result<HandleId> {
        let device = self.shared.checked(Call::Create, self.device(device))?;
        let allowed = lock(&self.shared.space).check_bytes(bytes);
        self.shared.checked(Call::Create, allowed)?;
        self.shared.poll();
        let _entered = device.enter_beside_captures()?;
        let raw = match device.timed(Call::Create, || device.create(bytes)) {
            Err(DriverError::OutOfMemory) => {
                self.shared.poll_all();
                device.timed(Call::Create, || device.create(bytes))?
            }
            raw => raw?,
        };
        device.note(|ledger| ledger.grow(bytes));
        Ok(lock(&self.shared.space).created(raw, device.id, bytes))
    }

    fn release(&self, handle: HandleId) -> Result<()> {
        self.shared.release(handle)
    }

    fn map(&self, at: DevicePtr, handle: HandleId) -> Result<()> {
        self.shared.poll();
        let mut space = lock(&self.shared.space);
        let (range, physical) = self.shared.checked(Call::Map, space.check_map(at, handle))?;
        let device = self.device(physical.device)?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the map, still locked, says that the range is free, in a reservation of ours,
        // and as long as the handle, which is ours and not released.
        device.timed(Call::Map, || unsafe { vmm::map(range, physical.raw) })?;
        space.mapped(range, handle);
        Ok(())
    }

    fn unmap(&self, range: AddressRange) -> Result<()> {
        self.shared.poll();
        self.shared.unmap(range)
    }

    fn set_access(&self, range: AddressRange, devices: &[DeviceId], access: Access) -> Result<()> {
        let mut space = lock(&self.shared.space);
        let rights = self.shared.rights(&space, range, devices, access);
        let rights = self.shared.checked(Call::SetAccess, rights)?;
        if rights.is_empty() {
            return Ok(());
        }
        let device = self.device(space.owner(range.start))?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the map, still locked, says that the range covers whole mappings of ours.
        device.timed(Call::SetAccess, || unsafe { vmm::set_access(range, &rights) })?;
        space.accessed(range, devices, access);
        Ok(())
    }

    fn retire(&self, retired: Retired) {
        self.shared.retire(retired);
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        let device = self.shared.checked(Call::MemoryInfo, self.device(device))?;
        self.shared.poll();
        let _entered = device.enter_beside_captures()?;
        let (free_bytes, total_bytes) = device.timed(Call::MemoryInfo, call::device::memory_info)?;
        Ok(MemoryInfo { free_bytes, total_bytes })
    }
}
