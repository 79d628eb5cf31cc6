//! Which allocation an address lies in.

use glake_core::units::{AddressRange, DevicePtr};

use super::SharedPool;
use crate::pool::offset_in;
use crate::units::PAGE;

impl SharedPool {
    /// As [`StitchPool::allocation_at`](crate::StitchPool::allocation_at); `None` from a poisoned pool, too. A
    /// small object takes its shard's lock only, and an address that is not the pool's none.
    #[must_use]
    pub fn allocation_at(&self, ptr: DevicePtr) -> Option<AddressRange> {
        self.check_sound().ok()?;
        let at = offset_in(self.arena, ptr).ok()?;
        self.object_at(at).or_else(|| {
            // Units come and go with this lock held.
            self.central(|pool| Ok(self.object_at(at).or_else(|| pool.live_at(at)))).ok()?
        })
    }

    /// The small object that holds byte `at` of the arena.
    fn object_at(&self, at: u64) -> Option<AddressRange> {
        let (name, state) = self.unit_at(at).ok()??;
        let (start, bytes) = state.small.pool.holding(name.unit, at % PAGE)?;
        Some(AddressRange::new(self.arena.start + start, bytes))
    }
}
