//! What glake's crates are tested with.
//!
//! - [`caching`]: a model of `PyTorch`'s caching allocator, the peer;
//! - [`laws`]: what every driver has to do, bound to an implementation by
//!   [`driver_laws!`](crate::driver_laws) from its `tests/` directory (bound from the unit tests
//!   of `glake-core`, the traits would exist twice);
//! - [`replay`]: traces through pools, measured.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    reason = "laws are tests: they panic to fail"
)]

pub mod caching;
pub mod laws;
pub mod replay;
