//! Handles of the simulated driver shared between processes, as memory files.

use std::fs::File;
use std::os::fd::OwnedFd;

use super::SimDriver;
use super::fault::Target;
use crate::driver::{DriverError, Result, Sharing};
use crate::units::{DeviceId, HandleId, PAGE_BYTES};

impl Sharing for SimDriver {
    fn export(&self, handle: HandleId) -> Result<OwnedFd> {
        self.lock().call(Target::Sharing, |state| {
            let device = state.memory.of(handle)?.1.device;
            state.on(device)?;
            Ok((state.memory.share(handle)?.into(), state.config.costs.export_ns))
        })
    }

    fn import(&self, device: DeviceId, fd: OwnedFd, bytes: u64) -> Result<HandleId> {
        self.lock().call(Target::Sharing, |state| {
            let device = state.on_id(device)?;
            if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
                return Err(DriverError::InvalidValue("the size of a handle is whole pages"));
            }
            let handle = state.memory.attach(device, File::from(fd), bytes)?;
            Ok((handle, state.config.costs.import_ns))
        })
    }
}
