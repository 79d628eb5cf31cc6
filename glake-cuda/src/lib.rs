//! glake's driver seam over the CUDA driver API.
//!
//! [`open`] finds the driver at run time, so a program that uses this crate builds and starts on
//! machines without CUDA and gets [`OpenError::NoDriver`] there. The result, [`CudaDriver`],
//! implements every trait of [`glake_core::driver`]; pools, the transfer engine and the KV cache
//! sit on those traits and never see CUDA.
//!
//! This is glake's unsafe crate. What keeps its safe surface sound:
//!
//! - The driver keeps a map of the reservations, mappings, handles, streams, events, reads and host
//!   memory that it handed out, and refuses all others before CUDA is called. Foreign memory and
//!   streams enter through one unsafe function, [`CudaDriver::adopt`].
//! - Host memory crosses an asynchronous call as an owned buffer, which the table of held memory or a
//!   *reaper* keeps until an event behind the copy has passed. The reaper is polled at later calls and
//!   never blocks. Borrowed slices appear only in calls that block until the copy is done, at the
//!   latest at their end. Copies with host memory are refused on a stream that is being captured into
//!   a graph, which could be replayed.
//! - Events and streams are never destroyed while a call may use them.
//! - Dropping a [`Mapping`] or [`DeviceBuffer`] hands its range to the reaper, which unmaps it when
//!   all work of the contexts that can reach it has passed.
//!
//! Layers, each using only those above it: `probe` (is there a driver, with which symbols), `call`
//! (symbol to `Result`), `host` (pinned memory), `kernels` (the PTX module), `driver` (the map and
//! the traits), `memory` and `buffer` (owned memory for direct users).
//!
//! ```no_run
//! use glake_core::driver::VirtualMemory;
//! use glake_core::units::DeviceId;
//!
//! let driver = glake_cuda::open()?;
//! println!("{:?}", driver.memory_info(DeviceId(0))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod buffer;
mod call;
mod driver;
mod host;
mod kernels;
mod memory;
mod probe;

pub use buffer::{DeviceBuffer, PendingVec};
pub use driver::{CudaDriver, Foreign, open};
pub use host::PinnedBytes;
pub use memory::{Mapping, PhysicalHandle, Reservation};
pub use probe::OpenError;
