//! A GPU memory pool that stitches free pieces together.
//!
//! [`StitchPool`] reserves a long range of addresses, its arena, and maps physical handles of a few
//! pages in it. A request takes the best fitting free run of addresses. Where none fits, handles
//! without a live byte are mapped a second time, side by side at new addresses, and what they lack is
//! created; their old addresses are unmapped later, when the stream's work that may use them is done.
//! So nothing is copied, no live memory moves, and no call but trim, defragment, a lower limit and
//! close waits for the device.
//!
//! One pool serves all streams of a device. Free bytes remember the stream and the stretch of its work
//! that used them last, and go to another stream once that is done or behind a wait for an event. Memory
//! for every stream and the host ([`SharedPool::allocate_for_all`]) is what the device is done with.
//!
//! A handle that moves is mapped at two addresses for a while. The pool relies on such aliases being
//! coherent between completed operations, on one stream or on several that wait for one another by
//! events, and on nothing more: programs whose kernels overlap on a stream (programmatic dependent
//! launch) or talk to each other while they run take [`Mode::Pinned`], in which no handle moves.
//!
//! The pool knows the driver seam ([`glake_core::driver`]) only and takes `&mut self`. [`SharedPool`]
//! shares it between threads, with a fast path for each stream.
#![forbid(unsafe_code)]

mod access;
mod background;
mod blocks;
mod capture;
#[cfg(test)]
mod check;
mod commit;
mod config;
mod counters;
mod find;
mod for_all;
mod free;
mod free_index;
mod held;
mod homing;
mod order;
mod pieces;
mod plan;
mod pool;
mod room;
mod shared;
mod sizing;
mod slots;
mod small;
mod spare;
mod stale;
mod streams;
mod sync;
#[cfg(test)]
mod tests;
mod thread;
mod trim;
mod units;
mod worker;

pub use background::Step;
pub use capture::GraphMemory;
pub use config::{Config, Mode};
pub use pool::StitchPool;
pub use shared::SharedPool;
pub use streams::Mark;
pub use trim::Defragmented;
pub use worker::Worker;
