//! From times to rates, sizes and thresholds.

use serde::{Deserialize, Serialize};

/// What a path takes: `start_ns`, and its bytes at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRate {
    /// The rate of long copies.
    pub bytes_per_ms: u64,
    /// What a copy takes beside its bytes.
    pub start_ns: u64,
}

impl PathRate {
    /// What a copy of `bytes` takes.
    #[must_use]
    pub fn ns(self, bytes: u64) -> u64 {
        self.start_ns.saturating_add(ns_at(bytes, self.bytes_per_ms))
    }
}

/// A copy that was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) bytes: u64,
    pub(super) ns: u64,
}

impl Sample {
    /// Its bytes by its time. `None` where no time passed.
    pub(super) fn bytes_per_ms(self) -> Option<u64> {
        let rate = (u128::from(self.bytes) * 1_000_000).checked_div(u128::from(self.ns))?;
        u64::try_from(rate).ok().filter(|rate| *rate > 0)
    }
}

/// The line through two samples. `None` where the larger one took no longer.
pub(super) fn fit(small: Sample, large: Sample) -> Option<PathRate> {
    let bytes = large.bytes.checked_sub(small.bytes)?;
    let rate = Sample { bytes, ns: large.ns.checked_sub(small.ns)? }.bytes_per_ms()?;
    Some(start(small, rate))
}

/// The line through a sample with that rate.
pub(super) fn start(sample: Sample, bytes_per_ms: u64) -> PathRate {
    PathRate { bytes_per_ms, start_ns: sample.ns.saturating_sub(ns_at(sample.bytes, bytes_per_ms)) }
}

fn ns_at(bytes: u64, bytes_per_ms: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000 / u128::from(bytes_per_ms.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The median; of an even number of values, the lower one of the middle. 0 if there is none.
pub(super) fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Whether `rate` is at most `percent` below `best`.
pub(super) fn is_within(rate: u64, best: u64, percent: u64) -> bool {
    u128::from(rate) * 100 >= u128::from(best) * u128::from(100 - percent.min(100))
}

/// Of chunk sizes and their rates, the smallest size within 1 % of the best rate.
pub(super) fn best_chunk(rates: &[(u64, u64)]) -> Option<u64> {
    let best = rates.iter().map(|rate| rate.1).max()?;
    rates.iter().filter(|rate| is_within(rate.1, best, 1)).map(|rate| rate.0).min()
}

/// The size of a transfer from which on a relay pays: it has moved a chunk of `least_bytes` by the time at which the
/// direct path alone has moved all.
pub(super) fn break_even_bytes(direct: PathRate, relay: PathRate, least_bytes: u64) -> u64 {
    let ns = relay.ns(least_bytes).saturating_sub(direct.start_ns);
    let bytes = (u128::from(ns) * u128::from(direct.bytes_per_ms)).div_ceil(1_000_000);
    u64::try_from(bytes).unwrap_or(u64::MAX).max(least_bytes)
}

/// The largest power of two that is moved in `ns`, between `least_bytes` and `most_bytes`.
pub(super) fn bytes_in(ns: u64, bytes_per_ms: u64, least_bytes: u64, most_bytes: u64) -> u64 {
    let bytes = u128::from(bytes_per_ms) * u128::from(ns) / 1_000_000;
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let power = bytes.checked_ilog2().map_or(0, |log| 1 << log);
    power.clamp(least_bytes.min(most_bytes), most_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const DIRECT: PathRate = PathRate { bytes_per_ms: 50_000_000, start_ns: 3_000 };

    #[test]
    fn a_line_through_two_samples() {
        let [small, large] = [MIB, 5 * MIB].map(|bytes| Sample { bytes, ns: DIRECT.ns(bytes) });
        let found = fit(small, large).unwrap();
        assert!(is_within(found.bytes_per_ms, DIRECT.bytes_per_ms, 1) && found.start_ns.abs_diff(3_000) <= 2);
        assert_eq!(DIRECT.ns(50_000_000), 1_003_000);
        let slow = Sample { bytes: 1_000_000, ns: 2_000_000 };
        assert_eq!(start(slow, 1_000_000), PathRate { bytes_per_ms: 1_000_000, start_ns: 1_000_000 });
    }

    #[test]
    fn without_time_there_is_no_rate() {
        let at = |bytes, ns| Sample { bytes, ns };
        assert_eq!(fit(at(MIB, 10), at(2 * MIB, 10)), None, "the clock stood still");
        assert_eq!(fit(at(MIB, 10), at(2 * MIB, 9)), None);
        assert_eq!(fit(at(MIB, 10), at(MIB, 20)), None, "one size only");
        assert_eq!(fit(at(2 * MIB, 10), at(MIB, 20)), None);
        assert_eq!((at(5, 0).bytes_per_ms(), at(5, 1_000_000).bytes_per_ms()), (None, Some(5)));
        assert_eq!(at(1, u64::MAX).bytes_per_ms(), None, "a rate of nothing is none");
        // A path that is faster at the start than later has no start.
        assert_eq!(start(at(MIB, 1), 1_000_000).start_ns, 0);
    }

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!([&[][..], &[7], &[9, 2], &[5, 1, 9], &[4, 1, 9, 5]].map(median), [0, 7, 2, 5, 4]);
    }

    #[test]
    fn the_smallest_chunk_within_one_percent_of_the_best() {
        assert_eq!(best_chunk(&[]), None);
        assert_eq!(best_chunk(&[(16, 1000), (8, 990), (4, 989)]), Some(8));
        assert_eq!(best_chunk(&[(4, 990), (8, 1000), (16, 800)]), Some(4), "larger is not always better");
        assert_eq!(best_chunk(&[(1, 0)]), Some(1));
    }

    #[test]
    fn a_relay_pays_from_where_it_moves_a_chunk_in_time() {
        let relay = |bytes_per_ms, start_ns| PathRate { bytes_per_ms, start_ns };
        // 1 MB over the relay takes 20 + 8 µs, of which the direct path moves 25 µs' worth.
        assert_eq!(break_even_bytes(DIRECT, relay(50_000_000, 8_000), 1_000_000), 1_250_000);
        assert_eq!(break_even_bytes(DIRECT, relay(5_000_000, 8_000), 1_000_000), 10_250_000);
        assert_eq!(break_even_bytes(DIRECT, relay(500_000_000, 0), 1_000_000), 1_000_000, "a chunk at least");
        assert_eq!(break_even_bytes(DIRECT, relay(0, 0), MIB), break_even_bytes(DIRECT, relay(1, 0), MIB));
    }

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(bytes_in(1_000_000, 10 * MIB, MIB, 64 * MIB), 8 * MIB);
        assert_eq!(bytes_in(1_000_000, 16 * MIB, MIB, 64 * MIB), 16 * MIB);
        assert_eq!(bytes_in(1_000_000, 900 * MIB, MIB, 64 * MIB), 64 * MIB);
        assert_eq!(bytes_in(1_000_000, 0, MIB, 64 * MIB), MIB);
        assert_eq!(bytes_in(1, 0, MIB, 64), 64);
        assert_eq!(bytes_in(u64::MAX, u64::MAX, 1, 1 << 40), 1 << 40);
    }

    proptest! {
        /// Just below the break-even size the direct path alone is done before the relay's chunk; from there on not.
        #[test]
        fn the_break_even_size_is_where_the_times_cross(
            rates in (1_000u64..1 << 30, 1_000u64..1 << 30),
            starts in (0u64..1 << 20, 0u64..1 << 20),
            least in 1u64..1 << 24,
        ) {
            let direct = PathRate { bytes_per_ms: rates.0, start_ns: starts.0 };
            let relay = PathRate { bytes_per_ms: rates.1, start_ns: starts.1 };
            let bytes = break_even_bytes(direct, relay, least);
            prop_assert!(direct.ns(bytes) + 1 >= relay.ns(least));
            let ns_of_a_byte = 1_000_000 / rates.0 + 1;
            prop_assert!(bytes == least || direct.ns(bytes - 1) <= relay.ns(least) + ns_of_a_byte);
        }
    }
}
