//! What [`install`](crate::install) is told.

use glake_hook::{Mode, OptionError};

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
///
/// ```
/// use glake_burn::{Config, Granularity, Mode};
/// let config = Config::from_env()?.granularity(Granularity::Tensor).mode(Mode::Compact);
/// # let _ = config;
/// # Ok::<(), glake_burn::OptionError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// What the environment's `GLAKE_*` variables describe, each tensor an allocation.
    ///
    /// # Errors
    /// [`OptionError::BadValue`] for the first variable that makes no sense.
    pub fn from_env() -> Result<Self, OptionError> {
        Ok(Self { hook: glake_hook::Config::from_env()?, granularity: Granularity::default() })
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

    /// The configuration with an option of the pool set by its name in the environment, such as
    /// `GLAKE_POOL_STITCH_ABOVE`.
    ///
    /// # Errors
    /// [`OptionError::Unknown`], which lists the names; [`OptionError::BadValue`].
    pub fn with(mut self, name: &str, value: &str) -> Result<Self, OptionError> {
        self.hook = self.hook.with(name, value)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_name_add_to_the_others() {
        let config = Config::new().mode(Mode::Compact).with("GLAKE_POOL_LIMIT", "3GiB").unwrap();
        assert_eq!(config, Config::new().limit_bytes(3 << 30).mode(Mode::Compact));
        assert_eq!(Config::new().with("GLAKE_POOL", "1"), Err(OptionError::Unknown));
    }
}
