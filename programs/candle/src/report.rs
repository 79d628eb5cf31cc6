//! What a program did and what it cost.
#![allow(clippy::print_stdout, reason = "programs talk to people")]

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::memory::Figures;

/// The times and results of the steps.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    times: Vec<Duration>,
    n_tokens: usize,
    losses: Vec<f32>,
    bits: Fnv,
}

impl Steps {
    /// Does a step's work and notes how long it took.
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock; nothing is decided by it"
    )]
    pub(crate) fn time<T, E>(
        &mut self,
        n_tokens: usize,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let start = Instant::now();
        let done = work()?;
        self.push(start.elapsed(), n_tokens);
        Ok(done)
    }

    fn push(&mut self, time: Duration, n_tokens: usize) {
        self.times.push(time);
        self.n_tokens += n_tokens;
    }

    /// A loss, or another number that says whether two runs did the same.
    pub(crate) fn push_loss(&mut self, loss: f32) {
        self.losses.push(loss);
        self.bits.push(&loss.to_bits().to_le_bytes());
    }

    pub(crate) fn push_token(&mut self, token: u32) {
        self.bits.push(&token.to_le_bytes());
    }
}

/// FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    program: &'static str,
    dtype: &'static str,
    device: String,
    glake: bool,
    n_steps: usize,
    step_ms_mean: f64,
    step_ms_p50: f64,
    tokens_per_s: f64,
    /// Of the bits of all losses and tokens: equal where two runs computed the same.
    hash: String,
    losses: Vec<f32>,
    memory: Option<Figures>,
}

/// What a report says of the run apart from its steps.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) program: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) device: String,
    pub(crate) glake: bool,
}

impl Report {
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn new(setting: Setting, steps: Steps, memory: Option<Figures>) -> Self {
        let mut times = steps.times;
        times.sort_unstable();
        let n_steps = times.len();
        let seconds = times.iter().sum::<Duration>().as_secs_f64();
        Self {
            program: setting.program,
            dtype: setting.dtype,
            device: setting.device,
            glake: setting.glake,
            n_steps,
            step_ms_mean: seconds * 1e3 / n_steps as f64,
            step_ms_p50: times.get(n_steps / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3),
            tokens_per_s: steps.n_tokens as f64 / seconds,
            hash: format!("{:016x}", steps.bits.0),
            losses: steps.losses,
            memory,
        }
    }

    /// # Errors
    /// Where a number has no form in JSON.
    pub(crate) fn print(&self, json: bool) -> serde_json::Result<()> {
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        let glake = if self.glake { "with glake" } else { "without glake" };
        println!("{} in {} on {}, {glake}", self.program, self.dtype, self.device);
        println!("steps            {}", self.n_steps);
        println!("time per step    {:.2} ms, median {:.2} ms", self.step_ms_mean, self.step_ms_p50);
        println!("tokens per s     {:.0}", self.tokens_per_s);
        if let (Some(first), Some(last)) = (self.losses.first(), self.losses.last()) {
            println!("loss             {first} first, {last} last");
        }
        println!("hash of results  {}", self.hash);
        if let Some(memory) = &self.memory {
            println!("{memory}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        let mut hash = Fnv::default();
        hash.push(b"foobar");
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
    }

    #[test]
    fn figures_are_of_all_steps() {
        let mut steps = Steps::default();
        for (ms, n_tokens) in [(30, 10), (10, 20), (20, 30)] {
            steps.push(Duration::from_millis(ms), n_tokens);
            steps.push_loss(1.0);
        }
        let setting = Setting { program: "train", dtype: "f32", device: "cpu".to_owned(), glake: false };
        let report = Report::new(setting, steps, None);
        assert!((report.step_ms_mean - 20.0).abs() < 1e-9);
        assert!((report.step_ms_p50 - 20.0).abs() < 1e-9);
        assert!((report.tokens_per_s - 1000.0).abs() < 1e-6);
        assert_eq!(report.losses, [1.0; 3]);
    }

    #[test]
    fn one_bit_changes_the_hash() {
        let hash = |loss| {
            let mut steps = Steps::default();
            steps.push_loss(loss);
            steps.bits.0
        };
        assert_ne!(hash(1.0), hash(f32::from_bits(1f32.to_bits() + 1)));
        assert_eq!(hash(1.0), hash(1.0));
    }
}
