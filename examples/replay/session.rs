//! One trace, replayed and measured.

use std::sync::Arc;
use std::time::Instant;

use glake_core::alloc::AllocError;
use glake_core::driver::{Call, Driver, DriverError, Ledger};
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::units::{DeviceId, PAGE_BYTES, StreamId};
use glake_testkit::oracle::Oracle;
use glake_testkit::replay::{Both, Budget, Bytes, Check, Cost, Measure, Outcome, Plan, Sample, Silent, run};
use glake_testkit::spy::Spy;

use crate::figures::{Checked, CheckedBytes, Figures};
use crate::policy::{Make, Mode, Policy};
use crate::time::Time;

/// How to replay.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The allocator.
    pub policy: Policy,
    /// The mode of glake's pool.
    pub mode: Mode,
    /// Physical memory over the peak of requested bytes.
    pub cap: Option<f64>,
    /// glake's pool stitches only above this.
    pub stitch_above_bytes: Option<u64>,
    /// What is looked at beside the figures.
    pub beside: Beside,
    /// Nanoseconds of device work ahead of each pattern.
    pub delay_ns: u64,
    /// The simulated device lags this far behind the host, in milliseconds of the trace's time.
    pub gpu_lag_ms: f64,
}

/// What is looked at beside the figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The oracle.
    pub oracle: Option<()>,
    /// Real bytes.
    pub bytes: Option<()>,
}

/// Why a replay did not end.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The pool could not be made.
    #[error("the pool could not be made: {0}")]
    Pool(#[from] AllocError),
    /// The driver failed.
    #[error("the driver failed: {0}")]
    Driver(#[from] DriverError),
}

/// The figures of a replay, and the samples for a picture.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// The figures.
    pub figures: Figures,
    /// Bytes over time.
    pub samples: Vec<Sample>,
}

/// How many samples a picture has, about.
const SAMPLES: usize = 2000;
const DEVICE: DeviceId = DeviceId(0);
/// The loop without clocks is repeated; the fastest counts.
const TIMED_LOOPS: usize = 3;

impl Setup {
    /// The physical limit in bytes, whole pages.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a factor from the command line, not negative"
    )]
    fn limit_bytes(&self, plan: &Plan) -> Option<u64> {
        let limit = |cap: f64| (cap.max(0.0) * plan.peak_requested_bytes as f64) as u64;
        self.cap.map(|cap| limit(cap) / PAGE_BYTES * PAGE_BYTES)
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast that saturates")]
    fn lag_ns(&self) -> u64 {
        (self.gpu_lag_ms * 1e6) as u64
    }

    fn make(&self, plan: &Plan) -> Make {
        Make {
            policy: self.policy,
            mode: self.mode,
            limit_bytes: self.limit_bytes(plan),
            stitch_above_bytes: self.stitch_above_bytes,
        }
    }

    /// A new simulated driver whose memory is what the limit says.
    fn sim(&self, plan: &Plan) -> Arc<SimDriver> {
        let mut config = SimConfig::h200(1);
        if let Some(bytes) = self.limit_bytes(plan) {
            config = config.memory_bytes(bytes);
        }
        if self.lag_ns() > 0 {
            config = config.completion(Completion::Lag(self.lag_ns()));
        }
        Arc::new(config.build())
    }

    /// Replays `plan` on simulated drivers: once for the figures, and some times without any for
    /// the host's time.
    pub fn on_sim(&self, plan: &Plan) -> Result<Replayed, Failure> {
        let sim = self.sim(plan);
        let time = (self.lag_ns() > 0).then(|| Time::new(Arc::clone(&sim), plan));
        let mut replayed = self.measured(plan, sim, DEVICE, time)?;
        if self.beside == Beside::default() {
            let mut fastest = f64::INFINITY;
            for _ in 0..TIMED_LOOPS {
                let sim: Arc<dyn Driver> = self.sim(plan);
                fastest = fastest.min(self.host_ns_per_op(plan, &sim, DEVICE)?);
            }
            replayed.figures.ns_per_op_mean = Some(fastest);
        }
        "sim".clone_into(&mut replayed.figures.device);
        Ok(replayed)
    }

    /// Replays `plan` on a GPU: once for the figures, with real bytes, and once for the host's time.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "for GPUs"))]
    pub fn on_device(
        &self,
        plan: &Plan,
        driver: &Arc<dyn Driver>,
        device: DeviceId,
    ) -> Result<Replayed, Failure> {
        let mut replayed = self.measured(plan, Arc::clone(driver), device, None)?;
        if self.beside.oracle.is_none() {
            let ns = self.host_ns_per_op(plan, driver, device)?;
            replayed.figures.ns_per_op_mean = Some(ns);
        }
        replayed.figures.device = format!("cuda:{}", device.0);
        Ok(replayed)
    }

    /// Host nanoseconds per operation of the whole loop, nothing beside it.
    fn host_ns_per_op(
        &self,
        plan: &Plan,
        driver: &Arc<dyn Driver>,
        device: DeviceId,
    ) -> Result<f64, Failure> {
        let streams = streams(&**driver, device, plan)?;
        let mut pools = self.make(plan).pools(driver, device, streams)?;
        Ok(timed(plan, || run(plan, &mut pools, &mut Silent)))
    }

    /// Replays `plan` on `device` of `driver`.
    fn measured(
        &self,
        plan: &Plan,
        driver: Arc<dyn Driver>,
        device: DeviceId,
        time: Option<Time<'_>>,
    ) -> Result<Replayed, Failure> {
        let spy = Spy::new(driver);
        let driver: Arc<dyn Driver> = spy.clone();
        let streams = streams(&*driver, device, plan)?;
        let before = driver.ledger(device)?;
        let mut pools = self.make(plan).pools(&driver, device, streams.clone())?;
        let set_up = Cost::between(&before, &driver.ledger(device)?);
        let budget = Budget { ms: 1.0, ms_per_gib: self.mode.budget_ms_per_gib() };
        let sample_every = plan.steps.len() / SAMPLES;
        let measure = Measure::new(Arc::clone(&spy), device, plan.last_third(), sample_every, budget);
        let check = self.beside.oracle.map(|()| Check(Oracle::over(spy)));
        let bytes = self.beside.bytes.map(|()| Bytes::new(Arc::clone(&driver), self.delay_ns));
        let mut watch = Both(Both(time, bytes), Both(check, measure));
        let outcome = run(plan, &mut pools, &mut watch);
        let Both(Both(_, bytes), Both(check, measure)) = watch;
        let mut figures = self.figures(plan, &measure, set_up, &driver.ledger(device)?, outcome);
        if let Some(bytes) = bytes {
            figures.bytes = Some(CheckedBytes {
                pending_gathers: bytes.n_pending_gathers(),
                corrupted_words: bytes.corrupted_words(&streams)?,
            });
        }
        figures.gathers = pools.allocators().iter().map(|pool| pool.stats().n_stitches).sum();
        figures.check = check.map(|check| checked(&check.0));
        Ok(Replayed { figures, samples: measure.samples().to_vec() })
    }

    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    fn figures(
        &self,
        plan: &Plan,
        measure: &Measure,
        set_up: Cost,
        ledger: &Ledger,
        outcome: Outcome,
    ) -> Figures {
        let longest = measure.longest();
        let all = set_up.and(&measure.total());
        let (waits, wall_ms) = (all.of(Call::Wait).n, plan.wall_ms_from(0));
        let calls =
            || Call::ALL.into_iter().map(|call| (call.name(), all.of(call))).filter(|(_, cost)| cost.n > 0);
        Figures {
            policy: self.policy.name(),
            mode: self.mode.name(),
            n_streams: plan.n_streams,
            gpu_lag_ms: self.gpu_lag_ms,
            ops: plan.steps.len(),
            limit_bytes: self.limit_bytes(plan),
            peak_requested_bytes: plan.peak_requested_bytes,
            peak_physical_bytes: ledger.peak_physical_bytes,
            utilization: ratio(plan.peak_requested_bytes, ledger.peak_physical_bytes),
            driver_calls: all.n_calls,
            driver_calls_last_third: measure.in_last_third().n_calls,
            driver_ms: all.ms(),
            driver_ms_last_third: measure.in_last_third().ms(),
            events: all.of(Call::Record).n,
            waits,
            waits_per_s: if wall_ms > 0.0 { waits as f64 / wall_ms * 1e3 } else { 0.0 },
            synchronizations: all.of(Call::Synchronize).n,
            freed_bytes: measure.freed_bytes(),
            events_per_16mib_freed: per_16mib(all.of(Call::Record).n, measure.freed_bytes()),
            driver_calls_by_call: calls().map(|(name, cost)| (name, cost.n)).collect(),
            driver_ms_by_call: calls().map(|(name, cost)| (name, cost.ms())).collect(),
            wall_ms,
            wall_ms_last_third: plan.wall_ms_from(plan.last_third()),
            longest_allocation_ms: longest.ms,
            longest_allocation_mapped_bytes: longest.mapped_bytes,
            longest_allocation_over_budget_ms: longest.over_budget_ms,
            failed_allocations: outcome.n_refused,
            first_failure: outcome.first_refusal.map(|error| error.to_string()),
            failed_frees: outcome.n_failed_frees,
            ..Figures::default()
        }
    }
}

fn streams(driver: &dyn Driver, device: DeviceId, plan: &Plan) -> Result<Vec<StreamId>, DriverError> {
    (0..plan.n_streams).map(|_| driver.create_stream(device)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 1.0 } else { a as f64 / b as f64 }
}

/// How many of `n` come on 16 MiB of `bytes`.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn per_16mib(n: u64, bytes: u64) -> f64 {
    if bytes == 0 { 0.0 } else { n as f64 / (bytes as f64 / f64::from(16 << 20)) }
}

/// Nanoseconds that `work` takes for each operation of `plan`.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
#[allow(clippy::disallowed_methods, reason = "an example measures the host's time")]
fn timed<T>(plan: &Plan, work: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed();
    drop(result);
    elapsed.as_nanos() as f64 / plan.steps.len().max(1) as f64
}

fn checked(oracle: &Oracle) -> Checked {
    let findings = oracle.findings();
    Checked {
        out_of_order_reuses: findings.n_out_of_order_reuses,
        overlaps: findings.n_overlaps,
        unmapped: findings.n_unmapped,
        moved: findings.n_moved,
    }
}
