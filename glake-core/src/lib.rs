//! The vocabulary of glake.
//!
//! Everything that the pools, engines and integrations of glake have in common lives here, and
//! nothing here knows CUDA:
//!
//! - [`units`]: ids, addresses, sizes;
//! - [`driver`]: the seam under which a GPU driver sits, simulated or real;
//! - [`alloc`]: [`Allocator`](alloc::Allocator), what every pool implements;
//! - [`adapt`]: allocators made of an allocator (locked, limited, recorded, tagged);
//! - [`typed`]: values of one type in device memory;
//! - [`stats`]: what a pool says of itself;
//! - [`trace`]: allocation traces, read and written;
//! - [`sim`]: a simulated GPU driver with real bytes, real rules and a virtual clock.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod alloc;
pub mod driver;
pub mod sim;
pub mod stats;
pub mod trace;
pub mod typed;
pub mod units;
