//! Tests of the shared pool, with its tables in view.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::needless_for_each,
    reason = "tests panic to fail"
)]

mod faults;
mod find;
mod for_all;
#[cfg(loom)]
mod model;
mod paths;
mod rig;
mod streams;
mod threads;
