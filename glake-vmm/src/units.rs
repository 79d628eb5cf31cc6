//! Offsets inside an arena.

use glake_core::units::PAGE_BYTES;

/// Granule of large objects in bytes.
pub(crate) const GRANULE_BYTES: u64 = 512;

/// Bytes per page, as an index would have it.
pub(crate) const PAGE: u64 = PAGE_BYTES;

/// No block, handle or unit.
pub(crate) const NONE: u32 = u32::MAX;

/// The page in which byte `at` of the arena lies.
pub(crate) const fn page_of(at: u64) -> usize {
    // An arena has at most 2^32 pages (checked when it is reserved), so this cannot truncate.
    (at / PAGE) as usize
}

/// The first byte of `page`.
pub(crate) const fn page_start(page: usize) -> u64 {
    page as u64 * PAGE
}

/// An index as the tables store it; tables never reach `u32::MAX` entries.
pub(crate) fn index(i: usize) -> u32 {
    u32::try_from(i).unwrap_or(NONE)
}
