//! The allocators to replay through.

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::Driver;
use glake_core::units::{DeviceId, StreamId};
use glake_testkit::caching::Caching;
use glake_testkit::replay::Pools;

/// An allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// glake's stitching pool.
    Glake,
    /// A model of `PyTorch`'s caching allocator.
    Caching,
}

/// How the stitching pool weighs driver time against memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Handles grow with the memory held.
    Default,
    /// Handles of 2 MiB: least memory.
    Compact,
}

impl Policy {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Glake => "glake",
            Self::Caching => "caching",
        }
    }
}

impl Mode {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Compact => "compact",
        }
    }

    /// What an allocation may take in driver time for each GiB that it maps, in milliseconds.
    pub const fn budget_ms_per_gib(self) -> f64 {
        match self {
            Self::Default => 8.0,
            Self::Compact => 30.0,
        }
    }
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// The allocator.
    pub policy: Policy,
    /// The mode of glake's pool.
    pub mode: Mode,
    /// The most physical bytes.
    pub limit_bytes: Option<u64>,
    /// glake's pool stitches only above this.
    pub stitch_above_bytes: Option<u64>,
}

impl Make {
    /// Allocators for `streams`.
    pub fn pools(
        self,
        driver: &Arc<dyn Driver>,
        device: DeviceId,
        streams: Vec<StreamId>,
    ) -> Result<Pools, AllocError> {
        match self.policy {
            Policy::Caching => {
                let limit_bytes = self.limit_bytes.unwrap_or(u64::MAX);
                Ok(Pools::shared(streams, Box::new(Caching::new(Arc::clone(driver), device, limit_bytes))))
            }
            // A pool serves one stream. `Pools::shared` here, when one serves all.
            Policy::Glake => Pools::each(streams, |stream| self.glake(driver, device, stream)),
        }
    }

    fn glake(
        self,
        driver: &Arc<dyn Driver>,
        device: DeviceId,
        stream: StreamId,
    ) -> Result<Box<dyn Allocator>, AllocError> {
        let mut config = glake_vmm::Config::new(device, stream).mode(match self.mode {
            Mode::Default => glake_vmm::Mode::Default,
            Mode::Compact => glake_vmm::Mode::Compact,
        });
        if let Some(bytes) = self.limit_bytes {
            config = config.limit_bytes(bytes);
        }
        if let Some(bytes) = self.stitch_above_bytes {
            config = config.stitch_above_bytes(bytes);
        }
        Ok(Box::new(glake_vmm::StitchPool::new(Arc::clone(driver), config)?))
    }
}
