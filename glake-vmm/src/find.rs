//! Which allocation an address lies in.

use glake_core::units::{AddressRange, DevicePtr};

use crate::blocks::Kind;
use crate::pool::{StitchPool, offset_in};
use crate::spare::UnitName;
use crate::units::{NONE, PAGE, page_of};

impl StitchPool {
    /// The live allocation that holds the byte at `ptr`, with the bytes that were set aside for it.
    /// `None` for free memory, for what was freed and is still in use, and for addresses that are not
    /// the pool's.
    ///
    /// Takes as long with few allocations as with many; inside of a large one, about 2 ns for each page
    /// (2 MiB) from its start on.
    #[must_use]
    pub fn allocation_at(&self, ptr: DevicePtr) -> Option<AddressRange> {
        self.live_at(offset_in(self.arena, ptr).ok()?)
    }

    /// The live allocation that holds byte `at` of the arena; none in the units of shards.
    pub(crate) fn live_at(&self, at: u64) -> Option<AddressRange> {
        let slot = self.slots.slot(page_of(at));
        if slot.home == NONE {
            return None;
        }
        let (start, bytes) = if let Some(UnitName { stream, unit }) = UnitName::of_slot(slot.unit) {
            self.smalls[stream.index()].pool.holding(unit, at % PAGE)?
        } else {
            let block = self.blocks.get(self.blocks.holding_byte(at, &self.slots));
            matches!(block.kind, Kind::Live { .. }).then_some((block.start, block.bytes))?
        };
        Some(AddressRange::new(self.arena.start + start, bytes))
    }
}
