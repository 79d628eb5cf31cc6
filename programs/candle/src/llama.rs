//! A Llama-shaped model with random weights and a cache of keys and values that grows.

use std::hash::{DefaultHasher, Hash, Hasher};

use candle_core::{D, DType, Device, Result, Shape, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::var_builder::{SimpleBackend, VarBuilder};
use candle_nn::{Embedding, Linear, Module, RmsNorm, embedding, linear_no_bias, rms_norm, rotary_emb};

use crate::random::Random;
use crate::text::VOCABULARY;

const HEADS_PER_KEY: usize = 2;
const EPSILON: f64 = 1e-5;
const ROPE_BASE: f32 = 10_000.0;
/// Large enough that attention and tokens vary, small enough that nothing overflows.
const WEIGHT_DEVIATION: f32 = 0.05;

/// Weights by name: the same for the same seed, in whatever order they are asked for.
#[derive(Debug)]
struct RandomWeights {
    seed: u64,
}

impl SimpleBackend for RandomWeights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        if name.ends_with("norm.weight") {
            return Tensor::ones(shape, dtype, device);
        }
        // With its default keys, the hasher gives the same number on every run.
        let mut hasher = DefaultHasher::new();
        (self.seed, name).hash(&mut hasher);
        let mut random = Random::new(hasher.finish());
        let values: Vec<f32> = (0..shape.elem_count()).map(|_| random.uniform(WEIGHT_DEVIATION)).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("no shape for {name}")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) dim: usize,
    pub(crate) heads: usize,
    pub(crate) layers: usize,
    pub(crate) max_len: usize,
}

#[derive(Debug)]
pub(crate) struct Llama {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    rope: Rope,
}

#[derive(Debug)]
struct Block {
    attention_norm: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    heads: usize,
    keys: usize,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Cosines and sines of the positions.
#[derive(Debug)]
struct Rope {
    cos: Tensor,
    sin: Tensor,
}

/// Keys and values of one block, \[batch, keys, tokens seen, head\], once there are some.
pub(crate) type KeysAndValues = Option<(Tensor, Tensor)>;

impl Llama {
    pub(crate) fn new(size: Size, seed: u64, dtype: DType, device: &Device) -> Result<Self> {
        let weights: Box<dyn SimpleBackend> = Box::new(RandomWeights { seed });
        let builder = VarBuilder::from_backend(weights, dtype, device.clone());
        let blocks = (0..size.layers).map(|i| Block::new(size, &builder.pp(format!("layers.{i}"))));
        Ok(Self {
            embedding: embedding(VOCABULARY, size.dim, builder.pp("embed_tokens"))?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: rms_norm(size.dim, EPSILON, builder.pp("norm"))?,
            head: linear_no_bias(size.dim, VOCABULARY, builder.pp("lm_head"))?,
            rope: Rope::new(size, dtype, device)?,
        })
    }

    /// An empty cache.
    pub(crate) fn cache(&self) -> Vec<KeysAndValues> {
        self.blocks.iter().map(|_| None).collect()
    }

    /// The logits behind the last of `tokens`, \[batch, vocabulary\] in f32; `tokens` are \[batch, tokens\], behind
    /// the `n_seen` that the cache has.
    pub(crate) fn forward(
        &self,
        tokens: &Tensor,
        n_seen: usize,
        cache: &mut [KeysAndValues],
    ) -> Result<Tensor> {
        let (_, len) = tokens.dims2()?;
        let mut x = self.embedding.forward(tokens)?;
        let mask = causal_mask(len, n_seen, tokens.device())?;
        let rope = self.rope.at(n_seen, len)?;
        for (block, seen) in self.blocks.iter().zip(cache) {
            x = (&x + block.attention(&block.attention_norm.forward(&x)?, &mask, &rope, seen)?)?;
            let hidden = block.mlp_norm.forward(&x)?;
            let gated = (block.gate.forward(&hidden)?.silu()? * block.up.forward(&hidden)?)?;
            x = (&x + block.down.forward(&gated)?)?;
        }
        let last = self.norm.forward(&x.narrow(1, len - 1, 1)?.squeeze(1)?.contiguous()?)?;
        self.head.forward(&last)?.to_dtype(DType::F32)
    }
}

impl Block {
    fn new(size: Size, builder: &VarBuilder) -> Result<Self> {
        let Size { dim, heads, .. } = size;
        let keys = heads.div_ceil(HEADS_PER_KEY);
        let keys_dim = dim / heads * keys;
        // Two and two thirds, in Llama's multiples.
        let hidden = (dim * 8 / 3).next_multiple_of(64);
        let linear = |from, to, name| linear_no_bias(from, to, builder.pp(name));
        Ok(Self {
            attention_norm: rms_norm(dim, EPSILON, builder.pp("attention_norm"))?,
            q: linear(dim, dim, "q")?,
            k: linear(dim, keys_dim, "k")?,
            v: linear(dim, keys_dim, "v")?,
            out: linear(dim, dim, "out")?,
            heads,
            keys,
            mlp_norm: rms_norm(dim, EPSILON, builder.pp("mlp_norm"))?,
            gate: linear(dim, hidden, "gate")?,
            up: linear(dim, hidden, "up")?,
            down: linear(hidden, dim, "down")?,
        })
    }

    fn attention(&self, x: &Tensor, mask: &Tensor, rope: &Rope, seen: &mut KeysAndValues) -> Result<Tensor> {
        let (batch, len, dim) = x.dims3()?;
        let head_dim = dim / self.heads;
        let split =
            |x: Tensor, heads| x.reshape((batch, len, heads, head_dim))?.transpose(1, 2)?.contiguous();
        let q = rope.turn(&split(self.q.forward(x)?, self.heads)?)?;
        let mut k = rope.turn(&split(self.k.forward(x)?, self.keys)?)?;
        let mut v = split(self.v.forward(x)?, self.keys)?;
        if let Some((seen_k, seen_v)) = seen {
            k = Tensor::cat(&[&*seen_k, &k], 2)?;
            v = Tensor::cat(&[&*seen_v, &v], 2)?;
        }
        *seen = Some((k.clone(), v.clone()));
        let (k, v) = (self.repeat(&k)?, self.repeat(&v)?);
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let scale = 1.0 / (head_dim as f64).sqrt();
        let scores = (q.matmul(&k.t()?)?.to_dtype(DType::F32)? * scale)?.broadcast_add(mask)?;
        let mixed = softmax_last_dim(&scores)?.to_dtype(v.dtype())?.matmul(&v)?;
        self.out.forward(&mixed.transpose(1, 2)?.reshape((batch, len, dim))?)
    }

    /// Each key and value as often as heads use it.
    fn repeat(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, keys, len, head_dim) = x.dims4()?;
        let times = self.heads / keys;
        let repeated = x.unsqueeze(2)?.expand((batch, keys, times, len, head_dim))?;
        repeated.reshape((batch, self.heads, len, head_dim))
    }
}

impl Rope {
    fn new(size: Size, dtype: DType, device: &Device) -> Result<Self> {
        let head_dim = size.dim / size.heads;
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let frequency = |i| ROPE_BASE.powf(-(i as f32) / head_dim as f32);
        let frequencies: Vec<f32> = (0..head_dim).step_by(2).map(frequency).collect();
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let positions: Vec<f32> = (0..size.max_len).map(|position| position as f32).collect();
        let frequencies = Tensor::new(frequencies, device)?.unsqueeze(0)?;
        let angles = Tensor::new(positions, device)?.unsqueeze(1)?.matmul(&frequencies)?;
        Ok(Self { cos: angles.cos()?.to_dtype(dtype)?, sin: angles.sin()?.to_dtype(dtype)? })
    }

    fn at(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self { cos: self.cos.narrow(0, start, len)?, sin: self.sin.narrow(0, start, len)? })
    }

    fn turn(&self, x: &Tensor) -> Result<Tensor> {
        rotary_emb::rope(x, &self.cos, &self.sin)
    }
}

/// \[len, `n_seen` + len\]: 0 for what a token may see, a large negative number for what comes later.
fn causal_mask(len: usize, n_seen: usize, device: &Device) -> Result<Tensor> {
    let position = |i: usize| u32::try_from(i).unwrap_or(u32::MAX);
    let at = Tensor::arange(position(n_seen), position(n_seen + len), device)?.unsqueeze(1)?;
    let all = Tensor::arange(0, position(n_seen + len), device)?.unsqueeze(0)?;
    all.broadcast_gt(&at)?.to_dtype(DType::F32)? * -1e9
}

/// The most likely next token of each prompt, \[batch, 1\], and its logit, \[batch\].
pub(crate) fn most_likely(logits: &Tensor) -> Result<(Tensor, Tensor)> {
    Ok((logits.argmax_keepdim(D::Minus1)?, logits.max(D::Minus1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Result<Llama> {
        Llama::new(Size { dim: 32, heads: 4, layers: 2, max_len: 32 }, 1, DType::F32, &Device::Cpu)
    }

    fn tokens() -> Result<Tensor> {
        let tokens: Vec<u32> = (0..20).map(|i| i * 7 % 100).collect();
        Tensor::from_vec(tokens, (2, 10), &Device::Cpu)
    }

    /// One token after the other, the cache gives what the whole prompt gives at once.
    #[test]
    fn the_cache_changes_nothing() -> Result<()> {
        let (llama, tokens) = (small()?, tokens()?);
        let at_once = llama.forward(&tokens, 0, &mut llama.cache())?.to_vec2::<f32>()?;
        let mut cache = llama.cache();
        let mut last = llama.forward(&tokens.narrow(1, 0, 4)?, 0, &mut cache)?;
        for n_seen in 4..10 {
            last = llama.forward(&tokens.narrow(1, n_seen, 1)?, n_seen, &mut cache)?;
        }
        for (a, b) in at_once.iter().flatten().zip(last.to_vec2::<f32>()?.iter().flatten()) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
        Ok(())
    }

    #[test]
    fn weights_are_the_seed_s() -> Result<()> {
        let logits = |seed| -> Result<_> {
            let size = Size { dim: 32, heads: 4, layers: 1, max_len: 32 };
            let llama = Llama::new(size, seed, DType::F32, &Device::Cpu)?;
            llama.forward(&tokens()?, 0, &mut llama.cache())?.to_vec2::<f32>()
        };
        assert_eq!(logits(1)?, logits(1)?);
        assert_ne!(logits(1)?, logits(2)?);
        Ok(())
    }
}
