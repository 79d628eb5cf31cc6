//! Room for a request: the best fit, and what happens when none fits.

use glake_core::alloc::{AllocError, OutOfMemory};

use crate::blocks::{Block, first_handle_from, last_handle_until};
use crate::config::Mode;
use crate::order::{Readiness, Taker};
use crate::pool::StitchPool;
use crate::sizing::few_mappings;
use crate::units::{GRANULE_BYTES, PAGE, page_of};

mod among;
mod make;

pub(crate) use make::Stitching;

/// How many free blocks a search looks at before it takes one that is long enough wherever it
/// starts, or goes on to look inside.
const N_RUNS: usize = 32;

/// Clean pages that a fit may spoil before another one is looked at.
const N_FORGIVEN: usize = 1;

/// Free blocks that are looked at for one that a fit does not spoil.
const N_FITS: usize = 4;

/// Free bytes for a request: their block, and where they start.
pub(crate) type Found = (u32, u64);

impl StitchPool {
    /// Free bytes that the taker may use as they are: of the few shortest free blocks, the lowest of
    /// equals first, the first one without whole free handles to spoil, or the one that loses least.
    #[inline]
    pub(crate) fn fit(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        if align_bytes > GRANULE_BYTES {
            return self.aligned_fit(bytes, align_bytes, taker, |_, _| true);
        }
        let mut best: Option<(usize, Found)> = None;
        let (mut n_seen, mut n_fits) = (0, 0);
        self.blocks.at_least(bytes, |block| {
            n_seen += 1;
            if let Some((n_lost, at)) = self.end_to_take(block, bytes, taker) {
                n_fits += 1;
                if best.is_none_or(|(least, _)| n_lost < least) {
                    best = Some((n_lost, (block, at)));
                }
            }
            let is_found = best.is_some_and(|(least, _)| least == 0);
            (is_found || n_fits == N_FITS || n_seen == N_RUNS).then_some(())
        });
        best.map(|(_, found)| found)
    }

    /// Where in a free block `bytes` bytes go, and the clean pages lost by it beyond one: at its
    /// low end, unless the high end leaves more whole handles free or is the one that is ready.
    #[inline]
    fn end_to_take(&self, block: u32, bytes: u64, taker: Taker) -> Option<(usize, u64)> {
        let b = self.blocks.get(block);
        let high_start = b.end() - bytes;
        let is_low_ready = self.is_ready(block, b.start, bytes, taker);
        let clean = b.clean_pages();
        if is_low_ready && clean.len() <= N_FORGIVEN {
            return Some((0, b.start));
        }
        let low = || {
            let first = first_handle_from(b.start + bytes, &self.slots).min(clean.end);
            first.saturating_sub(clean.start).saturating_sub(N_FORGIVEN)
        };
        let low = is_low_ready.then(low);
        if low == Some(0) {
            return Some((0, b.start));
        }
        let high = || {
            let behind = last_handle_until(high_start, &self.slots).max(clean.start);
            clean.end.saturating_sub(behind).saturating_sub(N_FORGIVEN)
        };
        let high = self.is_ready(block, high_start, bytes, taker).then(high);
        match (low, high) {
            (Some(low), Some(high)) if high < low => Some((high, high_start)),
            (Some(low), _) => Some((low, b.start)),
            (None, high) => high.map(|high| (high, high_start)),
        }
    }

    /// Whether the taker may have `bytes` bytes at `at` of a free block as they are.
    #[inline]
    fn is_ready(&self, block: u32, at: u64, bytes: u64, taker: Taker) -> bool {
        self.order.is_single()
            || self.blocks.tags_in(block, at, bytes).all(|tag| self.order.is_ready(taker.stream, tag))
    }

    /// A place for an aligned request that is ready and that `accepts` its block and page: in one of
    /// the shortest free blocks, or in one that is long enough wherever it starts.
    fn aligned_fit(
        &self,
        bytes: u64,
        align_bytes: u64,
        taker: Taker,
        accepts: impl Fn(&Block, usize) -> bool,
    ) -> Option<Found> {
        let place = |block: u32| {
            let b = self.blocks.get(block);
            let at = b.start.next_multiple_of(align_bytes);
            let fits = at + bytes <= b.end() && accepts(b, page_of(at));
            (fits && self.is_ready(block, at, bytes, taker)).then_some((block, at))
        };
        let mut n_seen = 0;
        let near = self.blocks.at_least(bytes, |block| {
            n_seen += 1;
            if n_seen > N_RUNS { Some(None) } else { place(block).map(Some) }
        });
        near.flatten().or_else(|| {
            let long_bytes = bytes + align_bytes - GRANULE_BYTES;
            self.blocks.at_least(long_bytes, Some).and_then(place)
        })
    }

    /// Room for a request, made if there is none.
    #[inline]
    pub(crate) fn room_for(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        taker: Taker,
    ) -> Result<Found, AllocError> {
        let found = self.fit(bytes, align_bytes, taker);
        let found = found.map(|found| self.unspoiling_fit(found, bytes, align_bytes, taker).unwrap_or(found));
        match found.or_else(|| self.fit_among_streams(bytes, align_bytes, taker)) {
            Some(found) => Ok(found),
            None => self.make_room(bytes, align_bytes, taker),
        }
    }

    /// An aligned free page, if possible outside of whole free handles.
    pub(crate) fn room_for_unit(&mut self, taker: Taker) -> Result<Found, AllocError> {
        let spoils_none = |b: &Block, page: usize| !b.clean_pages().contains(&page);
        match self.aligned_fit(PAGE, PAGE, taker, spoils_none) {
            Some(found) => Ok(found),
            None => self.room_for(PAGE, PAGE, taker),
        }
    }

    /// Makes a free block for a request that none fits: gives spare units up, stitches, grows.
    #[cold]
    pub(crate) fn make_room(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        taker: Taker,
    ) -> Result<Found, AllocError> {
        self.collect_graphs();
        self.hasten_held();
        let spares = self.give_up_spares();
        if let Some(found) = self.any_fit(bytes, align_bytes, taker) {
            return Ok(found);
        }
        if self.revive(bytes, align_bytes, taker)
            && let Some(found) = self.found_at_last(bytes, align_bytes, taker)
        {
            self.counters.n_revived += 1;
            return Ok(found);
        }
        let stitched_before = self.counters.stitched_bytes;
        if let Err(error) = self.stitch_or_grow(bytes, align_bytes, taker) {
            let found = self.found_at_last(bytes, align_bytes, taker).filter(|_| !self.is_poisoned);
            if let Some(found) = found {
                return Ok(found);
            }
            // In a pinned pool they may have gone back to the device meanwhile.
            if self.config.mode != Mode::Pinned {
                self.take_back_spares(spares);
            }
            return Err(error);
        }
        self.counters.n_misses += 1;
        self.note_peak_reserved();
        self.reap(few_mappings(page_of(self.counters.stitched_bytes - stitched_before)));
        self.fit(bytes, align_bytes, taker)
            .or_else(|| self.inner_fit(bytes, align_bytes, taker))
            .or_else(|| self.oldest_fit(bytes, align_bytes, taker))
            .or_else(|| self.found_at_last(bytes, align_bytes, taker))
            .ok_or_else(|| self.out_of_memory(bytes))
    }

    /// Any free bytes that hold a request, after a look at all if need be: among very many blocks of
    /// about its length, [`fit`](Self::fit) may not come to an aligned place.
    fn found_at_last(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        if let Some(found) = self.any_fit(bytes, align_bytes, taker) {
            return Some(found);
        }
        let places = self.blocks.below(u64::MAX).flat_map(|block| {
            let can_be_had = |tag| self.order.readiness(taker, tag) != Readiness::Never;
            self.spans(block, can_be_had).into_iter().filter_map(move |span| {
                let at = span.start.next_multiple_of(align_bytes);
                (at + bytes <= span.end).then_some((span.end - span.start, at, block))
            })
        });
        places.min().map(|(_, at, block)| (block, at))
    }

    /// Any free block that is long enough wherever it starts, and can be had: among very many of
    /// about the same length, [`fit`](Self::fit) looks at a few only.
    fn any_fit(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        let slack_bytes = align_bytes.saturating_sub(GRANULE_BYTES);
        let block = self.blocks.any(bytes + slack_bytes)?;
        let at = self.blocks.get(block).start.next_multiple_of(align_bytes);
        (self.readiness(block, at, bytes, taker) != Readiness::Never).then_some((block, at))
    }

    fn out_of_memory(&self, requested_bytes: u64) -> AllocError {
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested_bytes,
            free_bytes: self.physical_bytes() - self.allocated_bytes(),
            largest_free_bytes: self.blocks.largest_bytes(),
            stitchable_bytes: self.blocks.clean_bytes(),
            reserved_bytes: self.physical_bytes(),
            limit_bytes: self.config.limit_bytes,
            device_free_bytes: self.device_free_bytes(),
            top_tags: Vec::new(),
        }))
    }

    /// What the driver says that can still be created, 0 if it does not say.
    fn device_free_bytes(&self) -> u64 {
        self.driver.memory_info(self.config.device).map_or(0, |info| info.free_bytes)
    }
}
