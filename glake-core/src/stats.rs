//! What a pool says of itself.

use std::fmt;

/// Figures of a pool at one moment. All sizes in bytes;
/// `requested ≤ allocated ≤ reserved` always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Live bytes as asked for.
    pub requested_bytes: u64,
    /// Live bytes set aside, rounding included.
    pub allocated_bytes: u64,
    /// Physical bytes held.
    pub reserved_bytes: u64,
    /// The most that `requested_bytes` has been.
    pub peak_requested_bytes: u64,
    /// The most that `allocated_bytes` has been.
    pub peak_allocated_bytes: u64,
    /// The most that `reserved_bytes` has been.
    pub peak_reserved_bytes: u64,
    /// Free bytes in whole free handles, which can be stitched or given back.
    pub stitchable_bytes: u64,
    /// The largest free run of addresses.
    pub largest_free_bytes: u64,
    /// Bytes mapped a second time at an address that is no longer their home.
    pub stale_bytes: u64,
    /// Addresses in the arena without memory of their own.
    pub hole_bytes: u64,
    /// Live allocations.
    pub n_live: u64,
    /// Allocations made so far.
    pub n_allocations: u64,
    /// Frees made so far.
    pub n_frees: u64,
    /// Allocations that needed a driver call.
    pub n_misses: u64,
    /// Gathers of free handles into one run made so far.
    pub n_stitches: u64,
    /// Bytes moved to a new home by those gathers.
    pub stitched_bytes: u64,
    /// Runs stitched before that were made one again without a driver call.
    pub n_revived: u64,
    /// Allocations that failed, for lack of memory or in the driver; refused requests do not count.
    pub n_failures: u64,
}

impl Stats {
    /// Free bytes: reserved, not allocated.
    #[must_use]
    pub const fn free_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes)
    }

    /// The share of the free bytes that no request can get: neither in the largest free run nor
    /// in whole free handles. 0 where any request up to all free bytes can be served.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn fragmentation_ratio(&self) -> f64 {
        let free = self.free_bytes();
        let usable = self.stitchable_bytes.max(self.largest_free_bytes);
        if free == 0 { 0.0 } else { free.saturating_sub(usable) as f64 / free as f64 }
    }

    /// Peak requested over peak reserved bytes, 1 where nothing was reserved.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn utilization(&self) -> f64 {
        if self.peak_reserved_bytes == 0 {
            1.0
        } else {
            self.peak_requested_bytes as f64 / self.peak_reserved_bytes as f64
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        write!(
            f,
            "requested {} MiB, allocated {} MiB, reserved {} MiB (peak {} / {} MiB), stitched {} MiB in {} \
             gathers, holes {} MiB, fragmentation {:.1} %",
            self.requested_bytes / MIB,
            self.allocated_bytes / MIB,
            self.reserved_bytes / MIB,
            self.peak_requested_bytes / MIB,
            self.peak_reserved_bytes / MIB,
            self.stitched_bytes / MIB,
            self.n_stitches,
            self.hole_bytes / MIB,
            100.0 * self.fragmentation_ratio()
        )
    }
}
