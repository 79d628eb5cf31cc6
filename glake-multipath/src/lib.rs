//! One copy over every link of the machine.
//!
//! A copy between host and GPU usually runs over one PCIe link, however many the machine has. [`Engine`]
//! cuts it into chunks for *lanes*: one over the device's own link, and one over the link of each peer,
//! through a ring of staging slots there and on over the link between the GPUs. Lanes pull chunks, so a slow
//! one takes fewer; a lane that fails hands its chunks on. Memory that is not pinned, and files, go through
//! pinned slots that several threads fill.
//!
//! Copies from one device to another ([`copy`](Transfer::copy)) go between peers, or through the host where devices are none.
//!
//! Who waits for a transfer is its last word:
//!
//! - the caller: [`write`](Transfer::write) and [`read`](Transfer::read), of borrowed memory;
//! - a [`Pending`], which is a future and needs no runtime: [`submit_write`](Transfer::submit_write) and
//!   [`submit_read`](Transfer::submit_read). A worker does the same as the caller would, with memory that it owns;
//! - a stream: [`enqueue_write`](Transfer::enqueue_write) and [`enqueue_read`](Transfer::enqueue_read). Everything is
//!   enqueued in the call, behind what the stream has and before what follows there. No lane can pull then, so
//!   chunks are dealt by what lanes are expected to do.
//!
//! Layers, each using only those above it: `chunk`, `pace` and `split` (pure: what to move next, how much of it, and
//! where), [`topology`] (where the devices sit, and which of them can relay for which), `ring` and `lane` (what moves
//! it), `run`, `staged` and `enqueue` (one transfer: of pinned memory, through `slots` between its `ends`, and for a
//! stream), `jobs` and `pending` (threads, and who waits for them), `lanes`, `busy`, `control` and `engine` (what
//! transfers share). [`calibrate`] measures what lanes carry, for the engine to know it beforehand.
//!
//! Above them, with the feature `safetensors` (on by default), stands `checkpoint`: a model's files, and where their
//! tensors go on a device.
//!
//! The engine knows the driver seam ([`glake_core::driver`]) only.
#![forbid(unsafe_code)]

pub mod calibrate;
#[cfg(feature = "safetensors")]
pub mod checkpoint;
pub mod topology;

mod busy;
mod chunk;
mod config;
mod control;
mod ends;
mod engine;
mod enqueue;
mod error;
mod jobs;
mod lane;
mod lanes;
mod mark;
mod pace;
mod pending;
mod report;
mod ring;
mod run;
mod slots;
mod split;
mod staged;
mod sync;
#[cfg(test)]
mod tests;

pub use chunk::Segment;
pub use config::Config;
pub use control::{Cancel, OnProgress, Priority, Progress, SharedProgress};
pub use engine::{Done, Engine, EnqueuedRead, FailedRead, FailedTransfer, Transfer};
pub use error::{InvalidSegments, TransferError};
pub use lane::{Direction, Path};
pub use pending::Pending;
pub use report::{LaneReport, Report};
