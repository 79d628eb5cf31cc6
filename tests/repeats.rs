//! Steps that repeat soon need the driver no more.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]
#![allow(unreachable_pub, dead_code, reason = "a module shared with the example `replay`")]

use std::sync::Arc;

use glake_core::driver::Driver;
use glake_core::sim::SimDriver;
use glake_core::units::DeviceId;
use glake_testkit::replay::{Observed, Plan, Pools, Watch, run};
use glake_testkit::synthetic;

#[path = "../examples/replay/policy.rs"]
mod policy;

use policy::{Make, Mode, Policy};

const STEPS: usize = 8;

/// Driver calls at the beginning of each step.
struct Calls<'a> {
    driver: &'a dyn Driver,
    starts: &'a [usize],
    at_start: Vec<u64>,
}

impl Watch for Calls<'_> {
    fn see(&mut self, step: usize, _: &Pools, observed: Observed<'_>) {
        let begins = matches!(observed, Observed::Allocating(_) | Observed::Freeing(_));
        if begins && self.starts.contains(&step) {
            self.at_start.push(self.driver.ledger(DeviceId(0)).unwrap().n_calls());
        }
    }
}

/// Driver calls in each of the steps of a generated trace.
fn calls_per_step(policy: Policy, mode: Mode, n_shapes: usize) -> Vec<u64> {
    let plan = Plan::from_events(synthetic::steps(STEPS, n_shapes).into_iter().map(Ok)).unwrap();
    let driver: Arc<dyn Driver> = Arc::new(SimDriver::h200(1));
    let stream = driver.create_stream(DeviceId(0)).unwrap();
    let make = Make { policy, mode, limit_bytes: None, stitch_above_bytes: None };
    let mut pools = make.pools(&driver, DeviceId(0), vec![stream]).unwrap();
    let starts = synthetic::step_starts(STEPS, n_shapes);
    let mut calls = Calls { driver: &*driver, starts: &starts, at_start: Vec::new() };
    assert_eq!(run(&plan, &mut pools, &mut calls).n_refused, 0);
    calls.at_start.push(driver.ledger(DeviceId(0)).unwrap().n_calls());
    calls.at_start.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Expects no driver calls once each shape has been seen often enough: twice in all for fixed
/// shapes; for two in turn, the first one comes again before the pool has seen it with the memory
/// that the second one needed, so one time more.
fn settles(policy: Policy, mode: Mode) {
    for (n_shapes, n_settling) in [(1, 2), (2, 3)] {
        let calls = calls_per_step(policy, mode, n_shapes);
        assert_eq!(calls.len(), STEPS);
        assert!(calls[0] > 0, "the first step needs memory");
        assert!(calls[n_settling..].iter().all(|&n| n == 0), "{n_shapes} shapes, step by step: {calls:?}");
    }
}

#[test]
fn caching_needs_no_driver_for_steps_that_repeat() {
    settles(Policy::Caching, Mode::Default);
}

#[test]
fn glake_needs_no_driver_for_steps_that_repeat() {
    settles(Policy::Glake, Mode::Default);
}

#[test]
fn glake_in_compact_mode_needs_no_driver_for_steps_that_repeat() {
    settles(Policy::Glake, Mode::Compact);
}
