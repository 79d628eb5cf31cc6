//! Virtual memory of the simulated driver.

use super::fault::Target;
use super::state::State;
use super::{CostTable, SimDriver};
use crate::driver::{Access, Call, DriverError, MemoryInfo, Result, Retired, VirtualMemory};
use crate::units::{AddressRange, DeviceId, DevicePtr, HandleId, PAGE_BYTES};

impl VirtualMemory for SimDriver {
    fn granularity(&self, device: DeviceId) -> Result<u64> {
        if device.0 < self.n_devices { Ok(PAGE_BYTES) } else { Err(DriverError::InvalidDevice(device)) }
    }

    fn reserve(&self, bytes: u64, align_bytes: u64) -> Result<AddressRange> {
        self.lock().call(Target::One(Call::Reserve), |state| {
            state.on_any()?;
            Ok((state.space.reserve(bytes, align_bytes)?, state.config.costs.reserve_ns))
        })
    }

    fn unreserve(&self, range: AddressRange) -> Result<()> {
        self.lock().call(Target::One(Call::Unreserve), |state| {
            state.on_any()?;
            state.space.unreserve(range)?;
            Ok(((), state.config.costs.unreserve_ns))
        })
    }

    fn create(&self, device: DeviceId, bytes: u64) -> Result<HandleId> {
        self.lock().call(Target::One(Call::Create), |state| {
            let device = state.on_id(device)?;
            if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
                return Err(DriverError::InvalidValue("the size of a handle is whole pages"));
            }
            if bytes > state.config.memory_bytes.saturating_sub(state.devices[device].ledger.physical_bytes) {
                return Err(DriverError::OutOfMemory);
            }
            let handle = state.memory.create(device, bytes)?;
            state.devices[device].ledger.grow(bytes);
            Ok((handle, state.config.costs.create.at(bytes)))
        })
    }

    fn release(&self, handle: HandleId) -> Result<()> {
        self.lock().call(Target::One(Call::Release), |state| Ok(((), state.release(handle)?)))
    }

    fn map(&self, at: DevicePtr, handle: HandleId) -> Result<()> {
        self.lock().call(Target::One(Call::Map), |state| {
            let (id, physical) = state.memory.of(handle)?;
            let (device, bytes) = (physical.device, physical.bytes);
            state.on(device)?;
            state.space.map(at, bytes, id)?;
            state.memory.mapped(id);
            Ok(((), state.config.costs.map.at(bytes)))
        })
    }

    fn unmap(&self, range: AddressRange) -> Result<()> {
        self.lock().call(Target::One(Call::Unmap), |state| Ok(((), state.unmap(range)?)))
    }

    fn set_access(&self, range: AddressRange, devices: &[DeviceId], access: Access) -> Result<()> {
        self.lock().call(Target::One(Call::SetAccess), |state| {
            let mut mask = 0;
            for &device in devices {
                if device.0 as usize >= state.devices.len() {
                    return Err(DriverError::InvalidDevice(device));
                }
                mask |= 1 << device.0;
            }
            let ns = state.mappings_in(range, mask, |costs, bytes| costs.set_access.at(bytes))?;
            state.space.set_access(range, mask, access);
            Ok(((), ns + state.config.costs.set_access_ns))
        })
    }

    fn retire(&self, retired: Retired) {
        let mut state = self.lock();
        state.retired.push(retired);
        state.sweep_retired();
    }

    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo> {
        self.lock().call(Target::One(Call::MemoryInfo), |state| {
            let device = state.on_id(device)?;
            let total_bytes = state.config.memory_bytes;
            let free_bytes = total_bytes.saturating_sub(state.devices[device].ledger.physical_bytes);
            Ok((MemoryInfo { free_bytes, total_bytes }, state.config.costs.memory_info_ns))
        })
    }
}

impl State {
    /// Unmaps `range`; returns what it costs.
    fn unmap(&mut self, range: AddressRange) -> Result<u64> {
        let ns = self.mappings_in(range, 0, |costs, bytes| costs.unmap.at(bytes))?;
        let mut at = range.start.0;
        while at < range.end().0 {
            let Some(mapping) = self.space.unmap_one(at) else { break };
            let freed = self.memory.unmapped(mapping.memory);
            self.forget(freed);
            at += mapping.bytes;
        }
        Ok(ns)
    }

    /// Releases `handle`; returns what it costs.
    fn release(&mut self, handle: HandleId) -> Result<u64> {
        let physical = self.memory.of(handle)?.1;
        let (device, bytes) = (physical.device, physical.bytes);
        self.on(device)?;
        let freed = self.memory.release(handle)?;
        self.forget(freed);
        Ok(self.config.costs.release.at(bytes))
    }

    /// Gives back what was retired and whose events have passed. Costs nothing: no caller waits.
    pub(super) fn sweep_retired(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        let has_passed = |state: &Self, retired: &Retired| {
            retired.after.iter().all(|&id| state.streams.event(id).is_ok_and(|event| state.has_passed(event)))
        };
        let waiting = std::mem::take(&mut self.retired);
        for retired in waiting {
            if !has_passed(self, &retired) {
                self.retired.push(retired);
                continue;
            }
            // What fails, as on a lost device, is left to the drop of the driver.
            for &range in &retired.mappings {
                let _ = self.unmap(range);
            }
            for &handle in &retired.handles {
                let _ = self.release(handle);
            }
            for &range in &retired.reservations {
                let _ = self.space.unreserve(range);
            }
            retired.after.iter().for_each(|&event| self.streams.forget(event));
        }
    }

    /// Checks that `range` is whole mappings of memory that every device of the mask can reach;
    /// books the call on the first memory's device, and sums `cost` of the handles' bytes.
    fn mappings_in(
        &mut self,
        range: AddressRange,
        devices: u64,
        cost: impl Fn(&CostTable, u64) -> u64,
    ) -> Result<u64> {
        let first = self.space.mapping(range.start.0).and_then(|mapping| self.memory.get(mapping.memory));
        if let Some(device) = first.map(|physical| physical.device) {
            self.on(device)?;
        }
        let mut ns = 0;
        self.space.each(range, |mapping| {
            ns += cost(&self.config.costs, mapping.bytes);
            if devices != 0
                && let Some(owner) = self.memory.get(mapping.memory)
            {
                let cut_off = devices & !self.config.reach[owner.device];
                if cut_off != 0 {
                    return Err(DriverError::NoPeerAccess(DeviceId(cut_off.trailing_zeros())));
                }
            }
            Ok(())
        })?;
        Ok(ns)
    }
}
