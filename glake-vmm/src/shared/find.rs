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
        self.object_at(at).unwrap_or_else(|| {
            let looked = self.central(|pool| {
                // Units come and go with this lock held.
                Ok(self.object_at(at).unwrap_or_else(|| pool.live_at(at)))
            });
            looked.ok()?
        })
    }

    /// The small object that holds byte `at` of the arena, if any; `None` if a shard's unit is not there.
    fn object_at(&self, at: u64) -> Option<Option<AddressRange>> {
        let (name, state) = self.unit_at(at).ok()??;
        let found = state.small.pool.holding(name.unit, at % PAGE);
        Some(found.map(|(start, bytes)| AddressRange::new(self.arena.start + start, bytes)))
    }
}
