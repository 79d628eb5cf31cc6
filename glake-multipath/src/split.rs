//! Which lane takes the next chunk, where all are handed out before the first has moved: list scheduling by
//! what the lanes are expected to do.

/// What a lane is expected to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Bytes per millisecond.
    pub(crate) rate: u64,
    /// How much later than its bytes alone would take it is done, in nanoseconds.
    pub(crate) latency_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    rate: u64,
    /// When it is done with what it was given.
    done_ns: u64,
}

impl Load {
    fn done_with(self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 1_000_000 / u128::from(self.rate);
        self.done_ns.saturating_add(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// What the lanes were given so far, by their number.
#[derive(Clone, Debug)]
pub(crate) struct Split(Vec<Load>);

impl Split {
    pub(crate) fn new(lanes: impl IntoIterator<Item = Expected>) -> Self {
        let load = |lane: Expected| Load { rate: lane.rate.max(1), done_ns: lane.latency_ns };
        Self(lanes.into_iter().map(load).collect())
    }

    /// Gives a chunk of `bytes` to the lane that is done with it first, the first of equals; `None` if
    /// there is no lane.
    pub(crate) fn give(&mut self, bytes: u64) -> Option<usize> {
        let (at, lane) = self.0.iter_mut().enumerate().min_by_key(|(_, lane)| lane.done_with(bytes))?;
        lane.done_ns = lane.done_with(bytes);
        Some(at)
    }

    /// Takes a lane out; those behind it move up.
    pub(crate) fn remove(&mut self, at: usize) {
        self.0.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn split(lanes: &[(u64, u64)]) -> Split {
        Split::new(lanes.iter().map(|&(rate, latency_ns)| Expected { rate, latency_ns }))
    }

    #[test]
    fn equal_lanes_take_turns_and_a_slow_one_takes_fewer() {
        let mut equal = split(&[(MIB, 0), (MIB, 0)]);
        assert_eq!([MIB; 4].map(|bytes| equal.give(bytes)), [Some(0), Some(1), Some(0), Some(1)]);
        let mut slow = split(&[(MIB, 0), (3 * MIB, 0)]);
        let taken = [MIB; 8].map(|bytes| slow.give(bytes).unwrap());
        assert_eq!(taken.iter().filter(|at| **at == 0).count(), 2, "{taken:?}");
    }

    #[test]
    fn what_is_short_goes_where_the_latency_is_least() {
        let mut lanes = split(&[(MIB, 10_000_000), (MIB, 2_500_000)]);
        let taken = [MIB; 9].map(|bytes| lanes.give(bytes).unwrap());
        assert_eq!(taken, [1, 1, 1, 1, 1, 1, 1, 1, 0], "the other when it would be done earlier");
    }

    #[test]
    fn without_lanes_nothing_is_given() {
        let mut lanes = split(&[(0, 0)]);
        assert_eq!(lanes.give(u64::MAX), Some(0), "a rate of 0 counts as 1");
        assert_eq!(lanes.give(u64::MAX), Some(0));
        lanes.remove(0);
        assert_eq!(lanes.give(1), None);
    }

    proptest! {
        #[test]
        fn no_lane_could_have_taken_the_last_chunk_earlier(
            lanes in proptest::collection::vec((1u64..100 * MIB, 0u64..1 << 30), 1..8),
            chunks in proptest::collection::vec(1u64..64 * MIB, 1..60),
        ) {
            let mut split = split(&lanes);
            for bytes in chunks {
                let before = split.clone();
                let at = split.give(bytes).unwrap();
                let done = split.0[at].done_ns;
                prop_assert!(before.0.iter().all(|lane| lane.done_with(bytes) >= done));
                let others = |split: &Split| {
                    split.0.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, l)| l.done_ns).collect::<Vec<_>>()
                };
                prop_assert_eq!(others(&before), others(&split));
            }
        }
    }
}
