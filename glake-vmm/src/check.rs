//! The invariants of a pool, recomputed from its tables; for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use glake_core::units::AddressRange;
use glake_testkit::spy::Spy;

use crate::blocks::{Block, Kind};
use crate::commit::N_STITCHED;
use crate::order::{StreamIndex, Taker, Waiting};
use crate::pool::StitchPool;
use crate::spare::UnitName;
use crate::units::{GRANULE_BYTES, NONE, PAGE, page_of, page_start};

mod snapshot;

impl StitchPool {
    /// A taker on the first stream that the pool has seen.
    pub(crate) fn first_taker() -> Taker {
        Taker { stream: StreamIndex::from_index(1), waiting: Waiting::Allowed }
    }

    /// First bytes of the spare units.
    pub(crate) fn spare_starts(&self) -> Vec<u64> {
        self.smalls.iter().filter_map(|small| small.spare.map(|unit| small.pool.start(unit))).collect()
    }

    /// Panics where the tables contradict each other or the driver's count of physical bytes. The
    /// pool is the only one on its device, and not poisoned.
    pub(crate) fn check_invariants(&self) {
        self.check_handles();
        self.check_stale();
        self.check_holes();
        let blocks = self.blocks.ascending();
        self.check_cover(&blocks);
        self.check_first_blocks(&blocks);
        self.check_free_index(&blocks);
        self.check_units(&blocks);
        self.check_figures(&blocks);
    }

    /// Panics where the mappings that `spy` saw are not those of the tables.
    pub(crate) fn check_mappings(&self, spy: &Spy) {
        let serial_at = |pages: Range<usize>| {
            let extents = spy.resolve(self.range(&pages)).expect("mapped throughout");
            assert_eq!(extents.len(), 1, "{pages:?} is one mapping");
            assert_eq!((extents[0].offset_bytes, extents[0].bytes), (0, pages.len() as u64 * PAGE));
            extents[0].serial
        };
        let serials: BTreeMap<u32, u64> =
            self.slots.handles().map(|(i, handle)| (i, serial_at(handle.pages()))).collect();
        assert_eq!(serials.values().collect::<BTreeSet<_>>().len(), serials.len(), "one home each");
        for mapping in self.stale.iter() {
            let n_pages = self.slots.handle(mapping.handle).pages().len();
            let serial = serial_at(mapping.page..mapping.page + n_pages);
            assert_eq!(Some(&serial), serials.get(&mapping.handle), "{mapping:?}");
        }
        for page in 0..=self.slots.n_known_pages() {
            let slot = self.slots.slot(page);
            let at = AddressRange::new(self.arena.start + page_start(page), PAGE);
            if slot.home == NONE && slot.stale == NONE {
                assert_eq!(spy.resolve(at), None, "page {page} is empty");
            }
        }
    }

    /// Invariant 1: one home per handle, and the slot table agrees.
    fn check_handles(&self) {
        let mut n_pages = 0;
        let mut ids = BTreeSet::new();
        for (i, handle) in self.slots.handles() {
            assert!(ids.insert(handle.id), "{handle:?} is there twice");
            assert!(handle.home != NONE && handle.n_pages > 0, "{handle:?}");
            for page in handle.pages() {
                assert_eq!(self.slots.slot(page).home, i, "page {page} of {handle:?}");
            }
            n_pages += handle.pages().len();
        }
        let homes = (0..self.slots.n_known_pages()).filter(|&page| self.slots.slot(page).home != NONE);
        assert_eq!(homes.count(), n_pages, "a page has a home that no handle knows");
        assert_eq!(self.slots.n_home_pages(), n_pages as u64);
        let is_displaced = self.slots.handles().any(|(_, handle)| handle.home != handle.origin);
        assert_eq!(self.slots.has_displaced(), is_displaced);
        assert!(self.stitched.len() <= N_STITCHED, "{} runs are remembered", self.stitched.len());
    }

    /// The stale mappings are disjoint, lie outside homes, and are counted.
    fn check_stale(&self) {
        let mut n_pages = 0;
        let mut behind = 0;
        for mapping in self.stale.iter() {
            assert!(mapping.page >= behind, "{mapping:?} overlaps the one before");
            behind = mapping.page + self.slots.handle(mapping.handle).pages().len();
            for page in mapping.page..behind {
                let slot = self.slots.slot(page);
                assert_eq!((slot.stale, slot.home), (mapping.handle, NONE), "page {page} of {mapping:?}");
            }
            n_pages += behind - mapping.page;
        }
        let stale = (0..self.slots.n_known_pages()).filter(|&page| self.slots.slot(page).stale != NONE);
        assert_eq!(stale.count(), n_pages, "a page is stale that no mapping knows");
        assert_eq!(self.slots.n_stale_pages(), n_pages as u64);
        let known: BTreeSet<u32> = self.slots.handles().map(|(i, _)| i).collect();
        assert!(self.stale.iter().all(|m| known.contains(&m.handle)), "stale mappings of no handle");
        let oldest = self.stale.oldest();
        assert_eq!(oldest.is_some(), n_pages > 0, "{oldest:?}");
    }

    /// Invariant 6: holes are what is below the end without a home.
    fn check_holes(&self) {
        let n_known = self.slots.n_known_pages();
        let end = (0..n_known).rev().find(|&page| self.slots.slot(page).home != NONE).map_or(0, |p| p + 1);
        assert_eq!(self.slots.end(), end);
        let empty = (0..end).filter(|&page| self.slots.slot(page).home == NONE);
        let holes: Vec<_> = self.slots.holes().collect();
        assert!(holes.iter().all(|hole| !hole.is_empty()), "{holes:?}");
        assert!(holes.windows(2).all(|pair| pair[0].end < pair[1].start), "not joined: {holes:?}");
        assert!(holes.iter().cloned().flatten().eq(empty), "{holes:?}");
        assert_eq!(self.slots.n_hole_pages(), holes.iter().map(|hole| hole.len() as u64).sum::<u64>());
    }

    /// Invariants 2, 4 and 5: blocks cover the homes exactly, and free ones are joined.
    fn check_cover(&self, blocks: &[(u32, Block)]) {
        let mut at = 0;
        let mut was_free = false;
        for (i, b) in blocks {
            assert!(b.bytes > 0 && b.bytes.is_multiple_of(GRANULE_BYTES), "{b:?}");
            assert_ne!(b.kind, Kind::Vacant, "{b:?}");
            if b.start != at {
                assert!(b.start > at && b.start.is_multiple_of(PAGE) && at.is_multiple_of(PAGE), "{b:?}");
                let gap = page_of(at)..page_of(b.start);
                let mut homes = gap.map(|page| self.slots.slot(page).home);
                assert!(homes.all(|home| home == NONE), "no block from {at} to {b:?}");
                was_free = false;
            }
            assert!(!(was_free && b.is_free()), "{b:?} is not joined with the one before");
            was_free = b.is_free();
            for page in page_of(b.start)..page_of(b.end().next_multiple_of(PAGE)) {
                assert_ne!(self.slots.slot(page).home, NONE, "page {page} of {b:?}");
            }
            at = b.end();
            assert_eq!(self.blocks.starting_at(b.start, &self.slots), Some(*i), "{b:?}");
        }
        assert_eq!(at, page_start(self.slots.end()), "the last block ends where the homes end");
    }

    /// The slot table leads to the lowest block that starts in a page.
    fn check_first_blocks(&self, blocks: &[(u32, Block)]) {
        let mut first = BTreeMap::new();
        for (i, b) in blocks {
            first.entry(page_of(b.start)).or_insert(*i);
        }
        for page in 0..self.slots.n_known_pages() {
            let expected = first.get(&page).copied().unwrap_or(NONE);
            assert_eq!(self.slots.slot(page).first_block, expected, "page {page}");
        }
    }

    /// Bytes of the handles that lie wholly in `b`, one by one.
    fn clean_bytes_of(&self, b: &Block) -> u64 {
        let mut clean_bytes = 0;
        let mut page = page_of(b.start.next_multiple_of(PAGE));
        while page < page_of(b.end()) {
            let Some(handle) = self.slots.home(page) else { break };
            let pages = handle.pages();
            if page_start(pages.start) >= b.start && page_start(pages.end) <= b.end() {
                clean_bytes += pages.len() as u64 * PAGE;
            }
            page = pages.end;
        }
        clean_bytes
    }

    /// Invariant 5: the index is what the free blocks make it.
    fn check_free_index(&self, blocks: &[(u32, Block)]) {
        let free = || blocks.iter().filter(|(_, b)| b.is_free());
        for (_, b) in free() {
            assert_eq!(b.clean_bytes(), self.clean_bytes_of(b), "{b:?}");
        }
        let all = |wanted: fn(&Block) -> bool| -> BTreeSet<u32> {
            free().filter(|(_, b)| wanted(b)).map(|(i, _)| *i).collect()
        };
        let by_bytes: Vec<u32> = self.blocks.below(u64::MAX).collect();
        assert_eq!(by_bytes.iter().copied().collect::<BTreeSet<_>>(), all(|_| true));
        assert_eq!(by_bytes.len(), free().count(), "a free block is listed twice");
        let by_clean: Vec<u32> = self.blocks.by_clean().collect();
        assert_eq!(by_clean.iter().copied().collect::<BTreeSet<_>>(), all(|b| b.clean_bytes() > 0));
        for (_, b) in free() {
            let found = self.blocks.any(b.bytes).map(|found| self.blocks.get(found).bytes);
            assert!(found >= Some(b.bytes), "{found:?} for {b:?}");
        }
        assert_eq!(self.blocks.clean_bytes(), free().map(|(_, b)| b.clean_bytes()).sum::<u64>());
        assert_eq!(self.blocks.largest_bytes(), free().map(|(_, b)| b.bytes).max().unwrap_or(0));
    }

    /// Units are aligned pages that the slot table and the small pool agree about.
    fn check_units(&self, blocks: &[(u32, Block)]) {
        let mut n_units = 0;
        for (i, small) in self.smalls.iter().enumerate() {
            let stream = StreamIndex::from_index(i);
            let units: BTreeMap<u64, _> =
                small.pool.check().into_iter().map(|unit| (unit.start, unit)).collect();
            for unit in units.values() {
                let page = page_of(unit.start);
                let name = UnitName { stream, unit: unit.index };
                assert_eq!(UnitName::of_slot(self.slots.slot(page).unit), Some(name), "{unit:?}");
                let is_block = |b: &Block| b.start == unit.start && b.bytes == PAGE && b.kind == Kind::Unit;
                assert!(blocks.iter().any(|(_, b)| is_block(b)), "{unit:?}");
                let is_spare = small.spare == Some(unit.index);
                assert_eq!(is_spare, unit.live.is_empty(), "only the spare unit is wholly free: {unit:?}");
            }
            assert!(small.spare.is_none_or(|spare| units.values().any(|unit| unit.index == spare)));
            n_units += units.len();
        }
        assert_eq!(n_units, blocks.iter().filter(|(_, b)| b.kind == Kind::Unit).count());
        let in_slots = (0..self.slots.n_known_pages()).filter(|&page| self.slots.slot(page).unit != NONE);
        assert_eq!(in_slots.count(), n_units, "a page has a unit without a block");
    }

    /// Invariant 2: free + small free + live = physical, and the counters say so.
    fn check_figures(&self, blocks: &[(u32, Block)]) {
        let (mut live, mut held_bytes, mut n_held) = ((0, 0, 0), 0, 0);
        for (_, b) in blocks {
            match b.kind {
                Kind::Live { requested_bytes, .. } => {
                    assert!(requested_bytes > 0 && requested_bytes <= b.bytes, "{b:?}");
                    live = (live.0 + 1, live.1 + requested_bytes, live.2 + b.bytes);
                }
                Kind::Held => {
                    n_held += 1;
                    held_bytes += b.bytes;
                }
                _ => {}
            }
        }
        let units: Vec<_> = self.smalls.iter().flat_map(|small| small.pool.check()).collect();
        let mut small_free_bytes = units.len() as u64 * PAGE;
        for object in units.iter().flat_map(|unit| &unit.live) {
            small_free_bytes -= object.bytes;
            if object.is_held {
                n_held += 1;
                held_bytes += object.bytes;
            } else {
                live = (live.0 + 1, live.1 + object.requested_bytes, live.2 + object.bytes);
            }
        }
        assert_eq!(n_held, self.held.len());
        let c = &self.counters;
        assert_eq!((c.n_allocations - c.n_frees, c.requested_bytes, c.allocated_bytes), live);
        let physical_bytes = self.physical_bytes();
        let free_bytes: u64 = blocks.iter().filter(|(_, b)| b.is_free()).map(|(_, b)| b.bytes).sum();
        assert_eq!(free_bytes + small_free_bytes + held_bytes + live.2, physical_bytes);
        let ledger = self.driver.ledger(self.config.device).unwrap();
        assert_eq!(ledger.physical_bytes, physical_bytes, "the driver counts other bytes");
        assert!(c.peak_reserved_bytes >= physical_bytes && c.peak_allocated_bytes >= c.allocated_bytes);
        assert!(c.peak_requested_bytes >= c.requested_bytes);
    }
}
