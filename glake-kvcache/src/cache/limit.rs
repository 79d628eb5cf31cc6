//! How many pages the cache holds, and which.
//!
//! A page is given back only when none of its blocks is in use. Where a limit is below what is in use, nothing is given
//! away until enough was freed: each page goes as its last block is freed.

use std::ops::Range;

use super::KvCache;
use crate::config::Config;
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::{BlockId, PageId};
use crate::policy::Policy;

/// What lies in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageState {
    /// It is given back: its memory may be unmapped.
    Retired,
    /// No block of it is in use, and none has contents that look-ups find.
    Blank,
    /// No block of it is in use; some can be found.
    Cached,
    /// A block of it is in use: it must stay mapped.
    Used,
}

/// What became of a page, for whoever maps and unmaps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitChange {
    /// Its blocks are not given away any more, and hold nothing: it may be unmapped behind the work that used it.
    Retired(PageId),
    /// Its blocks may be given away again: it has to be mapped.
    Returned(PageId),
}

#[derive(Debug)]
pub(super) struct Limit {
    n_pages: u32,
    blocks_per_page: u32,
    most_pages: u32,
    n_held: u32,
    changes: Vec<LimitChange>,
}

impl Limit {
    pub(super) const fn new(config: &Config) -> Self {
        let blocks_per_page = config.blocks_per_page();
        let n_pages = config.n_pages();
        Self { n_pages, blocks_per_page, most_pages: n_pages, n_held: n_pages, changes: Vec::new() }
    }

    /// Pages that are held beyond the limit, as their blocks are in use.
    #[inline]
    pub(super) const fn excess_pages(&self) -> u32 {
        self.n_held.saturating_sub(self.most_pages)
    }

    const fn page_of(&self, block: BlockId) -> PageId {
        PageId(block.0 / self.blocks_per_page)
    }

    fn blocks(&self, page: PageId) -> impl Iterator<Item = BlockId> + use<> {
        let Range { start, end } = page.0 * self.blocks_per_page..(page.0 + 1) * self.blocks_per_page;
        (start..end).map(BlockId)
    }
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Pages that the cache was made with.
    #[must_use]
    pub const fn n_pages(&self) -> u32 {
        self.limit.n_pages
    }

    /// Pages that are held: not retired.
    #[must_use]
    pub const fn n_held_pages(&self) -> u32 {
        self.limit.n_held
    }

    /// What lies in a page; `None` if there is no such page.
    #[must_use]
    pub fn page_state(&self, page: PageId) -> Option<PageState> {
        if page.0 >= self.limit.n_pages {
            return None;
        }
        let mut state = PageState::Blank;
        for block in self.limit.blocks(page) {
            if self.pool.is_retired(block) {
                return Some(PageState::Retired);
            }
            if self.pool.users(block) > 0 {
                return Some(PageState::Used);
            }
            if self.pool.is_cached(block) {
                state = PageState::Cached;
            }
        }
        Some(state)
    }

    /// Sets how many pages may be held, and says by how many the cache is above that still.
    ///
    /// Pages that nobody uses are retired at once, those first whose blocks would be given away first; others as they
    /// are freed. A higher limit has retired pages back, lowest first.
    /// [`drain_limit_changes`](Self::drain_limit_changes) says which.
    ///
    /// # Errors
    /// No page, or more than there are. Nothing has changed then.
    pub fn set_limit_pages(&mut self, pages: u32) -> Result<u32, CacheError> {
        let most = self.limit.n_pages;
        if !(1..=most).contains(&pages) {
            return Err(CacheError::LimitOutOfRange { pages, most });
        }
        self.limit.most_pages = pages;
        self.shrink();
        self.grow();
        tracing::debug!(pages, held = self.limit.n_held, "the limit of a KV cache has changed");
        Ok(self.limit.excess_pages())
    }

    /// What became of pages since the last time, in order.
    pub fn drain_limit_changes(&mut self) -> impl Iterator<Item = LimitChange> + '_ {
        self.limit.changes.drain(..)
    }

    fn shrink(&mut self) {
        if self.limit.excess_pages() == 0 {
            return;
        }
        for block in self.pool.order() {
            if self.limit.excess_pages() == 0 {
                return;
            }
            self.shrink_at(block);
        }
    }

    fn grow(&mut self) {
        for page in (0..self.limit.n_pages).map(PageId) {
            if self.limit.n_held >= self.limit.most_pages {
                return;
            }
            if self.page_state(page) == Some(PageState::Retired) {
                for block in self.limit.blocks(page) {
                    self.pool.unretire(block);
                }
                self.limit.n_held += 1;
                self.limit.changes.push(LimitChange::Returned(page));
            }
        }
    }

    /// Retires the page of a block if too many are held and nobody uses this one.
    pub(super) fn shrink_at(&mut self, block: BlockId) {
        let page = self.limit.page_of(block);
        let is_idle = matches!(self.page_state(page), Some(PageState::Blank | PageState::Cached));
        if self.limit.excess_pages() == 0 || !is_idle {
            return;
        }
        for block in self.limit.blocks(page) {
            let was_cached = self.pool.is_cached(block);
            self.pool.retire(block);
            if was_cached {
                self.counts.evictions += 1;
                self.unindex(block);
            }
        }
        self.limit.n_held -= 1;
        self.limit.changes.push(LimitChange::Retired(page));
    }
}
