//! A segment: one physical handle at one address.

use glake_core::driver::{Access, Driver, Result};
use glake_core::units::{AddressRange, DeviceId, HandleId, PAGE_BYTES};

#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) range: AddressRange,
    handle: HandleId,
}

impl Segment {
    pub(super) fn create(driver: &dyn Driver, device: DeviceId, bytes: u64) -> Result<Self> {
        let handle = driver.create(device, bytes)?;
        let range = driver.reserve(bytes, PAGE_BYTES).inspect_err(|_| {
            let _ = driver.release(handle);
        })?;
        let segment = Self { range, handle };
        if let Err(error) = driver.map(range.start, handle) {
            let _ = driver.release(handle);
            let _ = driver.unreserve(range);
            return Err(error);
        }
        segment.open(driver, device).inspect_err(|_| {
            let _ = segment.destroy(driver, device);
        })?;
        Ok(segment)
    }

    fn open(self, driver: &dyn Driver, device: DeviceId) -> Result<()> {
        driver.set_access(self.range, &[device], Access::ReadWrite)
    }

    /// Gives the memory back, or leaves the segment as it is.
    pub(super) fn destroy(self, driver: &dyn Driver, device: DeviceId) -> Result<()> {
        driver.unmap(self.range)?;
        if let Err(error) = driver.release(self.handle) {
            driver.map(self.range.start, self.handle)?;
            self.open(driver, device)?;
            return Err(error);
        }
        // Addresses that cannot be given back are lost, and nothing else.
        let _ = driver.unreserve(self.range);
        Ok(())
    }
}
