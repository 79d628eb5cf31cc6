//! Physical handles as file descriptors.

use std::os::fd::{AsFd, OwnedFd};

use glake_core::driver::{DriverError, Result, Sharing};
use glake_core::units::{AddressRange, DeviceId, HandleId};

use super::device::Device;
use super::{CudaDriver, Shared, lock};
use crate::call::vmm;

const FOREIGN: DriverError =
    DriverError::InvalidValue("the file descriptor is not an exported handle of that size");

impl Sharing for CudaDriver {
    fn export(&self, handle: HandleId) -> Result<OwnedFd> {
        let space = lock(&self.shared.space);
        let physical = space.handle(handle)?;
        let _entered = self.device(physical.device)?.enter_beside_captures()?;
        // SAFETY: the map, still locked, says that the handle is ours and not released.
        unsafe { vmm::export(physical.raw) }
    }

    fn import(&self, device: DeviceId, fd: OwnedFd, bytes: u64) -> Result<HandleId> {
        let device = self.device(device)?;
        lock(&self.shared.space).check_bytes(bytes)?;
        self.shared.poll();
        let _entered = device.enter_beside_captures()?;
        let raw = vmm::import(fd.as_fd()).map_err(|error| match error {
            // CUDA says only that it does not like the descriptor, in different words.
            DriverError::Native { .. } => FOREIGN,
            error => error,
        })?;
        if let Err(error) = self.shared.check_import(device, raw, bytes) {
            // SAFETY: the handle was made above and is nobody else's.
            unsafe { vmm::release(raw) }?;
            return Err(error);
        }
        // The process that created the memory accounts for it.
        Ok(lock(&self.shared.space).imported(raw, device.id, bytes))
    }
}

impl Shared {
    /// Whether an imported handle lies on `device` and is `bytes` long. CUDA does not tell the
    /// length, but maps neither more than there is nor less.
    fn check_import(&self, device: &Device, raw: u64, bytes: u64) -> Result<()> {
        // SAFETY: the caller has just imported the handle.
        let properties = unsafe { vmm::properties(raw) }?;
        if properties.device().is_some_and(|on| on != device.cu) {
            return Err(DriverError::InvalidValue("the handle is on another device"));
        }
        let granule = self.granularity_bytes;
        let room = bytes.checked_add(granule).ok_or(FOREIGN)?;
        let trial = AddressRange::new(vmm::reserve(room, granule)?, room);
        let fits = fits(AddressRange::new(trial.start, bytes), raw)?;
        let longer = fits && self::fits(trial, raw)?;
        // SAFETY: the reservation is ours, and what was mapped in it is unmapped again.
        unsafe { vmm::unreserve(trial) }?;
        if fits && !longer { Ok(()) } else { Err(FOREIGN) }
    }
}

/// Whether a handle can be mapped at a range of just that length, free and ours. An error if it
/// cannot be unmapped again: then the range stays as it is until the process ends.
fn fits(range: AddressRange, raw: u64) -> Result<bool> {
    // SAFETY: the callers reserve the range and own the handle; a wrong length is refused.
    if unsafe { vmm::map(range, raw) }.is_err() {
        return Ok(false);
    }
    // SAFETY: mapped just now, without access, so that nothing can use it.
    unsafe { vmm::unmap(range) }.map(|()| true)
}
