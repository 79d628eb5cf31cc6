//! Numbers that look random and are the same on every machine.

/// `SplitMix64`, by Sebastiano Vigna: <https://prng.di.unimi.it/splitmix64.c>.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        let n = (high - low) as u64 + 1;
        // Lossless: less than `n`, which came from a `usize`.
        low + usize::try_from(self.next() % n).unwrap_or_default()
    }

    /// Uniform, with mean 0 and standard deviation `deviation`.
    #[allow(clippy::cast_precision_loss, reason = "24 bits fit")]
    pub(crate) fn uniform(&mut self, deviation: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
        unit * deviation * 3f32.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn both_ends_are_reached() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..100 {
            seen[random.between(3, 7) - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn uniform_has_its_deviation() {
        let mut random = Random::new(7);
        let n = 10_000;
        let values: Vec<f32> = (0..n).map(|_| random.uniform(2.0)).collect();
        let mean = values.iter().sum::<f32>() / 10_000.0;
        let deviation = (values.iter().map(|value| value * value).sum::<f32>() / 10_000.0).sqrt();
        assert!(mean.abs() < 0.1 && (deviation - 2.0).abs() < 0.1, "{mean} {deviation}");
    }
}
