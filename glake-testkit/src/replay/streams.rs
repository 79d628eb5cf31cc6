//! Other streams for a trace: made-up programs of several streams, from real ones of one.
//!
//! Objects are freed on the stream that they were allocated on. The streams of the trace itself do not
//! matter.

use glake_core::driver::pattern_word;

use super::{Plan, Step};

/// Sizes below stay on the first stream.
const LARGE_BYTES: u64 = 1 << 20;
/// One size in so many goes to the second stream.
const ONE_IN: u64 = 10;

impl Plan {
    /// The same operations on two streams: one in ten of the sizes from 1 MiB on lives on the second,
    /// whichever by a hash of the size; everything else on the first.
    #[must_use]
    pub fn with_second_stream(self) -> Self {
        self.on_streams(2, |bytes| {
            let is_second = bytes >= LARGE_BYTES && pattern_word(0, bytes).is_multiple_of(ONE_IN);
            u32::from(is_second)
        })
    }

    /// The same operations on `n_streams` streams that allocations take in turn.
    #[must_use]
    pub fn round_robin(self, n_streams: u32) -> Self {
        let mut turns = (0..n_streams.max(1)).cycle();
        self.on_streams(n_streams.max(1), |_| turns.next().unwrap_or(0))
    }

    /// The same operations, each allocation on the stream that `choose` says for its size.
    fn on_streams(mut self, n_streams: u32, mut choose: impl FnMut(u64) -> u32) -> Self {
        self.n_streams = n_streams as usize;
        for step in &mut self.steps {
            if let Step::Allocate { stream, bytes, .. } = step {
                *stream = choose(*bytes);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic;

    fn plan() -> Plan {
        Plan::from_events(synthetic::steps(3, 2).into_iter().map(Ok)).unwrap()
    }

    /// Sizes and streams of the allocations.
    fn allocations(plan: &Plan) -> Vec<(u64, u32)> {
        let of = |step: &Step| match *step {
            Step::Allocate { bytes, stream, .. } => Some((bytes, stream)),
            Step::Free { .. } => None,
        };
        plan.steps.iter().filter_map(of).collect()
    }

    #[test]
    fn a_size_is_on_one_stream_and_few_large_ones_on_the_second() {
        let second = plan().with_second_stream();
        let mut streams = std::collections::BTreeMap::new();
        for (bytes, stream) in allocations(&second) {
            assert_eq!(*streams.entry(bytes).or_insert(stream), stream, "{bytes} bytes");
            assert!(stream == 0 || bytes >= LARGE_BYTES);
        }
        let large: Vec<u32> = streams.range(LARGE_BYTES..).map(|(_, &stream)| stream).collect();
        let share = 100 * large.iter().sum::<u32>() as usize / large.len();
        assert!((5..=15).contains(&share), "{share} % of {} sizes", large.len());
        assert_eq!((second.n_streams, allocations(&second).len()), (2, allocations(&plan()).len()));
    }

    #[test]
    fn round_robin_takes_turns_and_changes_nothing_else() {
        let turns = plan().round_robin(3);
        let streams: Vec<_> = allocations(&turns).iter().take(7).map(|allocation| allocation.1).collect();
        assert_eq!((streams, turns.n_streams), (vec![0, 1, 2, 0, 1, 2, 0], 3));
        let back = turns.round_robin(1);
        assert_eq!((back.steps, back.at_us), (plan().steps, plan().at_us));
    }
}
