//! What a device is measured with: memory on it, pinned memory of the host, and lanes that go when a step ends.

use std::sync::Arc;

use glake_core::driver::{Driver, DriverError, Held, Result};
use glake_core::units::{DeviceId, DevicePtr, HostId};
use smallvec::smallvec;

use super::budget::{Miss, Scale};
use crate::chunk::{Chunk, Segment};
use crate::lane::{Direction, HostSide, Lane, Path};
use crate::ring::Ring;

/// Chunks on their way over a relay at a time.
const N_SLOTS: u64 = 2;

/// Memory on one device, and as much on the host. What is in it does not matter.
#[derive(Debug)]
pub(super) struct Rig<'a> {
    pub(super) driver: &'a Arc<dyn Driver>,
    pub(super) device: DeviceId,
    pub(super) scale: Scale,
    pub(super) host: HostId,
    memory: Ring,
}

impl<'a> Rig<'a> {
    /// # Errors
    /// Those of the driver; nothing is held then.
    pub(super) fn new(driver: &'a Arc<dyn Driver>, device: DeviceId, scale: Scale) -> Result<Self> {
        let memory = Ring::new(driver, device, device, 1, scale.memory_bytes)?;
        let pinned = driver.pin(scale.memory_bytes, device)?;
        Ok(Self { driver, device, scale, host: driver.hold(Held::Owned(pinned)), memory })
    }

    /// Where the memory on the device begins.
    pub(super) fn memory(&self) -> DevicePtr {
        self.memory.start()
    }

    /// The `nth` chunk of `bytes`: they follow one another through the memory, again and again.
    pub(super) fn chunk(&self, nth: u64, bytes: u64) -> Chunk {
        let n_places = (self.scale.memory_bytes / bytes.max(1)).max(1);
        let host_offset = nth % n_places * bytes;
        let piece = Segment { host_offset, device: self.memory() + host_offset, bytes };
        Chunk { pieces: smallvec![piece], bytes }
    }

    /// Runs `act` with a lane on each path. Behind it nothing runs any more.
    pub(super) fn with_lanes<T>(
        &mut self,
        paths: &[Path],
        act: impl FnOnce(&Self, &mut [Lane]) -> Result<T, Miss>,
    ) -> Result<T, Miss> {
        let slot_bytes = self.scale.most_chunk_bytes;
        let open = |path: &Path| Lane::new(self.driver, self.device, (*path).into(), N_SLOTS, slot_bytes);
        let mut lanes = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
        let outcome = act(self, &mut lanes);
        for lane in &mut lanes {
            if outcome.is_err() || !lane.is_idle() {
                if !lane.quiesce() {
                    self.memory.keep();
                }
                lane.take_all();
            }
        }
        outcome
    }

    /// Waits until nothing runs on the device, as behind work that no lane has.
    pub(super) fn settle(&mut self) {
        let ended = self.driver.synchronize_all(self.device);
        if !matches!(ended, Ok(()) | Err(DriverError::DeviceLost)) {
            self.memory.keep();
        }
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        self.driver.let_go(self.host);
    }
}

/// A lane of a rig, in one direction.
pub(super) fn push(
    rig: &Rig<'_>,
    lane: &mut Lane,
    direction: Direction,
    chunk: Chunk,
) -> Result<(), DriverError> {
    let host = HostSide::Whole(rig.host);
    lane.push(direction, host, chunk).map_err(|failed| failed.error)
}

/// Waits for the oldest chunk of a lane, and takes it off.
pub(super) fn wait(driver: &dyn Driver, lane: &mut Lane) -> Result<(), DriverError> {
    while let Some(oldest) = lane.oldest() {
        driver.synchronize(oldest)?;
        if lane.settle()?.is_some() {
            break;
        }
    }
    Ok(())
}
