//! Units of the small pool: taken from the free map, kept as a spare, given back.

use crate::blocks::Kind;
use crate::pool::StitchPool;
use crate::units::{NONE, PAGE, page_of, page_start};

/// Where a unit was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spare {
    handle: u32,
    /// First page of the handle's home.
    home: usize,
    page_in_handle: usize,
}

impl StitchPool {
    /// Makes the free page at `at`, part of `block`, a unit.
    pub(crate) fn add_unit(&mut self, block: u32, at: u64) -> u32 {
        self.blocks.carve(block, at, PAGE, Kind::Unit, &mut self.slots);
        let unit = self.small.add_unit(at);
        self.slots.slot_mut(page_of(at)).unit = unit;
        unit
    }

    /// Gives the spare unit back to the free map, if there is one; says where it was.
    pub(crate) fn give_up_spare(&mut self) -> Option<Spare> {
        let unit = self.spare_unit.take()?;
        let page = page_of(self.small.start(unit));
        let handle = self.slots.slot(page).home;
        let home = self.slots.handle(handle).pages().start;
        self.give_up_unit(unit);
        Some(Spare { handle, home, page_in_handle: page - home })
    }

    /// Undoes [`give_up_spare`](Self::give_up_spare), where nothing was allocated since. If its
    /// handle has returned to its first home and cannot come back, the unit goes with it.
    pub(crate) fn take_back_spare(&mut self, spare: Option<Spare>) {
        let Some(Spare { handle, home, page_in_handle }) = spare else { return };
        let is_there = |pool: &Self| pool.slots.handle(handle).pages().start == home;
        if !is_there(self) && self.stale.at(home).is_some_and(|m| m.handle == handle) {
            self.move_home(handle, home);
        }
        let page = self.slots.handle(handle).pages().start + page_in_handle;
        let block = self.blocks.holding(page, &self.slots);
        self.spare_unit = Some(self.add_unit(block, page_start(page)));
    }

    pub(crate) fn give_up_unit(&mut self, unit: u32) {
        let at = self.small.start(unit);
        self.small.remove_unit(unit);
        self.slots.slot_mut(page_of(at)).unit = NONE;
        if let Some(block) = self.blocks.starting_at(at, &self.slots) {
            self.release(block);
        }
    }
}
