//! What a run reached: times, losses and bytes, as text and as JSON.

use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Args;

/// Times and losses, step by step.
#[derive(Debug)]
pub struct Steps {
    began: Instant,
    times: Vec<Duration>,
    positions: Vec<usize>,
    losses: Vec<f32>,
}

impl Steps {
    /// Starts the clock of the first step.
    #[must_use]
    pub fn begin() -> Self {
        Self { began: Instant::now(), times: Vec::new(), positions: Vec::new(), losses: Vec::new() }
    }

    /// Ends a step that saw `n_positions` and came to `loss`; the next one begins.
    pub fn end(&mut self, n_positions: usize, loss: f32) {
        let now = Instant::now();
        self.times.push(now - self.began);
        self.began = now;
        self.positions.push(n_positions);
        self.losses.push(loss);
    }
}

/// glake's own figures at the end of a run: peaks, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Pool {
    /// What the callers asked for.
    pub requested_peak_bytes: u64,
    /// What they got, rounded.
    pub allocated_peak_bytes: u64,
    /// Memory that the pool held.
    pub reserved_peak_bytes: u64,
    /// Allocations served.
    pub n_allocations: u64,
    /// Allocations that went past the pool to the driver's own allocator.
    pub n_passed_on: u64,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program.
    pub program: String,
    /// The command line.
    pub args: Args,
    /// Steps at the beginning that the times leave out.
    pub n_left_out: usize,
    /// Mean time of a step after the warm-up, in milliseconds.
    pub step_ms_mean: f64,
    /// Median time of a step after the warm-up, in milliseconds.
    pub step_ms_p50: f64,
    /// Positions per second after the warm-up.
    pub positions_per_s: f64,
    /// The whole loop, in seconds.
    pub total_s: f64,
    /// The first loss.
    pub loss_first: f32,
    /// The last loss.
    pub loss_last: f32,
    /// A hash of the bits of all losses.
    pub loss_hash: String,
    /// Peak of the memory that cubecl holds at the end of a step, by its own account.
    pub cubecl_reserved_peak_bytes: Option<u64>,
    /// Peak of the memory in use on the device above the bare context's, by the driver's account.
    pub device_peak_bytes: Option<u64>,
    /// glake's account, where it is on.
    pub glake: Option<Pool>,
}

impl Report {
    /// Sums `steps` up.
    #[must_use]
    pub fn new(program: &str, args: &Args, steps: &Steps) -> Self {
        let first = args.warm_up.min(steps.times.len().saturating_sub(1));
        let times = steps.times.get(first..).unwrap_or_default();
        let seconds: f64 = times.iter().map(Duration::as_secs_f64).sum();
        let positions: usize = steps.positions.get(first..).unwrap_or_default().iter().sum();
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let p50 = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        Self {
            program: program.to_owned(),
            args: args.clone(),
            n_left_out: first,
            step_ms_mean: seconds * 1e3 / as_f64(times.len().max(1)),
            step_ms_p50: p50.as_secs_f64() * 1e3,
            positions_per_s: as_f64(positions) / seconds.max(f64::MIN_POSITIVE),
            total_s: steps.times.iter().map(Duration::as_secs_f64).sum(),
            loss_first: steps.losses.first().copied().unwrap_or(f32::NAN),
            loss_last: steps.losses.last().copied().unwrap_or(f32::NAN),
            loss_hash: format!("{:016x}", hash(&steps.losses)),
            cubecl_reserved_peak_bytes: None,
            device_peak_bytes: None,
            glake: None,
        }
    }

    /// Adds this report to `path` as one line of JSON.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&self, path: &Path) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        let line = serde_json::to_string(self)?;
        writeln!(file, "{line}")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} steps in {:.1} s", self.program, self.args.steps, self.total_s)?;
        writeln!(
            f,
            "step            mean {:.2} ms, p50 {:.2} ms, {:.0} positions/s, without the first {}",
            self.step_ms_mean, self.step_ms_p50, self.positions_per_s, self.n_left_out
        )?;
        writeln!(
            f,
            "loss            {:.6} -> {:.6}, hash {}",
            self.loss_first, self.loss_last, self.loss_hash
        )?;
        if let Some(pool) = &self.glake {
            writeln!(f, "glake requested {}", Mib(pool.requested_peak_bytes))?;
            writeln!(f, "glake allocated {}", Mib(pool.allocated_peak_bytes))?;
            writeln!(f, "glake reserved  {}", Mib(pool.reserved_peak_bytes))?;
            writeln!(
                f,
                "glake served    {} allocations, {} passed on",
                pool.n_allocations, pool.n_passed_on
            )?;
        }
        if let Some(bytes) = self.cubecl_reserved_peak_bytes {
            writeln!(f, "cubecl reserved {}", Mib(bytes))?;
        }
        if let Some(bytes) = self.device_peak_bytes {
            writeln!(f, "device in use   {} above the bare context", Mib(bytes))?;
        }
        Ok(())
    }
}

struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB at the peak", self.0 >> 20)
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn as_f64(count: usize) -> f64 {
    count as f64
}

/// FNV-1a over the bits.
fn hash(losses: &[f32]) -> u64 {
    losses.iter().flat_map(|loss| loss.to_bits().to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn one_changed_bit_changes_the_hash() {
        let losses = [0.25f32, 0.5];
        assert_eq!(hash(&losses), hash(&losses));
        assert_ne!(hash(&losses), hash(&[0.25, f32::from_bits(0.5f32.to_bits() ^ 1)]));
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
    }

    #[test]
    fn the_warm_up_is_left_out_of_the_times() {
        let ms = Duration::from_millis;
        let steps = Steps {
            began: Instant::now(),
            times: vec![ms(1000), ms(10), ms(30), ms(20)],
            positions: vec![1, 10, 30, 20],
            losses: vec![3.0, 2.0, 1.5, 1.0],
        };
        let report = Report::new("test", &Args::parse_from(["test", "--warm-up", "1"]), &steps);
        assert!((report.step_ms_mean - 20.0).abs() < 1e-9);
        assert!((report.step_ms_p50 - 20.0).abs() < 1e-9);
        assert!((report.positions_per_s - 1000.0).abs() < 1e-6);
        assert!((report.total_s - 1.06).abs() < 1e-9);
        assert!(report.loss_first > report.loss_last);
        let short = Report::new("test", &Args::parse_from(["test"]), &steps).to_string();
        assert!(
            short.contains("mean 20.00 ms, p50 20.00 ms, 1000 positions/s, without the first 3"),
            "{short}"
        );
    }
}
