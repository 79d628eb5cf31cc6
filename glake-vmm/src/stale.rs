//! Stale mappings: where handles are still mapped though they live elsewhere by now.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use crate::order::Epoch;
use crate::slots::Slots;
use crate::units::index;

/// A mapping that waits for its event before it can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleMapping {
    pub(crate) handle: u32,
    pub(crate) page: usize,
    /// Work of this epoch and earlier ones may still use the address.
    pub(crate) epoch: Epoch,
}

/// All stale mappings, by address and by age.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    by_page: BTreeMap<u32, StaleMapping>,
    by_age: VecDeque<StaleMapping>,
}

impl Stale {
    pub(crate) fn insert(&mut self, mapping: StaleMapping) {
        self.by_page.insert(index(mapping.page), mapping);
        self.by_age.push_back(mapping);
        if self.by_age.len() > 2 * self.by_page.len() + 64 {
            let by_page = &self.by_page;
            self.by_age.retain(|m| by_page.get(&index(m.page)) == Some(m));
        }
    }

    pub(crate) fn remove(&mut self, mapping: &StaleMapping) {
        self.by_page.remove(&index(mapping.page));
        while self.by_age.front().is_some_and(|m| self.by_page.get(&index(m.page)) != Some(m)) {
            self.by_age.pop_front();
        }
    }

    pub(crate) fn oldest(&self) -> Option<StaleMapping> {
        self.by_age.front().copied()
    }

    /// The mapping that starts at `page`.
    pub(crate) fn at(&self, page: usize) -> Option<StaleMapping> {
        self.by_page.get(&index(page)).copied()
    }

    /// The mappings that touch `pages`.
    pub(crate) fn touching(&self, pages: &Range<usize>, slots: &Slots) -> Vec<StaleMapping> {
        let below = self.by_page.range(..index(pages.start)).next_back().map(|(_, m)| *m);
        let below = below.filter(|m| m.page + slots.handle(m.handle).n_pages as usize > pages.start);
        let inside = self.by_page.range(index(pages.start)..index(pages.end)).map(|(_, m)| *m);
        below.into_iter().chain(inside).collect()
    }

    /// All mappings by handle.
    pub(crate) fn by_handle(&self) -> BTreeMap<u32, Vec<StaleMapping>> {
        let mut by_handle: BTreeMap<u32, Vec<StaleMapping>> = BTreeMap::new();
        for mapping in self.by_page.values() {
            by_handle.entry(mapping.handle).or_default().push(*mapping);
        }
        by_handle
    }

    #[cfg(test)]
    pub(crate) fn n_by_age(&self) -> usize {
        self.by_age.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StaleMapping> {
        self.by_page.values()
    }
}
