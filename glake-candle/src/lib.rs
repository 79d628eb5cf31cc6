//! glake's pool under programs of [candle](candle_core), which stay as they are.
//!
//! ```no_run
//! use candle_core::{Device, Tensor};
//!
//! let glake = glake_candle::install(glake_candle::Config::from_env()?)?; // first thing in `main`
//! let device = Device::new_cuda(0)?;
//! glake.self_test(&device)?;
//! let _workspace = glake.cublas_workspace(&device)?;
//!
//! let x = Tensor::zeros((64, 1024), candle_core::DType::F32, &device)?;
//! assert!(glake.owns(&x));
//! println!("{}", glake.memory_stats(&device)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! candle calls the CUDA driver through cudarc, which links to it; [`glake_hook`] stands in front of the
//! driver's functions. This crate says the same in candle's terms: [`Glake`] speaks of devices and tensors,
//! [`Glake::zeros`] makes tensors in memory that was asked of the pool itself, and [`Glake::load`] loads a model's
//! safetensors files to the pool over every link of the machine.
//!
//! Without the feature `cuda`, candle is built for the CPU alone: everything compiles, and [`install`] returns
//! [`InstallError::CpuBuild`].
//!
//! Layers, each using only those above it: `error`, `foreign` (memory that crosses to candle; the only unsafe
//! code), `weights` (pure: what a checkpoint's tensors are to candle), `tensors` (where a tensor lies, tensors in the
//! pool), `glake` (what a program says).

mod error;
#[cfg(feature = "cuda")]
mod foreign;
mod glake;
#[cfg(feature = "cuda")]
mod tensors;
#[cfg(not(feature = "cuda"))]
#[path = "tensors_without_cuda.rs"]
mod tensors;
mod weights;

pub use error::{Error, InstallError};
pub use glake::{Glake, Workspace, install};
pub use tensors::Element;

pub use glake_hook;
pub use glake_hook::checkpoint::Checkpoint;
pub use glake_hook::{
    AllocError, Config, Defragmented, DeviceId, DevicePtr, LoadError, Mode, OptionError, PassedOn, Recording,
    Stats, Tag,
};
