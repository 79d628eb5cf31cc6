//! A GPU memory pool that stitches free pieces together.
#![forbid(unsafe_code)]

mod blocks;
#[cfg(test)]
mod check;
mod commit;
mod config;
mod free_index;
mod homing;
mod order;
mod plan;
mod pool;
mod room;
mod sizing;
mod slots;
mod small;
mod spare;
mod stale;
#[cfg(test)]
mod tests;
mod trim;
mod units;

pub use config::{Config, Mode};
pub use pool::StitchPool;
pub use trim::Defragmented;
