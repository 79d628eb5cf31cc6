//! The text: *As You Like It* by William Shakespeare, one token a byte.

use candle_core::{DType, Device, Result, Tensor};

use crate::random::Random;
use crate::schedule::Shape;

const TEXT: &[u8] = include_bytes!("../data/as-you-like-it.txt");

/// Tokens are ASCII.
pub(crate) const VOCABULARY: usize = N_CLASSES as usize;
const N_CLASSES: u32 = 128;

/// Windows of the text at random places: rows of `len + 1` bytes, so that every token has a next one.
fn windows(random: &mut Random, shape: Shape) -> impl Iterator<Item = &'static [u8]> {
    let last = TEXT.len() - shape.len - 1;
    (0..shape.batch).map(move |_| {
        let start = random.between(0, last);
        &TEXT[start..=start + shape.len]
    })
}

/// Inputs and what comes after each, as one-hot rows: \[batch · len, vocabulary\] of `dtype`.
///
/// One-hot rows turn the lookup of embeddings and of the targets into a matrix product and a sum,
/// whose backward pass adds in a fixed order.
pub(crate) fn batch(
    random: &mut Random,
    shape: Shape,
    dtype: DType,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for window in windows(random, shape) {
        inputs.extend(window[..shape.len].iter().copied().map(u32::from));
        targets.extend(window[1..].iter().copied().map(u32::from));
    }
    Ok((one_hot(inputs, dtype, device)?, one_hot(targets, DType::F32, device)?))
}

/// Prompts from the text: \[batch, len\].
pub(crate) fn prompts(random: &mut Random, shape: Shape, device: &Device) -> Result<Tensor> {
    let tokens = windows(random, shape).flat_map(|window| window[..shape.len].iter().copied().map(u32::from));
    Tensor::from_vec(tokens.collect::<Vec<u32>>(), (shape.batch, shape.len), device)
}

fn one_hot(tokens: Vec<u32>, dtype: DType, device: &Device) -> Result<Tensor> {
    let n = tokens.len();
    let classes = Tensor::arange(0, N_CLASSES, device)?.unsqueeze(0)?;
    Tensor::from_vec(tokens, (n, 1), device)?.broadcast_eq(&classes)?.to_dtype(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_in_the_vocabulary() {
        assert!(TEXT.len() > 100_000);
        assert!(TEXT.iter().all(|&byte| usize::from(byte) < VOCABULARY));
    }

    #[test]
    fn targets_are_the_inputs_one_token_later() -> Result<()> {
        let shape = Shape { batch: 3, len: 16 };
        let (inputs, targets) = batch(&mut Random::new(3), shape, DType::F32, &Device::Cpu)?;
        let tokens = |one_hot: &Tensor| one_hot.argmax(1)?.reshape((3, 16))?.to_vec2::<u32>();
        let (inputs, targets) = (tokens(&inputs)?, tokens(&targets)?);
        for (input, target) in inputs.iter().zip(&targets) {
            assert_eq!(input[1..], target[..15]);
        }
        assert_ne!(inputs[0], inputs[1]);
        Ok(())
    }
}
