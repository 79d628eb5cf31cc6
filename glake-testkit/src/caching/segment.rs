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
        driver.set_access(range, &[device], Access::ReadWrite).inspect_err(|_| {
            let _ = segment.destroy(driver);
        })?;
        Ok(segment)
    }

    pub(super) fn destroy(self, driver: &dyn Driver) -> Result<()> {
        driver.unmap(self.range)?;
        driver.release(self.handle)?;
        driver.unreserve(self.range)
    }
}
