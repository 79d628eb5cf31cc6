//! Closing, the one place where the driver waits for everything.

use glake_core::driver::Result;

use super::device::Device;
use super::{STILL_USED, Shared, lock};
use crate::call::{device, order, vmm};

impl Shared {
    /// Waits for all devices and frees all that the driver made.
    pub(crate) fn close(mut self) -> Result<()> {
        for device in self.devices.iter().filter(|device| device.is_in_use()) {
            let _entered = device.enter_beside_captures()?;
            device::synchronize()?;
        }
        self.reap_all();
        self.drop_reads();
        self.drop_hosts();
        // What the driver itself kept is gone by now.
        if self.pinned.is_lent() {
            return Err(STILL_USED);
        }
        lock(&self.streams).clear();
        let (mappings, handles, reservations) = lock(&self.space).drain();
        let entered = self.first()?.enter_beside_captures()?;
        for range in mappings {
            // SAFETY: the map says that this is one of our mappings; all work is done.
            unsafe { vmm::unmap(range) }?;
        }
        for handle in handles {
            // SAFETY: the map says that the handle is ours and not released.
            unsafe { vmm::release(handle) }?;
        }
        for range in reservations {
            // SAFETY: the map says that the reservation is ours, and all is unmapped.
            unsafe { vmm::unreserve(range) }?;
        }
        for (event, _) in lock(&self.events).drain() {
            // SAFETY: the event is the driver's, and all work is done.
            unsafe { order::destroy_event(event) }?;
        }
        self.pinned.free_idle()?;
        drop(entered);
        for mut device in self.devices.drain(..).filter(Device::is_in_use) {
            let _entered = device.enter_beside_captures()?;
            // SAFETY: all work is done, and the driver is consumed.
            unsafe { device.close() }?;
        }
        Ok(())
    }
}
