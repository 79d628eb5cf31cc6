//! A fast seeded generator of numbers.

/// `SplitMix64`: the same seed gives the same numbers, everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`, which is not zero.
    ///
    /// # Panics
    /// If `n` is zero.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `high` is below `low`.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range");
        match (high - low).checked_add(1) {
            Some(n) => low + self.below(n),
            None => self.next(),
        }
    }

    /// A number from `low` to `high` whose logarithm is even: as many small ones as large ones.
    ///
    /// # Panics
    /// If `high` is below `low`.
    pub fn log_between(&mut self, low: u64, high: u64) -> u64 {
        let bits = |value: u64| u64::from(value.max(1).ilog2());
        let bit = 1 << self.between(bits(low), bits(high));
        self.between(bit, bit - 1 + bit).clamp(low, high)
    }
}
