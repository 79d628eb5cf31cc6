//! A stand-in for `libcuda.so.1` on plain host memory: glake's CUDA code, and whole programs over
//! cudarc, run with it on machines without a GPU.
//!
//! Built as a shared object it has CUDA's functions; built as a library it has [`enter`], by which
//! a test comes to run over the shared object, and [`StandIn`], by which it steers it.
//!
//! - *Memory* is the host's: reservations are mapped without access, handles are pieces of memory
//!   files, mappings show them where they are, several at once. What work may touch is looked up before
//!   it does; a violation ends the context with `CUDA_ERROR_ILLEGAL_ADDRESS`, as a GPU would, and never
//!   the process.
//! - *Streams* are queues. Work runs inside the call that needs it, or earlier, as [`Completion`]
//!   says; there is no thread. The same calls give the same order.
//! - *Captures* keep CUDA's rules of what breaks them; graphs run what was captured.
//! - *Kernels* are those of glake's own module. Others do nothing.
//! - *The environment*: `GLAKE_STANDIN_DEVICES` (2), `GLAKE_STANDIN_MEMORY` (bytes of each device, 8 GiB),
//!   `GLAKE_STANDIN_COMPLETION` (`immediate`, `manual` or `lag:N`), `GLAKE_STANDIN_FAIL`
//!   (`function:n:code`, separated by commas: the n-th call of the function fails).
//!
//! Layers, each using only those above it: `code` and `abi` (CUDA's numbers and structures), `raw` (the
//! host's memory), `machine` (everything behind the one lock), `call` (how a call enters), `api` (the
//! functions), `control` and `steer` (what tests say).

mod abi;
pub mod api;
mod call;
mod code;
pub mod control;
mod machine;
mod raw;
mod steer;

pub use steer::{Completion, StandIn, alone, enter, enter_with, links};
