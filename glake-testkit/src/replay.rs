//! Replaying traces through pools: the engine under the `replay` example and the golden figures.
//!
//! A trace is read whole into a [`Plan`], whose objects are numbered densely, so that the loop in
//! [`run`] does nothing but call the pools; a [`Watch`] beside it measures, checks or draws.

mod bytes;
mod check;
mod measure;
mod plan;
mod run;
mod streams;

pub use bytes::Bytes;
pub use check::Check;
pub use measure::{Budget, CallCost, Cost, Longest, Measure, Sample};
pub use plan::{Plan, Step};
pub use run::{Both, Observed, Outcome, Pools, Silent, Watch, run};
