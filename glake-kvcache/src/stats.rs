//! The cache in figures.

/// What happened since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Blocks of prompts that were started, those that are not full included.
    pub prompt_blocks: u64,
    /// Of them, those that were found.
    pub hit_blocks: u64,
    /// Blocks whose contents were given up for others.
    pub evictions: u64,
    /// Blocks that were given away.
    pub allocated_blocks: u64,
}

/// A cache in figures. Blocks are used, free or retired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Blocks that the cache was made with.
    pub n_blocks: u32,
    /// Blocks that sequences or pins use.
    pub n_used: u32,
    /// Free blocks whose contents can be found.
    pub n_cached: u32,
    /// Free blocks, cached ones included.
    pub n_free: u32,
    /// Blocks of pages that were given back.
    pub n_retired: u32,
    /// Free blocks that are set apart.
    pub n_reserved: u32,
    /// Blocks that are pinned.
    pub n_pinned: u32,
    /// What happened.
    pub counts: Counts,
}
