//! What the burn programs share: from the command line to the report.
//!
//! Nothing here knows burn, so that one version of the figures serves every version of burn.

// They measure, so they may read the clock.
#![allow(clippy::disallowed_methods, reason = "a program, which measures")]

mod args;
mod data;
mod device_memory;
mod report;
mod start;

pub use args::{Allocator, Args, Device, Glake, Granularity};
pub use data::{Batch, Batches, N_FEATURES};
pub use device_memory::{Memory, Peak};
pub use report::{Pool, Report, Steps};
pub use start::{Failure, start};
