//! The simulated clock on the trace's time.

use std::sync::Arc;

use glake_core::sim::SimDriver;
use glake_testkit::replay::{Observed, Plan, Pools, Watch};

/// Keeps a simulated clock on the trace's time. Driver calls take their part of it: the clock is ahead
/// only where they take longer than the program did.
#[derive(Debug)]
pub struct Time<'a> {
    sim: Arc<SimDriver>,
    plan: &'a Plan,
    /// What the clock says at time 0 of the trace.
    began_ns: u64,
}

impl<'a> Time<'a> {
    /// Time 0 of the trace is now.
    pub fn new(sim: Arc<SimDriver>, plan: &'a Plan) -> Self {
        let began_ns = sim.now_ns();
        Self { sim, plan, began_ns }
    }
}

impl Watch for Time<'_> {
    fn see(&mut self, step: usize, _: &Pools, observed: Observed<'_>) {
        if let Observed::Allocating(_) | Observed::Freeing(_) = observed {
            let at_ns = self.began_ns + self.plan.at_us[step] * 1000;
            self.sim.advance(at_ns.saturating_sub(self.sim.now_ns()));
        }
    }
}
