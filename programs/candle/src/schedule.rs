//! Which shape each step has.

use crate::random::Random;

/// Lengths are multiples of it, as padded batches are.
const LENGTH_STEP: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) len: usize,
}

impl Shape {
    pub(crate) fn n_tokens(self) -> usize {
        self.batch * self.len
    }
}

/// Draws shapes, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Schedule {
    random: Random,
    batch: (usize, usize),
    steps_of_length: (usize, usize),
}

impl Schedule {
    /// Both ends of both ranges are included; lengths are rounded up to multiples of 8.
    pub(crate) fn new(seed: u64, batch: (usize, usize), len: (usize, usize)) -> Result<Self, EmptyRange> {
        if batch.0 == 0 || len.0 == 0 || batch.0 > batch.1 || len.0 > len.1 {
            return Err(EmptyRange);
        }
        let steps_of_length = (len.0.div_ceil(LENGTH_STEP), len.1.div_ceil(LENGTH_STEP));
        Ok(Self { random: Random::new(seed), batch, steps_of_length })
    }

    /// The longest length that it draws.
    pub(crate) fn max_len(&self) -> usize {
        self.steps_of_length.1 * LENGTH_STEP
    }

    pub(crate) fn next(&mut self) -> Shape {
        let batch = self.random.between(self.batch.0, self.batch.1);
        let steps = self.random.between(self.steps_of_length.0, self.steps_of_length.1);
        Shape { batch, len: steps * LENGTH_STEP }
    }
}

/// A range of batches or lengths is empty or starts at 0.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("batch and length are at least 1, and the largest not less than the smallest")]
pub(crate) struct EmptyRange;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_vary_within_their_ranges_and_repeat_with_the_seed() {
        let draw = || {
            let mut schedule = Schedule::new(5, (4, 32), (60, 512)).unwrap();
            (0..200).map(|_| schedule.next()).collect::<Vec<_>>()
        };
        let shapes = draw();
        assert_eq!(shapes, draw());
        assert!(shapes.iter().all(|shape| (4..=32).contains(&shape.batch)));
        assert!(shapes.iter().all(|shape| (64..=512).contains(&shape.len) && shape.len % 8 == 0));
        let lengths: std::collections::BTreeSet<_> = shapes.iter().map(|shape| shape.len).collect();
        assert!(lengths.len() > 40, "{}", lengths.len());
    }

    #[test]
    fn empty_ranges_are_refused() {
        for (batch, len) in [((0, 4), (8, 16)), ((4, 2), (8, 16)), ((1, 1), (16, 8)), ((1, 1), (0, 8))] {
            assert_eq!(Schedule::new(1, batch, len).unwrap_err(), EmptyRange);
        }
    }
}
