//! The slot table: what each page of the arena's addresses holds, and the handles mapped there.

use std::collections::BTreeMap;
use std::ops::Range;

use glake_core::units::HandleId;

use crate::units::{NONE, index};

/// One page of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The handle at home here, or `NONE`: the page is part of a hole.
    pub(crate) home: u32,
    /// The handle that is mapped here without being at home, or `NONE`.
    pub(crate) stale: u32,
    /// The lowest block that starts in this page, or `NONE`.
    pub(crate) first_block: u32,
    /// The small-object unit in this page, or `NONE`.
    pub(crate) unit: u32,
}

const EMPTY: Slot = Slot { home: NONE, stale: NONE, first_block: NONE, unit: NONE };

/// A physical handle that the pool owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    /// The driver's name for it.
    pub(crate) id: HandleId,
    /// First page of its home.
    pub(crate) home: u32,
    /// First page of its first home, where it returns to when it is free.
    pub(crate) origin: u32,
    /// Size in pages.
    pub(crate) n_pages: u32,
}

impl Handle {
    /// The pages of its home.
    #[inline]
    pub(crate) fn pages(&self) -> Range<usize> {
        self.home as usize..(self.home + self.n_pages) as usize
    }
}

/// Slots, handles and holes of an arena.
///
/// A *hole* is a run of pages without a home below [`end`](Self::end). Behind the end there are
/// no homes, but stale mappings may remain.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    handles: Vec<Handle>,
    vacant_handles: Vec<u32>,
    holes: BTreeMap<u32, u32>,
    end: u32,
    n_home_pages: u64,
    n_stale_pages: u64,
    /// Handles whose home is not their first.
    n_displaced: u64,
}

impl Slots {
    /// The page behind the last home.
    pub(crate) fn end(&self) -> usize {
        self.end as usize
    }

    /// The page behind everything that is or was mapped.
    pub(crate) fn n_known_pages(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn n_home_pages(&self) -> u64 {
        self.n_home_pages
    }

    pub(crate) fn n_stale_pages(&self) -> u64 {
        self.n_stale_pages
    }

    /// Makes the home that each handle has now its first.
    pub(crate) fn naturalise(&mut self) {
        for h in &mut self.handles {
            h.origin = h.home;
        }
        self.n_displaced = 0;
    }

    /// Whether any handle lives elsewhere than at first.
    #[inline]
    pub(crate) fn has_displaced(&self) -> bool {
        self.n_displaced > 0
    }

    pub(crate) fn n_hole_pages(&self) -> u64 {
        u64::from(self.end) - self.n_home_pages
    }

    #[inline]
    pub(crate) fn slot(&self, page: usize) -> Slot {
        self.slots.get(page).copied().unwrap_or(EMPTY)
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, page: usize) -> &mut Slot {
        if page >= self.slots.len() {
            self.slots.resize(page + 1, EMPTY);
        }
        &mut self.slots[page]
    }

    #[inline]
    pub(crate) fn handle(&self, handle: u32) -> &Handle {
        &self.handles[handle as usize]
    }

    /// All live handles, by index.
    pub(crate) fn handles(&self) -> impl Iterator<Item = (u32, &Handle)> {
        self.handles.iter().enumerate().filter(|(_, h)| h.n_pages > 0).map(|(i, h)| (index(i), h))
    }

    /// The handle at home in `page`, if any.
    #[inline]
    pub(crate) fn home(&self, page: usize) -> Option<&Handle> {
        let home = self.slot(page).home;
        (home != NONE).then(|| self.handle(home))
    }

    /// The hole runs below the end, by first page.
    pub(crate) fn holes(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.holes.iter().map(|(&first, &n)| first as usize..(first + n) as usize)
    }

    /// The hole that starts at `page`; endless (`usize::MAX`) at or behind the end.
    pub(crate) fn hole_from(&self, page: usize) -> Option<Range<usize>> {
        if page >= self.end() {
            return Some(page..usize::MAX);
        }
        let n = *self.holes.get(&index(page))?;
        Some(page..page + n as usize)
    }

    /// Pages of the hole that ends where the home at `page` starts.
    pub(crate) fn n_hole_pages_before(&self, page: usize) -> usize {
        match self.holes.range(..index(page)).next_back() {
            Some((&first, &n)) if (first + n) as usize == page => n as usize,
            _ => 0,
        }
    }

    /// What is left from `page` on of the hole that holds it, `None` where a home is.
    pub(crate) fn hole_at(&self, page: usize) -> Option<Range<usize>> {
        if page >= self.end() {
            return Some(page..usize::MAX);
        }
        let (&first, &n) = self.holes.range(..=index(page)).next_back()?;
        ((first + n) as usize > page).then_some(page..(first + n) as usize)
    }

    /// The handles at home in `pages`, which cuts none.
    pub(crate) fn homes_in(&self, pages: Range<usize>) -> impl DoubleEndedIterator<Item = u32> + '_ {
        HomesIn { slots: self, pages }
    }

    /// Takes a new handle in, homeless until [`settle`](Self::settle).
    pub(crate) fn adopt(&mut self, id: HandleId, n_pages: u32) -> u32 {
        let handle = Handle { id, home: NONE, origin: NONE, n_pages };
        if let Some(i) = self.vacant_handles.pop() {
            self.handles[i as usize] = handle;
            i
        } else {
            self.handles.push(handle);
            index(self.handles.len() - 1)
        }
    }

    /// Forgets a homeless handle.
    pub(crate) fn drop_handle(&mut self, handle: u32) {
        self.handles[handle as usize].n_pages = 0;
        self.vacant_handles.push(handle);
    }

    /// Makes `page` the home of a homeless handle. Its pages were a hole.
    pub(crate) fn settle(&mut self, handle: u32, page: usize) {
        let h = &mut self.handles[handle as usize];
        h.home = index(page);
        if h.origin == NONE {
            h.origin = h.home;
        }
        self.n_displaced += u64::from(h.home != h.origin);
        let pages = self.handle(handle).pages();
        self.cut_hole(&pages);
        for p in pages.clone() {
            self.slot_mut(p).home = handle;
        }
        self.n_home_pages += pages.len() as u64;
    }

    /// Takes the home away from a handle; its pages become a hole.
    pub(crate) fn unsettle(&mut self, handle: u32) -> Range<usize> {
        let pages = self.handle(handle).pages();
        for p in pages.clone() {
            self.slots[p].home = NONE;
        }
        self.n_home_pages -= pages.len() as u64;
        self.add_hole(&pages);
        let h = &mut self.handles[handle as usize];
        self.n_displaced -= u64::from(h.home != h.origin);
        h.home = NONE;
        pages
    }

    /// Notes that `handle` stays mapped at `pages` without being at home there.
    pub(crate) fn mark_stale(&mut self, handle: u32, pages: Range<usize>) {
        self.n_stale_pages += pages.len() as u64;
        for p in pages {
            self.slot_mut(p).stale = handle;
        }
    }

    /// Notes that the stale mapping of `handle` at `page` is gone.
    pub(crate) fn clear_stale(&mut self, handle: u32, page: usize) {
        let n = self.handle(handle).n_pages as usize;
        self.n_stale_pages -= n as u64;
        for p in page..page + n {
            self.slots[p].stale = NONE;
        }
    }

    fn cut_hole(&mut self, pages: &Range<usize>) {
        let (first, behind) = (index(pages.start), index(pages.end));
        if first >= self.end {
            if first > self.end {
                self.holes.insert(self.end, first - self.end);
            }
            self.end = behind;
            return;
        }
        if let Some((&start, &n)) = self.holes.range(..=first).next_back() {
            self.holes.remove(&start);
            if start < first {
                self.holes.insert(start, first - start);
            }
            if start + n > behind {
                self.holes.insert(behind, start + n - behind);
            }
        }
    }

    fn add_hole(&mut self, pages: &Range<usize>) {
        let (mut first, mut behind) = (index(pages.start), index(pages.end));
        if let Some((&start, &n)) = self.holes.range(..first).next_back()
            && start + n == first
        {
            self.holes.remove(&start);
            first = start;
        }
        if let Some(n) = self.holes.remove(&behind) {
            behind += n;
        }
        if behind == self.end {
            self.end = first;
        } else {
            self.holes.insert(first, behind - first);
        }
    }
}

struct HomesIn<'a> {
    slots: &'a Slots,
    pages: Range<usize>,
}

impl Iterator for HomesIn<'_> {
    type Item = u32;
    fn next(&mut self) -> Option<u32> {
        if self.pages.is_empty() {
            return None;
        }
        let home = self.slots.slot(self.pages.start).home;
        self.pages.start += self.slots.handle(home).n_pages as usize;
        Some(home)
    }
}

impl DoubleEndedIterator for HomesIn<'_> {
    fn next_back(&mut self) -> Option<u32> {
        if self.pages.is_empty() {
            return None;
        }
        let home = self.slots.slot(self.pages.end - 1).home;
        self.pages.end -= self.slots.handle(home).n_pages as usize;
        Some(home)
    }
}
