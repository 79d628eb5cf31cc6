//! Stale mappings: where handles are still mapped though they live elsewhere by now.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use smallvec::SmallVec;

use crate::order::Tag;
use crate::slots::Slots;
use crate::units::index;

/// The last uses of something, one for each stream.
pub(crate) type Uses = SmallVec<[Tag; 2]>;

/// The latest of `tags` for each stream.
pub(crate) fn last_uses(tags: impl Iterator<Item = Tag>) -> Uses {
    let mut uses = Uses::new();
    for tag in tags {
        match uses.iter_mut().find(|use_| use_.stream == tag.stream) {
            Some(use_) => *use_ = (*use_).max(tag),
            None => uses.push(tag),
        }
    }
    uses
}

/// A mapping that waits for its last uses before it can go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StaleMapping {
    pub(crate) handle: u32,
    pub(crate) page: usize,
    /// Work of these and before them may still use the address.
    pub(crate) uses: Uses,
}

/// All stale mappings, by address and by age.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// Mappings with their numbers, by first page.
    by_page: BTreeMap<u32, (u64, StaleMapping)>,
    /// First pages with numbers; what is not in `by_page` under its number is gone.
    by_age: VecDeque<(u32, u64)>,
    n_inserted: u64,
}

impl Stale {
    pub(crate) fn insert(&mut self, mapping: StaleMapping) {
        let page = index(mapping.page);
        self.n_inserted += 1;
        self.by_age.push_back((page, self.n_inserted));
        self.by_page.insert(page, (self.n_inserted, mapping));
        if self.by_age.len() > 2 * self.by_page.len() + 64 {
            let by_page = &self.by_page;
            self.by_age.retain(|(page, n)| by_page.get(page).is_some_and(|(number, _)| number == n));
        }
    }

    /// Takes out the mapping that starts at `page`.
    pub(crate) fn remove(&mut self, page: usize) {
        self.by_page.remove(&index(page));
        let is_gone =
            |&(page, n): &(u32, u64)| self.by_page.get(&page).is_none_or(|(number, _)| *number != n);
        while self.by_age.front().is_some_and(is_gone) {
            self.by_age.pop_front();
        }
    }

    pub(crate) fn oldest(&self) -> Option<&StaleMapping> {
        let (page, _) = self.by_age.front()?;
        self.by_page.get(page).map(|(_, mapping)| mapping)
    }

    /// Makes the mapping that starts at `page` the youngest.
    pub(crate) fn defer(&mut self, page: usize) {
        if let Some(mapping) = self.at(page).cloned() {
            self.remove(page);
            self.insert(mapping);
        }
    }

    /// The mapping that starts at `page`.
    pub(crate) fn at(&self, page: usize) -> Option<&StaleMapping> {
        self.by_page.get(&index(page)).map(|(_, mapping)| mapping)
    }

    /// The mappings that touch `pages`.
    pub(crate) fn touching<'a>(&'a self, pages: &Range<usize>, slots: &Slots) -> Vec<&'a StaleMapping> {
        let below = self.by_page.range(..index(pages.start)).next_back().map(|(_, (_, m))| m);
        let below = below.filter(|m| m.page + slots.handle(m.handle).n_pages as usize > pages.start);
        let inside = self.by_page.range(index(pages.start)..index(pages.end)).map(|(_, (_, m))| m);
        below.into_iter().chain(inside).collect()
    }

    #[cfg(test)]
    pub(crate) fn n_by_age(&self) -> usize {
        self.by_age.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StaleMapping> {
        self.by_page.values().map(|(_, mapping)| mapping)
    }
}
