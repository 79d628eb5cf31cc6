//! Units of the small pools: taken from the free blocks, kept as a spare, given back.

use crate::blocks::Kind;
use crate::order::{MAX_STREAMS, StreamIndex};
use crate::pool::StitchPool;
use crate::room::Found;
use crate::small::SmallPool;
use crate::units::{NONE, PAGE, index, page_of, page_start};

/// The small objects of one stream.
#[derive(Debug, Default)]
pub(crate) struct Small {
    pub(crate) pool: SmallPool,
    /// A unit kept though it is free, so that a lone small object does not come and go with it.
    pub(crate) spare: Option<u32>,
}

/// A unit of any stream, as the slot table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitName {
    pub(crate) stream: StreamIndex,
    pub(crate) unit: u32,
}

/// The low bits of a name; the others are the stream's. So a stream has at most 2 TiB in units.
const UNIT_BITS: u32 = 32 - MAX_STREAMS.trailing_zeros();

impl UnitName {
    /// The name as a number: not 0, as no unit is of all streams.
    pub(crate) fn pack(self) -> u32 {
        index(self.stream.index()) << UNIT_BITS | self.unit
    }

    pub(crate) fn unpack(name: u32) -> Self {
        let stream = StreamIndex::from_index((name >> UNIT_BITS) as usize);
        Self { stream, unit: name & ((1 << UNIT_BITS) - 1) }
    }

    /// The unit in a slot, if there is one.
    #[inline]
    pub(crate) fn of_slot(unit: u32) -> Option<Self> {
        (unit != NONE).then(|| Self::unpack(unit))
    }
}

/// Where a spare unit was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    stream: StreamIndex,
    handle: u32,
    /// First page of the handle's home.
    home: usize,
    page_in_handle: usize,
}

impl StitchPool {
    /// Makes the free page at `found` a unit of `stream`.
    pub(crate) fn add_unit(&mut self, found: Found, stream: StreamIndex) -> u32 {
        let (block, at) = found;
        self.blocks.carve(block, at, PAGE, Kind::Unit, &mut self.slots);
        let unit = self.small(stream).pool.add_unit(at);
        self.slots.slot_mut(page_of(at)).unit = UnitName { stream, unit }.pack();
        unit
    }

    /// The small objects of `stream`.
    #[inline]
    pub(crate) fn small(&mut self, stream: StreamIndex) -> &mut Small {
        let i = stream.index();
        if i >= self.smalls.len() {
            self.smalls.resize_with(i + 1, Small::default);
        }
        &mut self.smalls[i]
    }

    /// Gives the spare units back to the free blocks; says where they were.
    pub(crate) fn give_up_spares(&mut self) -> Vec<Spare> {
        let mut spares = Vec::new();
        for i in 0..self.smalls.len() {
            let stream = StreamIndex::from_index(i);
            let Some(unit) = self.smalls[i].spare.take() else { continue };
            let page = page_of(self.smalls[i].pool.start(unit));
            let handle = self.slots.slot(page).home;
            let home = self.slots.handle(handle).pages().start;
            spares.push(Spare { stream, handle, home, page_in_handle: page - home });
            self.give_up_unit(UnitName { stream, unit });
        }
        spares
    }

    /// Undoes [`give_up_spares`](Self::give_up_spares), where nothing was allocated since. If its
    /// handle has returned to its first home and cannot come back, the unit goes with it.
    pub(crate) fn take_back_spares(&mut self, spares: Vec<Spare>) {
        for Spare { stream, handle, home, page_in_handle } in spares.into_iter().rev() {
            if self.slots.handle(handle).pages().start != home {
                self.move_home(handle, home);
            }
            let page = self.slots.handle(handle).pages().start + page_in_handle;
            let block = self.blocks.holding(page, &self.slots);
            let unit = self.add_unit((block, page_start(page)), stream);
            self.small(stream).spare = Some(unit);
        }
    }

    pub(crate) fn give_up_unit(&mut self, name: UnitName) {
        let small = &mut self.smalls[name.stream.index()];
        let at = small.pool.start(name.unit);
        small.pool.remove_unit(name.unit);
        self.slots.slot_mut(page_of(at)).unit = NONE;
        if let Some(block) = self.blocks.starting_at(at, &self.slots) {
            self.release(block, self.order.tag(name.stream));
        }
    }
}
