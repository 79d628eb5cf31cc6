//! Figures of a run, from the driver's ledger.

use std::sync::Arc;

use glake_core::driver::{Driver, Ledger};
use glake_core::units::DeviceId;

use super::{Observed, Pools, Watch};

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

/// Measures driver calls, driver time and bytes per operation.
#[derive(Debug)]
pub struct Measure {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    last_third: usize,
    sample_every: usize,
    budget_ms_per_gib: f64,
    before: Ledger,
    stitched_before: u64,
    at_last_third: Option<Ledger>,
    longest: Longest,
    samples: Vec<Sample>,
}

/// What every allocation may take, whatever it maps.
const BUDGET_MS: f64 = 1.0;

impl Measure {
    /// Measures on `device` of `driver`. The last third begins at operation `last_third`;
    /// a sample is taken every `sample_every` operations; an allocation may take 1 ms and
    /// `budget_ms_per_gib` for each GiB that it maps.
    ///
    /// # Panics
    /// If the driver has no such device.
    #[must_use]
    pub fn new(
        driver: Arc<dyn Driver>,
        device: DeviceId,
        last_third: usize,
        sample_every: usize,
        budget_ms_per_gib: f64,
    ) -> Self {
        let before = driver.ledger(device).expect("the device exists");
        let longest = Longest { over_budget_ms: -BUDGET_MS, ..Longest::default() };
        Self {
            driver,
            device,
            last_third,
            sample_every: sample_every.max(1),
            budget_ms_per_gib,
            before,
            stitched_before: 0,
            at_last_third: None,
            longest,
            samples: Vec::new(),
        }
    }

    /// The ledger of now.
    ///
    /// # Panics
    /// If the device is gone.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.driver.ledger(self.device).expect("the device exists")
    }

    /// The ledger at the beginning of the last third.
    #[must_use]
    pub fn ledger_at_last_third(&self) -> Ledger {
        self.at_last_third.unwrap_or_else(|| self.ledger())
    }

    /// The longest allocations.
    #[must_use]
    pub const fn longest(&self) -> Longest {
        self.longest
    }

    /// The samples in order.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// What the allocation that just ended cost.
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    fn allocation_ended(&mut self, pools: &Pools) {
        let after = self.ledger();
        if after.n_calls() == self.before.n_calls() {
            return;
        }
        let stitched = stitched_bytes(pools);
        let grown = after.physical_bytes.saturating_sub(self.before.physical_bytes);
        let mapped_bytes = grown + (stitched - self.stitched_before);
        self.stitched_before = stitched;
        let ms = (after.driver_ns - self.before.driver_ns) as f64 / 1e6;
        let budget_ms = BUDGET_MS + self.budget_ms_per_gib * mapped_bytes as f64 / (1u64 << 30) as f64;
        self.longest.over_budget_ms = self.longest.over_budget_ms.max(ms - budget_ms);
        if ms > self.longest.ms {
            (self.longest.ms, self.longest.mapped_bytes) = (ms, mapped_bytes);
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

fn stitched_bytes(pools: &Pools) -> u64 {
    pools.allocators().iter().map(|allocator| allocator.stats().stitched_bytes).sum()
}

impl Watch for Measure {
    fn see(&mut self, step: usize, pools: &Pools, observed: Observed<'_>) {
        match observed {
            Observed::Allocating(_) | Observed::Freeing(_) => {
                if step >= self.last_third && self.at_last_third.is_none() {
                    self.at_last_third = Some(self.ledger());
                }
                self.before = self.ledger();
            }
            Observed::Allocated(_) | Observed::Refused(_) => {
                self.allocation_ended(pools);
                if step.is_multiple_of(self.sample_every) {
                    self.sample(step, pools);
                }
            }
            Observed::Freed(_) => {
                if step.is_multiple_of(self.sample_every) {
                    self.sample(step, pools);
                }
            }
        }
    }
}
