//! How large the next chunk of a lane is: large at first, so that starting copies costs little, and small
//! towards the end, so that all lanes end together.

/// Chunks are cut to be moved in turns: each of the next ones takes this fraction of a lane's share.
const N_TURNS: u64 = 3;
/// Sizes are multiples of this.
const STEP_BYTES: u64 = 64 << 10;

/// Sizes of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Below this, starting a copy costs too much of its time.
    pub(crate) least_bytes: u64,
    /// Above this, larger chunks gain nothing.
    pub(crate) most_bytes: u64,
}

impl Sizes {
    /// The size of the next chunk for a lane that moves `rate` of the `rates` that all lanes move
    /// together, of `left_bytes` that are left.
    pub(crate) fn next(self, left_bytes: u64, rate: u64, rates: u64) -> u64 {
        let share = u128::from(left_bytes) * u128::from(rate) / u128::from(rates.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX) / N_TURNS;
        let bytes = (share / STEP_BYTES * STEP_BYTES).clamp(self.least_bytes, self.most_bytes);
        // No crumbs behind it.
        if left_bytes < bytes.saturating_add(self.least_bytes / 2) { left_bytes.max(1) } else { bytes }
    }
}

/// The rate at which a lane moves bytes, learned while it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// In bytes per millisecond.
    rate: u64,
    /// When the last chunk was done.
    last_ns: u64,
}

impl Pace {
    /// A lane that is expected to move `rate` bytes per millisecond and begins at `now_ns`.
    pub(crate) fn new(rate: u64, now_ns: u64) -> Self {
        Self { rate: rate.max(1), last_ns: now_ns }
    }

    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// Learns from a chunk of `bytes` that was done at `now_ns`, before which the lane was busy.
    pub(crate) fn learn(&mut self, bytes: u64, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        if ns == 0 {
            return;
        }
        let seen = u128::from(bytes) * 1_000_000 / u128::from(ns);
        let seen = u64::try_from(seen).unwrap_or(u64::MAX);
        self.rate = (self.rate / 2 + seen / 2).max(1);
    }

    /// The lane was idle until `now_ns`.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        self.last_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZES: Sizes = Sizes { least_bytes: MIB, most_bytes: 16 * MIB };

    #[test]
    fn chunks_shrink_towards_the_end() {
        let next = |left| SIZES.next(left, 1, 2);
        assert_eq!(next(1 << 30), 16 * MIB);
        assert_eq!(next(64 * MIB), 32 * MIB / 3 / STEP_BYTES * STEP_BYTES);
        assert_eq!(next(12 * MIB), 2 * MIB);
        assert_eq!(next(4 * MIB), MIB);
        assert_eq!(next(MIB + MIB / 4), MIB + MIB / 4, "no crumbs");
        assert_eq!(next(10), 10);
    }

    #[test]
    fn a_slow_lane_takes_smaller_chunks() {
        assert_eq!(SIZES.next(32 * MIB, 3, 4), 8 * MIB);
        assert_eq!(SIZES.next(48 * MIB, 1, 4), 4 * MIB);
        assert_eq!(SIZES.next(64 * MIB, 0, 4), MIB);
    }

    #[test]
    fn a_lane_learns_its_pace() {
        let mut pace = Pace::new(50_000_000, 1000);
        for n in 1..=10 {
            pace.learn(MIB, 1000 + n * 1_000_000);
        }
        assert!((MIB..MIB * 21 / 20).contains(&pace.rate()), "{}", pace.rate());
        pace.begin(1 << 40);
        pace.learn(2 * MIB, (1 << 40) + 1_000_000);
        assert!(pace.rate() > MIB * 7 / 5);
    }
}
