//! How large a batch should be, from what was seen: pure.
//!
//! Two things bound a batch. Its sequences have to fit, though nobody knows how long they become: the mean length and its
//! spread, as seen, say how many fit with a chance of about 99 %. And a step has to end in time: a step's time is taken to be
//! a constant, and so much for each sequence and for each token that is held, fitted to the steps that were seen.

use crate::fit::Fit;

/// Weight of what was seen before, when something new is.
const KEEP: f64 = 0.99;
/// So many standard deviations above the mean, 99 % of sums are below.
const SURE: f64 = 2.33;

/// What was seen of lengths and of steps. Older things weigh less: after 100 more, a third.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    weight: f64,
    sum: f64,
    squares: f64,
    held: f64,
    steps: Fit,
}

/// A batch that is suggested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Batch {
    /// Sequences that should run together.
    pub n_sequences: u32,
    /// What keeps it from being larger.
    pub bound: Bound,
}

/// What bounds a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bound {
    /// Blocks.
    Memory,
    /// The time of a step.
    Latency,
    /// Nothing was seen yet: it is one sequence, to see.
    Nothing,
}

impl Seen {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A sequence has ended, with so many tokens.
    pub fn sequence(&mut self, prompt_tokens: u32, output_tokens: u32) {
        let (prompt, output) = (f64::from(prompt_tokens), f64::from(output_tokens));
        self.weight = KEEP * self.weight + 1.0;
        self.sum = KEEP * self.sum + prompt + output;
        self.squares = KEEP * self.squares + (prompt + output).powi(2);
        // What it held on average while it ran.
        self.held = KEEP * self.held + prompt + output / 2.0;
    }

    /// A step of `n_sequences` sequences that held `n_tokens` tokens took so long.
    pub fn step(&mut self, n_sequences: u32, n_tokens: u64, time_ns: u64) {
        self.steps.see([f64::from(n_sequences), to_f64(n_tokens)], to_f64(time_ns), KEEP);
    }

    /// How many sequences should run, in `n_blocks` blocks and with steps of at most `target_ns`; at least one.
    #[must_use]
    pub fn suggest_batch(&self, n_blocks: u32, block_tokens: u32, target_ns: u64) -> Batch {
        if self.weight <= 0.0 {
            return Batch { n_sequences: 1, bound: Bound::Nothing };
        }
        let by_memory =
            self.by_memory(f64::from(n_blocks) * f64::from(block_tokens), f64::from(block_tokens));
        let by_latency = self.by_latency(to_f64(target_ns));
        if by_latency < by_memory {
            Batch { n_sequences: whole(by_latency), bound: Bound::Latency }
        } else {
            Batch { n_sequences: whole(by_memory), bound: Bound::Memory }
        }
    }

    /// The largest n with n·mean + SURE·σ·√n ≤ tokens.
    fn by_memory(&self, tokens: f64, block_tokens: f64) -> f64 {
        // Ends of blocks are half empty.
        let mean = self.sum / self.weight + block_tokens / 2.0;
        let variance = (self.squares / self.weight - (self.sum / self.weight).powi(2)).max(0.0);
        let spread = SURE * variance.sqrt();
        let root = ((spread * spread + 4.0 * mean * tokens).sqrt() - spread) / (2.0 * mean);
        root * root
    }

    fn by_latency(&self, target_ns: f64) -> f64 {
        let Some([fixed, per_sequence, per_token]) = self.steps.solve() else { return f64::INFINITY };
        let each = per_sequence + per_token * self.held / self.weight;
        if each > 0.0 { (target_ns - fixed) / each } else { f64::INFINITY }
    }
}

#[allow(clippy::cast_precision_loss, reason = "times and counts that were measured")]
fn to_f64(value: u64) -> f64 {
    value as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates, which is meant"
)]
fn whole(value: f64) -> u32 {
    (value.floor() as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 ms, 10 µs for each sequence, 20 ns for each token.
    fn seen(lengths: &[(u32, u32)]) -> Seen {
        let mut seen = Seen::new();
        for &(prompt, output) in lengths.iter().cycle().take(500) {
            seen.sequence(prompt, output);
        }
        for n in 1..=64_u32 {
            for tokens in [100 * u64::from(n), 1000 * u64::from(n)] {
                seen.step(n, tokens, 1_000_000 + 10_000 * u64::from(n) + 20 * tokens);
            }
        }
        seen
    }

    #[test]
    fn memory_bounds_equal_lengths_exactly() {
        // 160 tokens and half a block each.
        let batch = seen(&[(100, 60)]).suggest_batch(10_501, 16, u64::MAX);
        assert_eq!(batch, Batch { n_sequences: 1000, bound: Bound::Memory });
    }

    #[test]
    fn lengths_that_vary_leave_room() {
        let seen = seen(&[(10, 10), (1000, 1000)]);
        let batch = seen.suggest_batch(10_000, 16, u64::MAX);
        // 155 of the mean length would fit; 2.33 standard deviations less is 129.
        assert!((125..=135).contains(&batch.n_sequences), "{batch:?}");
    }

    #[test]
    fn latency_bounds_by_what_steps_took() {
        // A sequence holds 150 tokens: 13 µs. 14 ms are 1000 of them.
        let batch = seen(&[(100, 100)]).suggest_batch(1 << 20, 16, 14_000_000);
        assert!((995..=1000).contains(&batch.n_sequences), "{batch:?}");
        assert_eq!(batch.bound, Bound::Latency);
        let batch = seen(&[(100, 100)]).suggest_batch(1 << 20, 16, 10);
        assert_eq!(batch, Batch { n_sequences: 1, bound: Bound::Latency });
    }

    #[test]
    fn nothing_seen_suggests_one() {
        let batch = Seen::new().suggest_batch(1000, 16, 1_000_000);
        assert_eq!(batch, Batch { n_sequences: 1, bound: Bound::Nothing });
    }

    #[test]
    fn what_is_new_weighs_more() {
        let mut seen = seen(&[(2000, 0)]);
        let before = seen.suggest_batch(10_000, 16, u64::MAX).n_sequences;
        for _ in 0..1000 {
            seen.sequence(200, 0);
        }
        assert!(seen.suggest_batch(10_000, 16, u64::MAX).n_sequences > 5 * before);
    }
}
