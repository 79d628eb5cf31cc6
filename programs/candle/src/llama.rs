//! A Llama-shaped model of candle's, with random weights.

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::{SimpleBackend, VarBuilder};
use candle_transformers::models::llama::{Config, Llama};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::random::Random;
use crate::text::VOCABULARY;

const HEADS_PER_KEY: usize = 2;
/// Large enough that attention and tokens vary, small enough that bf16 does.
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

pub(crate) fn config(size: Size) -> Config {
    Config {
        hidden_size: size.dim,
        // Two and two thirds, in Llama's multiples.
        intermediate_size: (size.dim * 8 / 3).next_multiple_of(64),
        vocab_size: VOCABULARY,
        num_hidden_layers: size.layers,
        num_attention_heads: size.heads,
        num_key_value_heads: size.heads.div_ceil(HEADS_PER_KEY),
        use_flash_attn: false,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: size.max_len,
        tie_word_embeddings: false,
    }
}

pub(crate) fn model(config: &Config, seed: u64, dtype: DType, device: &Device) -> Result<Llama> {
    let weights: Box<dyn SimpleBackend> = Box::new(RandomWeights { seed });
    Llama::load(VarBuilder::from_backend(weights, dtype, device.clone()), config)
}
