//! GPU memory without fragmentation, for Rust programs that train or serve models.
//!
//! [`Pool`] hands out typed, stream-ordered memory of a GPU. Where free memory lies in pieces, it
//! maps the pieces side by side under new addresses, *stitches* them, instead of asking the device
//! for more. Nothing is copied, live memory never moves, and no call waits for the device. One pool
//! serves all streams and threads of a device.
//!
//! The same program runs on a simulated GPU ([`sim`]) and on a real one (`cuda`):
//!
//! ```
//! use glake::sim::SimDriver;
//! use glake::{DeviceId, Pool};
//!
//! let driver = SimDriver::h200(1); // or glake::cuda::open()?
//! let pool = Pool::builder(driver, DeviceId(0)).limit_bytes(192 << 20).build()?;
//! let stream = pool.stream();
//! let a = pool.alloc::<f32>(16 << 20, stream)?; // 64 MiB
//! let b = pool.alloc::<f32>(16 << 20, stream)?;
//! let c = pool.alloc::<f32>(16 << 20, stream)?;
//! drop((a, c)); // 128 MiB are free, in two pieces
//! let d = pool.alloc::<f32>(32 << 20, stream)?; // stitched into one
//! assert_eq!(pool.stats().reserved_bytes, 192 << 20);
//! # drop((b, d));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Crates and features
//!
//! This crate gathers a family; each part can be used alone.
//!
//! | here | crate | feature | |
//! |---|---|---|---|
//! | [`alloc`], [`driver`], [`adapt`], [`stats`], [`trace`], [`units`], [`sim`] | `glake-core` | | vocabulary, the driver seam, adaptors, traces, the simulated GPU |
//! | [`vmm`] | `glake-vmm` | | the stitching pool, without types |
//! | `multipath` | `glake-multipath` | `multipath` (default) | the transfer engine: one copy over every link |
//! | `kvcache` | `glake-kvcache` | `kvcache` (default) | the books of a paged KV cache |
//! | `cuda` | `glake-cuda` | `cuda` (default) | the CUDA driver, found at run time |
//!
//! With the feature `cuda` a program still builds and starts on a machine without CUDA;
//! `cuda::open` then returns an error with advice. The feature `gpu` is for glake's own tests: it
//! makes those that need a GPU fail where there is none.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod buffer;
mod builder;
mod capture;
mod pool;
mod shared;

pub use buffer::Buffer;
pub use builder::PoolBuilder;
pub use capture::Capture;
pub use pool::Pool;

#[doc(no_inline)]
pub use bytemuck::Pod;
pub use glake_core::alloc::AllocError;
pub use glake_core::driver::{Driver, DriverError, IntoDriver};
pub use glake_core::stats::Stats;
pub use glake_core::units::{DeviceId, DevicePtr, StreamId};
pub use glake_core::{adapt, alloc, driver, sim, stats, trace, units};
pub use glake_vmm::{Defragmented, GraphMemory, Mode};

/// The CUDA driver: [`open`](cuda::open) finds it at run time.
#[cfg(feature = "cuda")]
#[cfg_attr(docsrs, doc(cfg(feature = "cuda")))]
pub mod cuda {
    pub use glake_cuda::{
        CudaDriver, DeviceBuffer, Foreign, Mapping, OpenError, PendingVec, PhysicalHandle, PinnedBytes,
        Reservation, open,
    };
}

/// The transfer engine: one copy over every link of the machine.
#[cfg(feature = "multipath")]
#[cfg_attr(docsrs, doc(cfg(feature = "multipath")))]
pub mod multipath {
    pub use glake_multipath::*;
}

/// The books of a paged KV cache.
#[cfg(feature = "kvcache")]
#[cfg_attr(docsrs, doc(cfg(feature = "kvcache")))]
pub mod kvcache {
    pub use glake_kvcache::*;
}

/// The stitching pool itself, untyped, for direct use and for adaptors: for one owner or for many
/// threads.
pub mod vmm {
    pub use glake_vmm::{Config, Defragmented, GraphMemory, Mark, Mode, SharedPool, StitchPool};
}

/// The README's lines, tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
