//! Which devices may use the pool's memory beside its own.

use std::ops::Range;

use glake_core::alloc::AllocError;
use glake_core::driver::Access;
use glake_core::units::DeviceId;

use crate::order::{StreamIndex, Taker, Waiting};
use crate::pool::StitchPool;
use crate::room::Stitching;
use crate::units::PAGE;

impl StitchPool {
    /// Lets another device read and write all memory of the pool from now on: what is mapped, and what
    /// will be. For the pool's own device, and one that has access, there is nothing to do.
    ///
    /// A pool without memory creates a page, by which it sees whether the device can reach it.
    ///
    /// # Errors
    /// [`DriverError::NoPeerAccess`](glake_core::driver::DriverError::NoPeerAccess) if the device cannot
    /// reach the memory, or what else the driver says; [`AllocError::OutOfMemory`] of a pool without memory.
    /// The device has no access then, neither now nor later; where a failing driver cannot take back what it
    /// gave, some of what is mapped now stays within its reach.
    pub fn grant_access(&mut self, device: DeviceId) -> Result<(), AllocError> {
        self.check_sound()?;
        if self.devices.contains(&device) {
            return Ok(());
        }
        let before = self.physical_bytes();
        if before == 0 {
            let nobody = Taker { stream: StreamIndex::ALL, waiting: Waiting::Refused };
            self.try_room(PAGE, PAGE, Stitching::Never, nobody)?;
            self.note_peak_reserved();
        }
        let runs = self.mapped_runs();
        let mut results = runs.iter().map(|run| self.set_access(run, device, Access::ReadWrite));
        if let Some((n, error)) = results.by_ref().enumerate().find_map(|(n, set)| Some((n, set.err()?))) {
            // Nobody relies on it yet.
            let _ = runs[..n].iter().try_for_each(|run| self.set_access(run, device, Access::None));
            if before == 0 {
                let _ = self.give_back_idle(0);
            }
            return Err(error);
        }
        drop(results);
        self.devices.push(device);
        Ok(())
    }

    fn set_access(&self, pages: &Range<usize>, device: DeviceId, access: Access) -> Result<(), AllocError> {
        Ok(self.driver.set_access(self.range(pages), &[device], access)?)
    }

    /// The runs of pages where something is mapped: homes, and stale mappings, which may be homes again.
    fn mapped_runs(&self) -> Vec<Range<usize>> {
        let homes = self.slots.handles().map(|(_, handle)| handle.pages());
        let stale = self.stale.iter().map(|m| m.page..m.page + self.slots.handle(m.handle).pages().len());
        let mut mapped: Vec<Range<usize>> = homes.chain(stale).collect();
        mapped.sort_unstable_by_key(|pages| pages.start);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for pages in mapped {
            match runs.last_mut() {
                Some(run) if run.end == pages.start => run.end = pages.end,
                _ => runs.push(pages),
            }
        }
        runs
    }
}
