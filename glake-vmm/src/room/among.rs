//! Free bytes that other streams used: which are ready, which come behind a wait.

use std::ops::Range;

use glake_core::driver::DriverError;
use smallvec::SmallVec;

use super::{Found, N_FITS, N_FORGIVEN, N_RUNS};
use crate::blocks::{first_handle_from, last_handle_until};
use crate::order::{Readiness, Tag, Taker};
use crate::pool::StitchPool;
use crate::stale::last_uses;
use crate::units::{GRANULE_BYTES, page_of, page_start};

/// Pieces that a search inside of free blocks looks at.
const N_PIECES: usize = 1024;

/// How often the driver is asked whether an event has passed that was only just recorded: on an idle
/// device it has, some microseconds later, which is less than more memory takes.
const N_LOOKS: usize = 32;

/// Pieces of a free block that a place behind a wait may start with.
const N_STARTS: usize = 16;

/// Free bytes outside of whole free handles, as a share of the physical memory (one of so many), above
/// which a request rather waits for another stream than spoils more.
const SPOILT_SHARE: u64 = 120;

impl StitchPool {
    /// What stands between the taker and `bytes` bytes at `at` of a free block.
    pub(super) fn readiness(&self, block: u32, at: u64, bytes: u64, taker: Taker) -> Readiness {
        if self.order.is_single() {
            return Readiness::Ready;
        }
        let tags = self.blocks.tags_in(block, at, bytes);
        tags.map(|tag| self.order.readiness(taker, tag)).max().unwrap_or(Readiness::Ready)
    }

    /// Makes the taker's later work wait for what used `bytes` bytes at `at` of a free block.
    #[inline]
    pub(crate) fn wait_for(&mut self, found: Found, bytes: u64, taker: Taker) -> Result<(), DriverError> {
        if self.order.is_single() {
            return Ok(());
        }
        let (block, at) = found;
        let tags = self.blocks.tags_in(block, at, bytes);
        let unmet = last_uses(tags.filter(|&tag| !self.order.is_ready(taker.stream, tag)));
        unmet.into_iter().try_for_each(|tag| self.order.wait(taker.stream, tag, &*self.driver))
    }

    /// Free bytes inside of a free block that are ready: where the fewest whole free handles are
    /// spoiled, in the shortest stretch.
    pub(super) fn inner_fit(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        let mut best: Option<((usize, u64), Found)> = None;
        let (mut n_runs, mut n_pieces) = (0, 0);
        self.blocks.at_least(bytes, |block| {
            n_runs += 1;
            let n_here = self.blocks.pieces(block).take(N_PIECES).count();
            n_pieces += n_here;
            if n_here == N_PIECES {
                // Too many to look at on the way of a request.
                return Some(());
            }
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
    pub(super) fn places(
        &self,
        span: &Range<u64>,
        bytes: u64,
        align_bytes: u64,
    ) -> impl Iterator<Item = u64> + use<> {
        let low = span.start.next_multiple_of(align_bytes);
        let high = span.end.saturating_sub(bytes) / align_bytes * align_bytes;
        let at_handle = page_start(first_handle_from(low, &self.slots));
        let span = span.clone();
        [low, at_handle, high].into_iter().filter(move |&at| at >= span.start && at + bytes <= span.end)
    }

    /// Pages of whole free handles of a block that `bytes` bytes at `at` take, beyond those that they
    /// fill.
    pub(super) fn spoiled(&self, block: u32, at: u64, bytes: u64) -> usize {
        let clean = self.blocks.get(block).clean_pages();
        let first = last_handle_until(at, &self.slots).max(clean.start);
        let behind = first_handle_from(at + bytes, &self.slots).min(clean.end);
        behind.saturating_sub(first).saturating_sub(page_of(bytes))
    }

    /// Free bytes behind a wait: where the fewest whole free handles are spoiled, behind the oldest
    /// work.
    pub(super) fn oldest_fit(&self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        let mut best: Option<((bool, usize, Readiness), Found)> = None;
        let (mut n_runs, mut n_pieces) = (0, 0);
        self.blocks.at_least(bytes, |block| {
            n_runs += 1;
            let b = self.blocks.get(block);
            let mut from = b.start;
            n_pieces += self.blocks.pieces(block).take(N_PIECES).count();
            for (length, _) in self.blocks.pieces(block).take(N_STARTS) {
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
            }
            (n_runs == N_RUNS || n_pieces >= N_PIECES).then_some(())
        });
        best.map(|(_, found)| found)
    }

    /// Free bytes behind a wait that spoil no whole free handle, where `found` does and much is spoilt
    /// already: a wait for recorded work costs less than memory.
    pub(super) fn unspoiling_fit(
        &self,
        found: Found,
        bytes: u64,
        align_bytes: u64,
        taker: Taker,
    ) -> Option<Found> {
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
    pub(super) fn fit_among_streams(&mut self, bytes: u64, align_bytes: u64, taker: Taker) -> Option<Found> {
        if self.order.is_single() {
            return None;
        }
        if let Some(found) = self.inner_fit(bytes, align_bytes, taker) {
            return Some(found);
        }
        self.collect_graphs();
        if self.order.is_host(taker.stream) {
            self.hasten_free(bytes);
        }
        self.order.poll(&*self.driver);
        self.release_held();
        self.fit(bytes, align_bytes, taker)
            .or_else(|| self.inner_fit(bytes, align_bytes, taker))
            .or_else(|| self.oldest_fit(bytes, align_bytes, taker))
    }

    /// Sees to it that events tell when the device is done with free memory that a request of `bytes` may
    /// have. Among streams a wait brings them, and where there is but one nobody asks.
    pub(crate) fn hasten_free(&mut self, bytes: u64) {
        let mut blocks: Vec<u32> = self.blocks.by_clean().take(N_RUNS).collect();
        let most = blocks.len() + N_RUNS;
        self.blocks.at_least(bytes, |block| {
            blocks.push(block);
            (blocks.len() == most).then_some(())
        });
        let pieces = blocks.iter().flat_map(|&block| self.blocks.pieces(block).take(N_PIECES));
        let uses = last_uses(pieces.map(|(_, tag)| tag).filter(|&tag| !self.order.has_event(tag)));
        for &tag in &uses {
            // Without one the memory is not to be had.
            let _ = self.order.ensure_event(tag, &*self.driver);
        }
        for _ in 0..N_LOOKS {
            if uses.iter().all(|&tag| self.order.has_passed(tag, &*self.driver)) {
                break;
            }
        }
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
}
