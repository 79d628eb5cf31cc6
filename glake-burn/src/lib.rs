//! burn's tensors in glake's pool.
//!
//! burn 0.22 reaches CUDA through cubecl, which has no allocator that a program can fill in. glake stands
//! one level lower, under the driver's own allocation functions ([`glake_hook`]), and this crate does what
//! burn and cubecl need beside it:
//!
//! - [`install`] sets cubecl to the stream-ordered allocation calls, which tell the pool where memory is
//!   used, and puts the hook in place. It comes before the first use of burn.
//! - [`Gpu::run`] runs a program's work so that each tensor is an allocation of glake
//!   ([`Granularity::Tensor`]). As it comes, cubecl asks for pages as large as the largest tensor it has
//!   seen, divides them, and keeps them: what is lost to fragmentation is lost inside those pages, where
//!   no allocator underneath can reach it.
//! - [`Gpu::run_on_reused_stream`] is for threads that come and go. cubecl keeps a memory of its own for
//!   each thread that ever used the device; here a finished thread's memory serves the next one.
//! - [`Gpu::collect`] and [`Gpu::trim`] give back what cubecl and glake hold for nobody.
//! - With the feature `cuda`: burn's devices and tensors as arguments, `Glake::gpu`, `Glake::address`,
//!   `Glake::owns`; and `Gpu::load`, which loads safetensors files into a module over every link of the machine.
//!
//! ```no_run
//! # #[cfg(feature = "cuda")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use burn_tensor::{Device, Tensor};
//!
//! let glake = glake_burn::install(glake_burn::Config::new())?;
//! let device = Device::cuda(0);
//! let gpu = glake.gpu(&device)?;
//! let sum = gpu.run(|| Tensor::<2>::ones([1024, 1024], &device).sum().into_scalar::<f32>());
//! println!("{sum} {}", gpu.memory_stats());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cuda"))]
//! # fn main() {}
//! ```
//!
//! cubecl runs every operation of a device in one thread of its own. What a thread-bound interface of the
//! hook would mean by "this thread" is that one; [`Gpu::tagged`] knows it.
#![forbid(unsafe_code)]

mod config;
mod error;
mod glake;
mod gpu;
mod lease;
#[cfg(feature = "cuda")]
mod load;
#[cfg(any(feature = "cuda", test))]
mod naming;
pub mod settings;
mod tags;
#[cfg(feature = "cuda")]
mod tensors;

pub use config::{Config, Granularity};
pub use cubecl_runtime::client::Client;
pub use error::{CollectError, InstallError};
pub use glake::{Glake, install};
pub use glake_hook;
pub use glake_hook::checkpoint::Checkpoint;
pub use glake_hook::{
    AllocError, Defragmented, DeviceId, DevicePtr, Mode, OptionError, PassedOn, Recording, Stats,
};
pub use gpu::Gpu;
#[cfg(feature = "cuda")]
pub use load::{Applied, LoadError};
#[cfg(any(feature = "cuda", test))]
pub use naming::Origin;
#[cfg(feature = "cuda")]
pub use tensors::TensorError;
