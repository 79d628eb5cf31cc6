//! Generated data: the same seed gives the same shapes and the same values, on every machine.

/// Features of one position of a sequence, in and out.
pub const N_FEATURES: usize = 16;

/// One step's data, row-major `[batch, length, N_FEATURES]`.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Sequences.
    pub batch: usize,
    /// Positions of each sequence.
    pub length: usize,
    /// What the model sees.
    pub inputs: Vec<f32>,
    /// What it should say: the mean of the features up to each position, and the position's own.
    pub targets: Vec<f32>,
}

/// An endless row of batches of varying shapes.
#[derive(Debug)]
pub struct Batches {
    random: Random,
    max_batch: usize,
    max_length: usize,
}

impl Batches {
    /// Batches of `max_batch / 4 ..= max_batch` sequences of `max_length / 8 ..= max_length` positions.
    #[must_use]
    pub fn new(seed: u64, max_batch: usize, max_length: usize) -> Self {
        Self { random: Random::new(seed), max_batch: max_batch.max(1), max_length: max_length.max(8) }
    }
}

impl Iterator for Batches {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let batch = self.random.between((self.max_batch / 4).max(1), self.max_batch);
        // Multiples of 8, which is what a program that cares for speed pads to.
        let length = 8 * self.random.between((self.max_length / 64).max(1), self.max_length / 8);
        let mut inputs = Vec::with_capacity(batch * length * N_FEATURES);
        let mut targets = Vec::with_capacity(inputs.capacity());
        for _ in 0..batch {
            let mut sums = [0.0f32; N_FEATURES];
            let mut n_positions = 0.0f32;
            for _ in 0..length {
                n_positions += 1.0;
                for sum in &mut sums {
                    let value = self.random.signed_unit();
                    *sum += value;
                    inputs.push(value);
                    targets.push(0.5 * value + *sum / n_positions);
                }
            }
        }
        Some(Batch { batch, length, inputs, targets })
    }
}

/// xorshift64*: a few lines that never change, unlike a crate's generator.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        u32::try_from(high).unwrap_or(u32::MAX)
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.next() as usize % (high - low + 1)
    }

    /// In `-1.0..1.0`, exactly representable.
    fn signed_unit(&mut self) -> f32 {
        let bits = i16::from_le_bytes([self.next().to_le_bytes()[0], self.next().to_le_bytes()[1]]);
        f32::from(bits) / 32768.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_batches() {
        let shapes = |seed| {
            Batches::new(seed, 16, 768).take(50).map(|b| (b.batch, b.length, b.inputs)).collect::<Vec<_>>()
        };
        assert_eq!(shapes(1), shapes(1));
        assert_ne!(shapes(1), shapes(2));
    }

    #[test]
    fn shapes_vary_within_their_bounds() {
        let shapes: Vec<_> = Batches::new(7, 16, 768).take(200).map(|b| (b.batch, b.length)).collect();
        for &(batch, length) in &shapes {
            assert!((4..=16).contains(&batch) && (96..=768).contains(&length) && length % 8 == 0);
        }
        let distinct: std::collections::BTreeSet<_> = shapes.iter().collect();
        assert!(distinct.len() > 100, "{}", distinct.len());
    }

    #[test]
    fn targets_are_means_up_to_the_position() {
        let batch = Batches::new(3, 4, 64).next().unwrap();
        let at = |position: usize| position * N_FEATURES;
        let (first, second) = (batch.inputs[at(0)], batch.inputs[at(1)]);
        assert!((batch.targets[at(0)] - 1.5 * first).abs() < 1e-6);
        assert!((batch.targets[at(1)] - (0.5 * second + f32::midpoint(first, second))).abs() < 1e-6);
    }
}
