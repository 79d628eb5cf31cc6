//! What glake's crates are tested with.
//!
//! - [`allocator_laws`](mod@allocator_laws): what every allocator has to do, bound by
//!   [`allocator_laws!`](macro@crate::allocator_laws);
//! - [`caching`]: a model of `PyTorch`'s caching allocator, the peer;
//! - [`fuzzed`]: programs coded in bytes, for a fuzzer;
//! - [`laws`]: what every driver has to do, bound to an implementation by
//!   [`driver_laws!`](crate::driver_laws) from its `tests/` directory (bound from the unit tests
//!   of `glake-core`, the traits would exist twice);
//! - [`oracle`]: who owns which byte, and which stream may touch it;
//! - [`program`]: random programs, and a run of them beside a model;
//! - [`replay`]: traces through pools, measured;
//! - [`rng`]: seeded random numbers;
//! - [`spy`]: a driver that looks on;
//! - [`stream_laws`](mod@stream_laws): what every allocator has to do that serves several streams, bound by
//!   [`stream_laws!`](macro@crate::stream_laws);
//! - [`synthetic`]: generated traces.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    reason = "laws are tests: they panic to fail"
)]

pub mod allocator_laws;
pub mod caching;
pub mod fuzzed;
pub mod laws;
pub mod oracle;
pub mod program;
pub mod replay;
pub mod rng;
pub mod spy;
pub mod stream_laws;
pub mod synthetic;
