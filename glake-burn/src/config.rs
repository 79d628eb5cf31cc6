//! What [`install`](crate::install) is told.

use glake_hook::Mode;

/// What is one allocation of glake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// A page of cubecl, from which it carves tensors. The pool sees few, large allocations, and what
    /// is lost inside the pages stays lost.
    Page,
    /// A tensor. The pool sees all that the program does, and memory of one tensor serves the next of
    /// any size. cubecl's own bookkeeping grows with the number of live tensors: a few microseconds an
    /// allocation at some thousands of them, in the device's thread.
    #[default]
    Tensor,
}

/// How to install glake under burn.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(crate) hook: glake_hook::Config,
    pub(crate) granularity: Granularity,
}

impl Config {
    /// Each tensor an allocation, no limit but the device's.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is one allocation, in [`Gpu::run`](crate::Gpu::run).
    #[must_use]
    pub fn granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// The most bytes of a device that the pool may hold.
    #[must_use]
    pub fn limit_bytes(mut self, limit_bytes: u64) -> Self {
        self.hook = self.hook.limit_bytes(limit_bytes);
        self
    }

    /// Whether the pool stitches late or keeps the least memory.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.hook = self.hook.mode(mode);
        self
    }

    /// Everything else that the hook can be told.
    #[must_use]
    pub fn hook(mut self, hook: glake_hook::Config) -> Self {
        self.hook = hook;
        self
    }
}
