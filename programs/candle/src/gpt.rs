//! A small GPT: embeddings, causal attention, MLP, layer norm, tied head.
//!
//! Weights, residual stream, norms, softmax and loss are f32; the matrix products are in `dtype`.
//! Every operation adds in a fixed order, so the same seed and shapes give the same bits.

use candle_core::{D, DType, Device, Result, Tensor, Var};

use crate::random::Random;
use crate::schedule::Shape;

const EPSILON: f64 = 1e-5;
const MLP_FACTOR: usize = 4;
/// As in GPT-2.
const WEIGHT_DEVIATION: f32 = 0.02;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    pub(crate) vocabulary: usize,
    pub(crate) max_len: usize,
    pub(crate) dim: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) dtype: DType,
}

#[derive(Debug)]
pub(crate) struct Gpt {
    config: Config,
    embedding: Var,
    positions: Var,
    blocks: Vec<Block>,
    norm: Norm,
}

#[derive(Debug)]
struct Block {
    attention_norm: Norm,
    qkv: Var,
    projection: Var,
    mlp_norm: Norm,
    up: Var,
    down: Var,
}

#[derive(Debug)]
struct Norm {
    gain: Var,
    bias: Var,
}

/// Makes weights, the same for the same seed.
struct Maker<'a> {
    random: Random,
    device: &'a Device,
}

impl Maker<'_> {
    fn weight(&mut self, rows: usize, columns: usize, deviation: f32) -> Result<Var> {
        let values: Vec<f32> = (0..rows * columns).map(|_| self.random.uniform(deviation)).collect();
        Var::from_tensor(&Tensor::from_vec(values, (rows, columns), self.device)?)
    }

    fn norm(&self, dim: usize) -> Result<Norm> {
        let gain = Var::ones(dim, DType::F32, self.device)?;
        Ok(Norm { gain, bias: Var::zeros(dim, DType::F32, self.device)? })
    }
}

impl Gpt {
    pub(crate) fn new(config: Config, seed: u64, device: &Device) -> Result<Self> {
        let mut maker = Maker { random: Random::new(seed), device };
        let dim = config.dim;
        // Of what is added to the residual stream, as in GPT-2.
        #[allow(clippy::cast_precision_loss, reason = "a handful of layers")]
        let residual = WEIGHT_DEVIATION / ((2 * config.layers) as f32).sqrt();
        let embedding = maker.weight(config.vocabulary, dim, WEIGHT_DEVIATION)?;
        let positions = maker.weight(config.max_len, dim, WEIGHT_DEVIATION)?;
        let blocks = (0..config.layers)
            .map(|_| {
                Ok(Block {
                    attention_norm: maker.norm(dim)?,
                    qkv: maker.weight(dim, 3 * dim, WEIGHT_DEVIATION)?,
                    projection: maker.weight(dim, dim, residual)?,
                    mlp_norm: maker.norm(dim)?,
                    up: maker.weight(dim, MLP_FACTOR * dim, WEIGHT_DEVIATION)?,
                    down: maker.weight(MLP_FACTOR * dim, dim, residual)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { config, embedding, positions, blocks, norm: maker.norm(dim)? })
    }

    /// All weights, in a fixed order.
    pub(crate) fn variables(&self) -> Vec<Var> {
        let mut variables = vec![self.embedding.clone(), self.positions.clone()];
        for block in &self.blocks {
            variables.extend(block.attention_norm.variables());
            variables.extend([block.qkv.clone(), block.projection.clone()]);
            variables.extend(block.mlp_norm.variables());
            variables.extend([block.up.clone(), block.down.clone()]);
        }
        variables.extend(self.norm.variables());
        variables
    }

    /// The mean cross entropy; `inputs` and `targets` are one-hot rows, \[batch · len, vocabulary\].
    pub(crate) fn loss(&self, inputs: &Tensor, targets: &Tensor, shape: Shape) -> Result<Tensor> {
        let logits = self.logits(inputs, shape)?;
        let max = logits.max_keepdim(D::Minus1)?.detach();
        let sums = logits.broadcast_sub(&max)?.exp()?.sum_keepdim(D::Minus1)?;
        let of_target = (logits * targets)?.sum_keepdim(D::Minus1)?;
        ((sums.log()? + max)? - of_target)?.mean_all()
    }

    fn logits(&self, inputs: &Tensor, shape: Shape) -> Result<Tensor> {
        let (Shape { batch, len }, Config { dim, dtype, .. }) = (shape, self.config);
        let positions = self.positions.narrow(0, 0, len)?.unsqueeze(0)?;
        let embedded = product(inputs, &self.embedding, dtype)?.reshape((batch, len, dim))?;
        let mut x = embedded.broadcast_add(&positions)?.reshape((batch * len, dim))?;
        let mask = causal_mask(len, inputs.device())?;
        for block in &self.blocks {
            x = (&x + self.attention(block, &block.attention_norm.forward(&x)?, &mask, shape)?)?;
            let hidden = block.mlp_norm.forward(&x)?.to_dtype(dtype)?.matmul(&block.up.to_dtype(dtype)?)?;
            x = (&x + product(&hidden.gelu()?, &block.down, dtype)?)?;
        }
        product(&self.norm.forward(&x)?, &self.embedding.t()?, dtype)
    }

    fn attention(&self, block: &Block, x: &Tensor, mask: &Tensor, shape: Shape) -> Result<Tensor> {
        let (Shape { batch, len }, Config { dim, heads, dtype, .. }) = (shape, self.config);
        let head_dim = dim / heads;
        let qkv = x.to_dtype(dtype)?.matmul(&block.qkv.to_dtype(dtype)?)?;
        let part = |i: usize| {
            let part = qkv.narrow(1, i * dim, dim)?.reshape((batch, len, heads, head_dim))?;
            part.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let scale = 1.0 / (head_dim as f64).sqrt();
        let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * scale)?.broadcast_add(mask)?;
        let mixed = softmax(&scores)?.to_dtype(dtype)?.matmul(&v)?;
        product(&mixed.transpose(1, 2)?.reshape((batch * len, dim))?, &block.projection, dtype)
    }
}

impl Norm {
    fn variables(&self) -> [Var; 2] {
        [self.gain.clone(), self.bias.clone()]
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let deviation = (centred.sqr()?.mean_keepdim(D::Minus1)? + EPSILON)?.sqrt()?;
        centred.broadcast_div(&deviation)?.broadcast_mul(&self.gain)?.broadcast_add(&self.bias)
    }
}

/// `x · weight` computed in `dtype`, as f32.
fn product(x: &Tensor, weight: &Tensor, dtype: DType) -> Result<Tensor> {
    x.to_dtype(dtype)?.matmul(&weight.to_dtype(dtype)?)?.to_dtype(DType::F32)
}

/// Over the last dimension, of steps that have a backward pass.
fn softmax(x: &Tensor) -> Result<Tensor> {
    let exp = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)
}

/// 0 up to the diagonal, a large negative number behind it.
fn causal_mask(len: usize, device: &Device) -> Result<Tensor> {
    let at = Tensor::arange(0u32, u32::try_from(len).unwrap_or(u32::MAX), device)?;
    at.unsqueeze(0)?.broadcast_gt(&at.unsqueeze(1)?)?.to_dtype(DType::F32)? * -1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    fn small() -> Config {
        let vocabulary = text::VOCABULARY;
        Config { vocabulary, max_len: 16, dim: 16, heads: 2, layers: 2, dtype: DType::F32 }
    }

    #[test]
    fn a_token_sees_nothing_that_comes_later() -> Result<()> {
        let shape = Shape { batch: 1, len: 16 };
        let gpt = Gpt::new(small(), 1, &Device::Cpu)?;
        let (a, _) = text::batch(&mut Random::new(1), shape, DType::F32, &Device::Cpu)?;
        let (other, _) = text::batch(&mut Random::new(2), shape, DType::F32, &Device::Cpu)?;
        let b = Tensor::cat(&[a.narrow(0, 0, 9)?, other.narrow(0, 9, 7)?], 0)?;
        let (a, b) = (gpt.logits(&a, shape)?.to_vec2::<f32>()?, gpt.logits(&b, shape)?.to_vec2::<f32>()?);
        assert_eq!(a[..9], b[..9]);
        assert_ne!(a[15], b[15]);
        Ok(())
    }

    /// Untrained, it knows nothing: the loss is that of a guess.
    #[test]
    fn the_first_loss_is_the_vocabulary_s_entropy() -> Result<()> {
        let shape = Shape { batch: 2, len: 16 };
        let gpt = Gpt::new(small(), 1, &Device::Cpu)?;
        let (inputs, targets) = text::batch(&mut Random::new(1), shape, DType::F32, &Device::Cpu)?;
        let loss = gpt.loss(&inputs, &targets, shape)?.to_scalar::<f32>()?;
        assert!((loss - 128f32.ln()).abs() < 0.1, "{loss}");
        Ok(())
    }

    /// The backward pass agrees with a difference of losses.
    #[test]
    fn gradients_are_the_slopes_of_the_loss() -> Result<()> {
        let shape = Shape { batch: 2, len: 8 };
        let gpt = Gpt::new(small(), 1, &Device::Cpu)?;
        let (inputs, targets) = text::batch(&mut Random::new(1), shape, DType::F32, &Device::Cpu)?;
        let loss = || gpt.loss(&inputs, &targets, shape);
        let gradients = loss()?.backward()?;
        for variable in gpt.variables() {
            let gradient = gradients.get(&variable).expect("every weight has a part in the loss").clone();
            let norm = gradient.sqr()?.sum_all()?.to_scalar::<f32>()?.sqrt();
            let direction = (gradient / f64::from(norm))?;
            let (before, h) = (variable.as_tensor().copy()?, 0.02);
            let mut losses = [0.0; 2];
            for (loss_at, step) in losses.iter_mut().zip([-h, h]) {
                variable.set(&(&before + (&direction * f64::from(step))?)?)?;
                *loss_at = loss()?.to_scalar::<f32>()?;
            }
            variable.set(&before)?;
            let slope = (losses[1] - losses[0]) / (2.0 * h);
            assert!((slope - norm).abs() < 0.03 * norm + 1e-3, "{slope} {norm} of {:?}", variable.shape());
        }
        Ok(())
    }
}
