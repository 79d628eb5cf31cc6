//! Tests of the whole pool, with its tables in view.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    clippy::needless_for_each,
    clippy::single_range_in_vec_init,
    reason = "tests panic to fail, and speak of ranges of pages"
)]

mod access;
mod background;
mod closing;
mod completeness;
mod faults;
mod giving_back;
mod planner;
mod programs;
mod reports;
mod rig;
mod streams;
