//! Homes that move without the driver.
//!
//! A handle that moved stays mapped where it was. So when the run that it was stitched into is
//! free again, it can *return* to its first home; and when a run that was stitched before is
//! wanted again, its handles can be *revived* there. Neither needs a driver call. A program whose
//! steps repeat finds the same free map at the beginning of each step, makes the same requests
//! and revives the same runs: from its third step on it needs no driver.
//!
//! Where steps differ, returning only takes runs apart that would be used again as they are. So
//! the pool does it as long as it settles: once half of its memory had to be moved by the driver
//! all the same, it rests, twice as long each time.

use std::ops::Range;

use crate::order::{Readiness, Tag, Taker};
use crate::plan::{Place, Planner};
use crate::pool::StitchPool;
use crate::room::Stitching;
use crate::units::{PAGE, page_of, page_start};

/// Allocations and frees of the first rest.
const FIRST_REST_OPS: u64 = 1 << 14;
/// The longest rest.
const LONGEST_REST_OPS: u64 = 1 << 22;

/// Whether handles return to their first homes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Homing {
    is_on: bool,
    /// Bytes moved by the driver since it is on.
    moved_bytes: u64,
    /// When the rest ends, in operations.
    rests_until: u64,
    next_rest_ops: u64,
}

impl Homing {
    pub(crate) fn new() -> Self {
        Self { is_on: true, moved_bytes: 0, rests_until: 0, next_rest_ops: FIRST_REST_OPS }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Ends a rest that is over; says whether it did.
    fn wake(&mut self, n_ops: u64) -> bool {
        let wakes = !self.is_on && n_ops >= self.rests_until;
        if wakes {
            self.is_on = true;
            self.moved_bytes = 0;
        }
        wakes
    }

    /// Notes that the driver had to move `bytes` of `physical_bytes`.
    pub(crate) fn note_moved(&mut self, bytes: u64, physical_bytes: u64, n_ops: u64) {
        self.moved_bytes += bytes;
        if self.is_on && self.moved_bytes > physical_bytes / 2 {
            self.is_on = false;
            self.rests_until = n_ops + self.next_rest_ops;
            self.next_rest_ops = (2 * self.next_rest_ops).min(LONGEST_REST_OPS);
        }
    }
}

impl StitchPool {
    /// Frees a taken block, last used for `tag`; displaced handles that are free as a whole now
    /// return home.
    #[inline]
    pub(crate) fn release(&mut self, block: u32, tag: Tag) {
        let freed = *self.blocks.get(block);
        let joined = self.blocks.release(block, tag, &mut self.slots);
        if self.homing.is_on() && self.slots.has_displaced() {
            let clean = self.blocks.get(joined).clean_pages();
            let first = page_of(freed.start).max(clean.start);
            self.return_home(first..page_of(freed.end().next_multiple_of(PAGE)).min(clean.end));
        }
    }

    /// Moves the free handles that have a page in `pages` to their first homes, where they are
    /// still mapped there.
    fn return_home(&mut self, pages: Range<usize>) {
        let mut page = pages.start;
        while page < pages.end {
            let handle = self.slots.slot(page).home;
            let h = *self.slots.handle(handle);
            page = h.pages().end;
            let is_mapped = || self.stale.at(h.origin as usize).is_some_and(|m| m.handle == handle);
            if h.home != h.origin && is_mapped() && !self.is_graphs(&h.pages()) {
                self.move_home(handle, h.origin as usize);
            }
        }
    }

    /// Whether a graph may use a byte of the home of a free handle.
    fn is_graphs(&self, home: &Range<usize>) -> bool {
        let block = self.blocks.holding(home.start, &self.slots);
        let mut tags = self.blocks.tags_in(block, page_start(home.start), home.len() as u64 * PAGE);
        tags.any(|tag| self.order.is_graphs(tag))
    }

    /// Serves a request that no free block fits by reviving a run that was stitched before.
    pub(crate) fn revive(&mut self, bytes: u64, align_bytes: u64, taker: Taker) -> bool {
        if self.homing.wake(self.spent.n_ops) {
            self.slots.naturalise();
        }
        let found = {
            let planner = Planner {
                blocks: &self.blocks,
                slots: &self.slots,
                n_arena_pages: page_of(self.arena.bytes),
                stitching: Stitching::Always,
                order: &self.order,
                taker,
            };
            let mut places = planner.revivable(bytes, align_bytes, &self.stitched);
            places.find_map(|place| Some((place.page, self.revivable(&place, taker)?)))
        };
        let Some((page, handles)) = found else { return false };
        let mut page = page;
        for handle in handles {
            self.move_home(handle, page);
            page += self.slots.handle(handle).pages().len();
        }
        true
    }

    /// The handles that fill a place, if all of it is mapped and their bytes are free.
    fn revivable(&self, place: &Place, taker: Taker) -> Option<Vec<u32>> {
        let mut handles = Vec::new();
        let mut around = 0..0;
        let mut page = place.page;
        while page < place.page + place.n_need {
            let mapping = self.stale.at(page)?;
            let home = self.slots.handle(mapping.handle).pages();
            if home.start < around.start || home.end > around.end {
                let block = self.free_block_of(&home).filter(|&block| block != place.below)?;
                let mut tags = self.blocks.pieces(block).map(|(_, tag)| self.order.readiness(taker, tag));
                if tags.any(|readiness| readiness == Readiness::Never) {
                    return None;
                }
                let b = self.blocks.get(block);
                around = page_of(b.start.next_multiple_of(PAGE))..page_of(b.end());
            }
            handles.push(mapping.handle);
            page += home.len();
        }
        let mut distinct = handles.clone();
        distinct.sort_unstable();
        distinct.dedup();
        (distinct.len() == handles.len() && page <= place.page + place.room).then_some(handles)
    }

    /// The free block that holds all of `pages`, the home of a handle.
    fn free_block_of(&self, pages: &Range<usize>) -> Option<u32> {
        let block = self.blocks.holding(pages.start, &self.slots);
        let b = self.blocks.get(block);
        (b.is_free() && b.end() >= page_start(pages.end)).then_some(block)
    }

    /// Makes `page`, where the free `handle` is mapped already, its home.
    pub(crate) fn move_home(&mut self, handle: u32, page: usize) {
        if self.stale.at(page).is_none_or(|mapping| mapping.handle != handle) {
            return;
        }
        let pieces = self.leave_home(handle);
        self.forget_stale(page);
        self.slots.settle(handle, page);
        let pages = self.slots.handle(handle).pages();
        self.blocks.add_pages(&pages, pieces, &mut self.slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homing_rests_longer_each_time_that_it_does_not_settle() {
        let mut homing = Homing::new();
        homing.note_moved(50, 100, 10);
        assert!(homing.is_on(), "half may move");
        homing.note_moved(1, 100, 10);
        assert!(!homing.is_on());
        assert!(!homing.wake(10 + FIRST_REST_OPS - 1));
        assert!(homing.wake(10 + FIRST_REST_OPS));
        homing.note_moved(51, 100, 20_000);
        assert!(!homing.wake(20_000 + 2 * FIRST_REST_OPS - 1));
        assert!(homing.wake(20_000 + 2 * FIRST_REST_OPS));
    }
}
