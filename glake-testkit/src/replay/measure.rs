//! Figures of a run, from the driver's ledger.

use std::sync::Arc;

use glake_core::driver::{Call, Driver, Ledger};
use glake_core::units::DeviceId;

use super::{Observed, Pools, Watch};
use crate::spy::Spy;

/// Bytes at one moment, summed over the pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Index of the operation.
    pub step: usize,
    /// Live bytes as asked for.
    pub requested_bytes: u64,
    /// Live bytes set aside.
    pub allocated_bytes: u64,
    /// Physical bytes by the driver's ledger.
    pub reserved_bytes: u64,
}

/// Driver calls and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Calls of any kind.
    pub n_calls: u64,
    /// Nanoseconds in them.
    pub ns: u64,
    by_call: [CallCost; Call::ALL.len()],
}

/// Driver calls of one kind and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCost {
    /// Calls.
    pub n: u64,
    /// Nanoseconds in them.
    pub ns: u64,
}

impl Cost {
    /// What lies between two readings of a ledger.
    #[must_use]
    pub fn between(before: &Ledger, after: &Ledger) -> Self {
        let n_calls = after.n_calls() - before.n_calls();
        let by_call =
            |call| CallCost { n: after.n(call) - before.n(call), ns: after.ns(call) - before.ns(call) };
        let by_call = if n_calls > 0 { Call::ALL.map(by_call) } else { Default::default() };
        Self { n_calls, ns: after.driver_ns - before.driver_ns, by_call }
    }

    /// The calls of one kind.
    #[must_use]
    pub const fn of(&self, call: Call) -> CallCost {
        self.by_call[call as usize]
    }

    fn add(&mut self, other: &Self) {
        if other.n_calls == 0 {
            return;
        }
        self.n_calls += other.n_calls;
        self.ns += other.ns;
        for (sum, more) in self.by_call.iter_mut().zip(other.by_call) {
            sum.n += more.n;
            sum.ns += more.ns;
        }
    }

    /// The calls of both.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.add(other);
        self
    }

    /// The time in milliseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn ms(self) -> f64 {
        self.ns as f64 / 1e6
    }
}

impl CallCost {
    /// The time in milliseconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn ms(self) -> f64 {
        self.ns as f64 / 1e6
    }
}

/// The longest allocations by driver time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Longest {
    /// The longest one, in milliseconds.
    pub ms: f64,
    /// The bytes that it mapped.
    pub mapped_bytes: u64,
    /// The largest excess of an allocation over its budget in milliseconds; negative if all are
    /// within.
    pub over_budget_ms: f64,
}

/// What an allocation may take in driver time.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Whatever it maps, in milliseconds.
    pub ms: f64,
    /// More for each GiB that it maps, in milliseconds.
    pub ms_per_gib: f64,
}

/// Measures the operations of pools: driver calls, driver time, bytes.
///
/// Only calls inside the operations count, whatever else is done with the driver between them.
#[derive(Debug)]
pub struct Measure {
    spy: Arc<Spy>,
    device: DeviceId,
    last_third: usize,
    sample_every: usize,
    budget: Budget,
    before: (Ledger, u64),
    total: Cost,
    in_last_third: Cost,
    longest: Longest,
    freed_bytes: u64,
    samples: Vec<Sample>,
}

impl Measure {
    /// Measures on `device` of `spy`. The last third begins at operation `last_third`; a sample is
    /// taken every `sample_every` operations.
    #[must_use]
    pub fn new(
        spy: Arc<Spy>,
        device: DeviceId,
        last_third: usize,
        sample_every: usize,
        budget: Budget,
    ) -> Self {
        let longest = Longest { over_budget_ms: -budget.ms, ..Longest::default() };
        Self {
            spy,
            device,
            last_third,
            sample_every: sample_every.max(1),
            budget,
            before: (Ledger::default(), 0),
            total: Cost::default(),
            in_last_third: Cost::default(),
            longest,
            freed_bytes: 0,
            samples: Vec::new(),
        }
    }

    /// Driver calls of all operations.
    #[must_use]
    pub const fn total(&self) -> Cost {
        self.total
    }

    /// Driver calls of the last third of the operations.
    #[must_use]
    pub const fn in_last_third(&self) -> Cost {
        self.in_last_third
    }

    /// The longest allocations.
    #[must_use]
    pub const fn longest(&self) -> Longest {
        self.longest
    }

    /// Bytes of all frees, as asked for.
    #[must_use]
    pub const fn freed_bytes(&self) -> u64 {
        self.freed_bytes
    }

    /// The samples in order.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    fn ledger(&self) -> Ledger {
        self.spy.ledger(self.device).expect("the device exists")
    }

    fn ended(&mut self, step: usize, pools: &Pools) -> Cost {
        let cost = Cost::between(&self.before.0, &self.ledger());
        self.total.add(&cost);
        if step >= self.last_third {
            self.in_last_third.add(&cost);
        }
        if step.is_multiple_of(self.sample_every) {
            self.sample(step, pools);
        }
        cost
    }

    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    fn allocation_ended(&mut self, cost: Cost) {
        if cost.n_calls == 0 {
            return;
        }
        let mapped_bytes = self.spy.mapped_bytes() - self.before.1;
        let gib = mapped_bytes as f64 / (1u64 << 30) as f64;
        let over_budget_ms = cost.ms() - self.budget.ms - self.budget.ms_per_gib * gib;
        self.longest.over_budget_ms = self.longest.over_budget_ms.max(over_budget_ms);
        if cost.ms() > self.longest.ms {
            (self.longest.ms, self.longest.mapped_bytes) = (cost.ms(), mapped_bytes);
        }
    }

    fn sample(&mut self, step: usize, pools: &Pools) {
        let mut sample = Sample { step, reserved_bytes: self.ledger().physical_bytes, ..Sample::default() };
        for allocator in pools.allocators() {
            let stats = allocator.stats();
            sample.requested_bytes += stats.requested_bytes;
            sample.allocated_bytes += stats.allocated_bytes;
        }
        self.samples.push(sample);
    }
}

impl Watch for Measure {
    fn see(&mut self, step: usize, pools: &Pools, observed: Observed<'_>) {
        match observed {
            Observed::Allocating(_) | Observed::Freeing(_) => {
                self.before = (self.ledger(), self.spy.mapped_bytes());
            }
            Observed::Allocated(_) | Observed::Refused(_) => {
                let cost = self.ended(step, pools);
                self.allocation_ended(cost);
            }
            Observed::Freed(allocation) => {
                self.freed_bytes += allocation.bytes;
                self.ended(step, pools);
            }
        }
    }
}
