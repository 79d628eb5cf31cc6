//! Room for a request: the best fit, and what happens when none fits.

use std::collections::BTreeSet;
use std::ops::Range;

use glake_core::alloc::{AllocError, OutOfMemory};
use glake_core::driver::DriverError;
use smallvec::SmallVec;

use crate::blocks::{Block, first_handle_from, last_handle_until};
use crate::commit::CommitError;
use crate::config::Mode;
use crate::order::{Readiness, Tag, Taker};
use crate::plan::{Plan, Planner};
use crate::pool::StitchPool;
use crate::sizing::{Among, Growth, few_mappings, handle_sizes, single_pages};
use crate::units::{GRANULE_BYTES, PAGE, page_of, page_start};

/// How many free blocks a search looks at before it takes one that is long enough wherever it
/// starts, or goes on to look inside.
const N_RUNS: usize = 32;

/// Pieces that a search inside of free blocks looks at.
const N_PIECES: usize = 1024;

/// Clean pages that a fit may spoil before another one is looked at.
const N_FORGIVEN: usize = 1;

/// Free blocks that are looked at for one that a fit does not spoil.
const N_FITS: usize = 4;

/// Free bytes outside of whole free handles, as a share of the physical memory (one of so many), above
/// which a request rather waits for another stream than spoils more.
const SPOILT_SHARE: u64 = 80;

/// Stale mappings may take this many times the addresses of the physical memory.
const STALE_RATIO: u64 = 2;

/// Free bytes for a request: their block, and where they start.
pub(crate) type Found = (u32, u64);

impl StitchPool {
    /// Free bytes that the taker may use as they are: of the few shortest free blocks, the lowest of
    /// equals first, the first one without whole free handles to spoil, or the one that loses least.
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
    fn is_ready(&self, block: u32, at: u64, bytes: u64, taker: Taker) -> bool {
        self.order.is_single()
            || self.blocks.tags_in(block, at, bytes).all(|tag| self.order.is_ready(taker.stream, tag))
    }

    /// What stands between the taker and `bytes` bytes at `at` of a free block.
    fn readiness(&self, block: u32, at: u64, bytes: u64, taker: Taker) -> Readiness {
        if self.order.is_single() {
            return Readiness::Ready;
        }
        let tags = self.blocks.tags_in(block, at, bytes);
        tags.map(|tag| self.order.readiness(taker, tag)).max().unwrap_or(Readiness::Ready)
    }

    /// Makes the taker's later work wait for what used `bytes` bytes at `at` of a free block.
    pub(crate) fn wait_for(&mut self, found: Found, bytes: u64, taker: Taker) -> Result<(), DriverError> {
        if self.order.is_single() {
            return Ok(());
        }
        let (block, at) = found;
        let mut unmet: SmallVec<[Tag; 4]> = SmallVec::new();
        for tag in self.blocks.tags_in(block, at, bytes) {
            if !self.order.is_ready(taker.stream, tag) {
                match unmet.iter_mut().find(|other| other.stream == tag.stream) {
                    Some(other) => *other = (*other).max(tag),
                    None => unmet.push(tag),
                }
            }
        }
        unmet.into_iter().try_for_each(|tag| self.order.wait(taker.stream, tag, &*self.driver))
    }

    /// The longest stretches of a free block whose tags are `wanted`, as addresses.
    pub(crate) fn spans(&self, block: u32, wanted: impl Fn(Tag) -> bool) -> SmallVec<[Range<u64>; 4]> {
        let mut spans: SmallVec<[Range<u64>; 4]> = SmallVec::new();
        let mut at = self.blocks.get(block).start;
        for (bytes, tag) in self.blocks.pieces(block) {
            if wanted(tag) {
                match spans.last_mut() {
                    Some(span) if span.end == at => span.end += bytes,
                    _ => spans.push(at..at + bytes),
                }
            }
            at += bytes;
        }
        spans
    }

    /// Free bytes inside of a free block that are ready: where the fewest whole free handles are
    /// spoiled, in the shortest stretch.
    fn inner_fit(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        let mut best: Option<((usize, u64), Found)> = None;
        let (mut n_runs, mut n_pieces) = (0, 0);
        self.blocks.at_least(bytes, |block| {
            n_runs += 1;
            n_pieces += self.blocks.pieces(block).count();
            for span in self.spans(block, |tag| self.order.is_ready(taker.stream, tag)) {
                for at in self.places(&span, bytes, align_bytes) {
                    let key = (self.spoiled(block, at, bytes), span.end - span.start);
                    if best.is_none_or(|(least, _)| key < least) {
                        best = Some((key, (block, at)));
                    }
                }
            }
            (n_runs == N_RUNS || n_pieces >= N_PIECES).then_some(())
        });
        best.map(|(_, found)| found)
    }

    /// Addresses for `bytes` bytes in a stretch of a free block: at its ends, and where a handle
    /// starts.
    fn places(&self, span: &Range<u64>, bytes: u64, align_bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let low = span.start.next_multiple_of(align_bytes);
        let high = span.end.saturating_sub(bytes) / align_bytes * align_bytes;
        let at_handle = page_start(first_handle_from(low, &self.slots));
        let span = span.clone();
        [low, at_handle, high].into_iter().filter(move |&at| at >= span.start && at + bytes <= span.end)
    }

    /// Pages of whole free handles of a block that `bytes` bytes at `at` take, beyond those that they
    /// fill.
    fn spoiled(&self, block: u32, at: u64, bytes: u64) -> usize {
        let clean = self.blocks.get(block).clean_pages();
        let first = last_handle_until(at, &self.slots).max(clean.start);
        let behind = first_handle_from(at + bytes, &self.slots).min(clean.end);
        behind.saturating_sub(first).saturating_sub(page_of(bytes))
    }

    /// Free bytes behind a wait: where the fewest whole free handles are spoiled, behind the oldest
    /// work.
    fn oldest_fit(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        let mut best: Option<((bool, usize, Readiness), Found)> = None;
        let (mut n_runs, mut n_pieces) = (0, 0);
        self.blocks.at_least(bytes, |block| {
            n_runs += 1;
            let b = self.blocks.get(block);
            let mut from = b.start;
            for (length, _) in self.blocks.pieces(block) {
                n_pieces += 1;
                let places = self.places(&(from..b.end()), bytes, align_bytes);
                from += length;
                for at in places {
                    let readiness = self.readiness(block, at, bytes, taker);
                    let is_open = match readiness {
                        Readiness::Never => continue,
                        Readiness::Ready => false,
                        Readiness::Behind { is_open, .. } => is_open,
                    };
                    let n_lost = self.spoiled(block, at, bytes).saturating_sub(N_FORGIVEN);
                    let key = (is_open, n_lost, readiness);
                    if best.is_none_or(|(least, _)| key < least) {
                        best = Some((key, (block, at)));
                    }
                }
                if n_pieces > N_PIECES {
                    break;
                }
            }
            (n_runs == N_RUNS || n_pieces > N_PIECES).then_some(())
        });
        best.map(|(_, found)| found)
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

    /// Free bytes behind a wait that spoil no whole free handle, where `found` does and much is spoilt
    /// already: a wait for recorded work costs less than memory.
    fn unspoiling_fit(&self, found: Found, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        let free_bytes = self.physical_bytes().saturating_sub(self.allocated_bytes());
        let spoilt_bytes = free_bytes.saturating_sub(self.blocks.clean_bytes());
        let may_matter = !self.order.is_single() && spoilt_bytes * SPOILT_SHARE > self.physical_bytes();
        if !may_matter || align_bytes > GRANULE_BYTES || self.spoiled(found.0, found.1, bytes) <= N_FORGIVEN {
            return None;
        }
        let mut oldest: Option<(Readiness, Found)> = None;
        let mut n_seen = 0;
        self.blocks.at_least(bytes, |block| {
            n_seen += 1;
            let b = self.blocks.get(block);
            for at in [b.start, b.end() - bytes] {
                let readiness = self.readiness(block, at, bytes, taker);
                let is_recorded =
                    matches!(readiness, Readiness::Ready | Readiness::Behind { is_open: false, .. });
                let is_older = oldest.is_none_or(|(oldest, _)| readiness < oldest);
                if is_recorded && is_older && self.spoiled(block, at, bytes) <= N_FORGIVEN {
                    oldest = Some((readiness, (block, at)));
                }
            }
            (n_seen == 2 * N_FITS).then_some(())
        });
        oldest.map(|(_, found)| found)
    }

    /// Free bytes that other streams used: those that are ready by now, or else behind a wait.
    fn fit_among_streams(&mut self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        if self.order.is_single() {
            return None;
        }
        if let Some(found) = self.inner_fit(bytes, align_bytes, taker) {
            return Some(found);
        }
        self.collect_graphs();
        self.order.poll(&*self.driver);
        self.release_held();
        self.fit(bytes, align_bytes, taker)
            .or_else(|| self.inner_fit(bytes, align_bytes, taker))
            .or_else(|| self.oldest_fit(bytes, align_bytes, taker))
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
        self.counters.peak_reserved_bytes = self.counters.peak_reserved_bytes.max(self.physical_bytes());
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

    fn stitch_or_grow(&mut self, bytes: u64, align_bytes: u64, taker: Taker) -> Result<(), AllocError> {
        let is_pinned = self.config.mode == Mode::Pinned;
        if is_pinned || self.physical_bytes() < self.config.stitch_above_bytes {
            let grown = self.try_room(bytes, align_bytes, Stitching::Never, taker);
            if grown.is_ok() || self.is_poisoned {
                return grown;
            }
        }
        if is_pinned {
            // What is free but cut up becomes new memory.
            self.trim_to(self.physical_bytes().saturating_sub(bytes.next_multiple_of(PAGE)))?;
            return self.try_room(bytes, align_bytes, Stitching::Never, taker);
        }
        self.try_room(bytes, align_bytes, Stitching::Always, taker)
    }

    fn try_room(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        stitching: Stitching,
        taker: Taker,
    ) -> Result<(), AllocError> {
        let plan = self.plan(bytes, align_bytes, stitching, taker);
        let plan = plan.ok_or(DriverError::OutOfAddresses { bytes })?;
        let done = self.carry_out(&plan, bytes, taker);
        if !matches!(done, Err(AllocError::OutOfMemory(_))) || stitching == Stitching::Never {
            return done;
        }
        // A place passed over because it is slow to clear may take less memory.
        match self.plan_at_any_cost(bytes, align_bytes, taker) {
            Some(other) if other.n_missing < plan.n_missing => self.carry_out(&other, bytes, taker),
            _ => done,
        }
    }

    fn carry_out(&mut self, plan: &Plan, bytes: u64, taker: Taker) -> Result<(), AllocError> {
        let missing_bytes = plan.n_missing as u64 * PAGE;
        let most_bytes = self.config.limit_bytes.min(self.device_bytes);
        if missing_bytes > most_bytes.saturating_sub(self.physical_bytes()) {
            return Err(self.out_of_memory(bytes));
        }
        let mut done = self.commit(plan, &self.sizes_for(plan), taker.stream);
        if done == Err(CommitError::Undone(DriverError::OutOfMemory))
            && self.config.mode != Mode::Compact
            && missing_bytes <= self.device_free_bytes()
        {
            done = self.commit(plan, &single_pages(plan.n_missing).collect::<Vec<_>>(), taker.stream);
        }
        match done {
            Ok(()) => Ok(()),
            Err(CommitError::Undone(DriverError::OutOfMemory)) => Err(self.out_of_memory(bytes)),
            Err(error) => Err(self.not_committed(error)),
        }
    }

    fn sizes_for(&self, plan: &Plan) -> Vec<usize> {
        if self.config.mode == Mode::Compact {
            return single_pages(plan.n_missing).collect();
        }
        let n_moved = plan.donors.iter().map(|d| self.slots.homes_in(d.pages.clone()).count()).sum();
        let growth = Growth { n_pages: plan.pages.len(), n_missing: plan.n_missing, n_moved };
        let among = if self.order.n_streams() <= 1 { Among::One } else { Among::Several };
        handle_sizes(growth, self.spent, among).collect()
    }

    /// A plan for a place that is fast to clear, if there is one, or else for any.
    fn plan(&mut self, bytes: u64, align_bytes: u64, stitching: Stitching, taker: Taker) -> Option<Plan> {
        let keeps_stale = self.homing.is_on();
        let few = |n_pages| if keeps_stale { 0 } else { few_mappings(n_pages) };
        let fast = self.plan_over(bytes, align_bytes, stitching, taker, few);
        fast.or_else(|| self.plan_over(bytes, align_bytes, stitching, taker, |_| usize::MAX))
    }

    /// The plan that creates least, however many stale mappings have to go for it.
    pub(crate) fn plan_at_any_cost(&mut self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Plan> {
        let uses: BTreeSet<Tag> =
            self.stale.iter().flat_map(|mapping| mapping.uses.iter().copied()).collect();
        for tag in uses {
            // Without an event they block their places for good.
            let _ = self.order.ensure_event(tag, &*self.driver);
        }
        self.plan_over(bytes, align_bytes, Stitching::Always, taker, |_| usize::MAX)
    }

    /// A plan for a place without stale mappings that are pending, and with at most `n_most` for
    /// its pages of others.
    fn plan_over(
        &mut self,
        bytes: u64,
        align_bytes: u64,
        stitching: Stitching,
        taker: Taker,
        n_most: impl Fn(usize) -> usize,
    ) -> Option<Plan> {
        self.order.poll(&*self.driver);
        let (blocks, slots, stale, order) = (&self.blocks, &self.slots, &self.stale, &self.order);
        let n_arena_pages = page_of(self.arena.bytes);
        let planner = Planner { blocks, slots, n_arena_pages, stitching, order, taker };
        planner.plan(bytes, align_bytes, |pages| {
            let mappings = stale.touching(pages, slots);
            let mut uses = mappings.iter().flat_map(|mapping| &mapping.uses);
            mappings.len() > n_most(pages.len()) || uses.any(|&tag| !order.is_done(tag))
        })
    }

    /// Unmaps at most `n_most` of the oldest stale mappings while there are too many. A failure
    /// leaves them for later.
    fn reap(&mut self, n_most: usize) {
        if !self.is_stepped {
            let _ =
                (0..n_most).try_for_each(|_| if self.unmap_oldest() == Ok(true) { Some(()) } else { None });
        }
    }

    /// Whether stale mappings take too many addresses.
    pub(crate) fn has_much_stale(&self) -> bool {
        self.slots.n_stale_pages() > STALE_RATIO * self.slots.n_home_pages()
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

/// Whether free handles may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stitching {
    /// Grow only.
    Never,
    /// Move what is free, then grow.
    Always,
}
