//! What a pool counts, and the figures made of it.

use glake_core::alloc::AllocError;
use glake_core::stats::Stats;

use crate::pool::StitchPool;
use crate::units::PAGE;

/// Running figures for [`Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) requested_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) peak_requested_bytes: u64,
    pub(crate) peak_allocated_bytes: u64,
    pub(crate) peak_reserved_bytes: u64,
    pub(crate) n_allocations: u64,
    pub(crate) n_frees: u64,
    pub(crate) n_misses: u64,
    pub(crate) n_failures: u64,
    pub(crate) n_stitches: u64,
    pub(crate) stitched_bytes: u64,
    pub(crate) n_revived: u64,
}

impl StitchPool {
    /// The share of the free bytes that no request can get; see
    /// [`Stats::fragmentation_ratio`].
    #[must_use]
    pub fn fragmentation_ratio(&self) -> f64 {
        self.memory_stats().fragmentation_ratio()
    }

    /// The figures of this moment; the same as [`Allocator::stats`](glake_core::alloc::Allocator::stats).
    #[must_use]
    pub fn memory_stats(&self) -> Stats {
        let c = &self.counters;
        let n_allocations = c.n_allocations + self.shards.n_allocations;
        let n_frees = c.n_frees + self.shards.n_frees;
        Stats {
            requested_bytes: self.requested_bytes(),
            allocated_bytes: self.allocated_bytes(),
            reserved_bytes: self.physical_bytes(),
            peak_requested_bytes: c.peak_requested_bytes,
            peak_allocated_bytes: c.peak_allocated_bytes,
            peak_reserved_bytes: c.peak_reserved_bytes,
            stitchable_bytes: self.blocks.clean_bytes(),
            largest_free_bytes: self.blocks.largest_bytes(),
            stale_bytes: self.slots.n_stale_pages() * PAGE,
            hole_bytes: self.slots.n_hole_pages() * PAGE,
            n_live: n_allocations - n_frees,
            n_allocations,
            n_frees,
            n_misses: c.n_misses,
            n_stitches: c.n_stitches,
            stitched_bytes: c.stitched_bytes,
            n_revived: c.n_revived,
            n_failures: c.n_failures,
        }
    }

    /// Counts a failure of a request for `bytes`, which is what its report speaks of.
    pub(crate) fn failed(&mut self, mut error: AllocError, bytes: u64) -> AllocError {
        self.counters.n_failures += 1;
        if let AllocError::OutOfMemory(report) = &mut error {
            report.requested_bytes = bytes;
        }
        error
    }

    /// Counts a request that was served.
    #[inline]
    pub(crate) fn count(&mut self, bytes: u64, rounded: u64) {
        let c = &mut self.counters;
        c.n_allocations += 1;
        c.requested_bytes += bytes;
        c.allocated_bytes += rounded;
        self.spent.n_ops += 1;
        self.note_peaks();
    }

    #[inline]
    pub(crate) fn note_peaks(&mut self) {
        let (requested, allocated) = (self.requested_bytes(), self.allocated_bytes());
        let c = &mut self.counters;
        c.peak_requested_bytes = c.peak_requested_bytes.max(requested);
        c.peak_allocated_bytes = c.peak_allocated_bytes.max(allocated);
    }

    /// To be called when memory was created.
    pub(crate) fn note_peak_reserved(&mut self) {
        let reserved = self.physical_bytes();
        self.counters.peak_reserved_bytes = self.counters.peak_reserved_bytes.max(reserved);
    }

    #[inline]
    fn requested_bytes(&self) -> u64 {
        self.counters.requested_bytes + self.shards.requested_bytes
    }

    #[inline]
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.counters.allocated_bytes + self.shards.allocated_bytes
    }
}
