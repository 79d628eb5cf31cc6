//! glake's pool under unmodified CUDA programs.
//!
//! Programs that allocate GPU memory through cudarc, such as candle's and burn's, call a handful of
//! functions of the CUDA driver. This crate stands in front of them, for the whole process: after
//! [`install`], memory comes from one stitching pool for each device
//! ([`SharedPool`](glake_vmm::SharedPool)), under all streams and threads. Nothing else changes.
//!
//! ```no_run
//! let glake = glake_hook::install(glake_hook::Config::from_env()?)?;
//! // ... the program, unchanged ...
//! println!("{}", glake.memory_stats(glake_hook::DeviceId(0)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two ways in
//!
//! Where the program *links* to the driver (cudarc's `dynamic-linking`: candle), this crate's functions of the
//! same names take the place of the driver's when the program is linked. Where the program *loads* the driver at
//! run time (burn), it is given a small library called `libcuda.so` that jumps to this crate's functions for what
//! is hooked and leaves everything else to the driver; `install` loads it from memory, and has to come before the
//! first call of CUDA. `install` serves both, and proves by a call through cudarc that it is active.
//!
//! # What is hooked
//!
//! Device memory: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocAsync`, `cuMemAllocFromPoolAsync` and the frees; with
//! the feature `runtime` also `cudaMallocAsync` and `cudaFreeAsync`. Pinned host memory is kept for the next request.
//! What the driver says of memory (`cuMemGetInfo`, `cuMemGetAddressRange`) is said of the pool's too, peers reach
//! it (`cuCtxEnablePeerAccess`, `cuMemPoolSetAccess`), and `cuIpcGetMemHandle` refuses it. Streams that are destroyed, captures and
//! synchronisations are noted. Large copies between the host and the pools' memory (`cuMemcpyHtoD`, `cuMemcpyDtoH`,
//! `cuMemcpy`, and the same on streams) go over several links if [`Config::multipath`] says so; [`Glake::load`] takes a
//! model's files that way in any case. Requests that are not the pool's go to the driver: zero bytes, contexts other than a
//! device's primary one, memory pools that are shared. Frees of foreign memory too.
//!
//! Layers, each using only those above it: `real` (the driver's own functions), `multipath` and `config`, `hook` (the
//! state, and how a call gets to it), `device`, `streams`, `captures`, `serve` (device memory), `pools`, `pinned`,
//! `copies`, `info`, `exports` (the functions), `shim`, `install`, `glake` (what a program says), `load`
//! (checkpoints).

mod captures;
mod causes;
mod config;
mod copies;
mod device;
mod exports;
mod glake;
mod hook;
mod info;
mod install;
mod load;
mod multipath;
mod pinned;
mod pools;
mod real;
#[cfg(all(feature = "runtime", unix))]
mod runtime;
mod serve;
mod shim;
mod streams;

pub use causes::WithCauses;
pub use config::{Config, OptionError};
pub use glake::{Copied, Glake, PassedOn, Recording, Tag};
pub use install::{InstallError, install, install_at_first_call, install_unproved};
pub use load::LoadError;
pub use multipath::Multipath;

pub use glake_core::alloc::AllocError;
pub use glake_core::driver::DriverError;
pub use glake_core::stats::Stats;
pub use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};
pub use glake_cuda::OpenError;
pub use glake_multipath::{Report, TransferError, checkpoint};
pub use glake_vmm::{Defragmented, Mode};
