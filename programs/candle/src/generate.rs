//! The program `generate`.

use std::error::Error;
use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_transformers::models::llama::{Cache, Config, Llama};

use crate::args::GenerateArgs;
use crate::llama::{self, Size};
use crate::memory::Memory;
use crate::random::Random;
use crate::report::Steps;
use crate::schedule::{Schedule, Shape};
use crate::text;

/// Runs every kernel once, on next to no memory.
pub(crate) fn warm_up(args: &GenerateArgs, device: &Device) -> Result<()> {
    let model = Model::new(Size { dim: 64, heads: 2, layers: 1, max_len: 32 }, args, device)?;
    let mut prompt = Prompt::new(&model, &mut Random::new(1), Shape { batch: 2, len: 16 }, device)?;
    for _ in 0..2 {
        prompt.next()?;
    }
    Ok(())
}

pub(crate) fn run(
    args: &GenerateArgs,
    device: &Device,
    memory: &mut Memory,
) -> std::result::Result<Steps, Box<dyn Error>> {
    let seed = args.common.seed;
    let mut schedule = Schedule::new(seed, (args.batch_min, args.batch_max), (args.len_min, args.len_max))?;
    let n_tokens = args.tokens as usize;
    let max_len = schedule.max_len() + n_tokens;
    let size = Size { dim: args.dim, heads: args.heads, layers: args.layers, max_len };
    let model = Model::new(size, args, device)?;
    let mut random = Random::new(seed);
    let mut steps = Steps::default();
    for _ in 0..args.prompts {
        let shape = schedule.next();
        let mut prompt = Prompt::new(&model, &mut random, shape, device)?;
        for _ in 0..random.between(n_tokens.div_ceil(4), n_tokens) {
            let start = Instant::now();
            let (tokens, logits) = prompt.next()?;
            steps.push(start.elapsed(), shape.batch);
            tokens.into_iter().for_each(|token| steps.push_token(token));
            logits.into_iter().for_each(|logit| steps.push_loss(logit));
            memory.sample()?;
        }
    }
    Ok(steps)
}

struct Model {
    llama: Llama,
    config: Config,
    dtype: DType,
}

impl Model {
    fn new(size: Size, args: &GenerateArgs, device: &Device) -> Result<Self> {
        let (config, dtype) = (llama::config(size), args.common.dtype.dtype());
        Ok(Self { llama: llama::model(&config, args.common.seed, dtype, device)?, config, dtype })
    }
}

/// A batch of prompts that grows.
struct Prompt<'a> {
    model: &'a Model,
    cache: Cache,
    /// What the model has not seen yet: \[batch, tokens\].
    pending: Tensor,
    n_seen: usize,
}

impl<'a> Prompt<'a> {
    fn new(model: &'a Model, random: &mut Random, shape: Shape, device: &Device) -> Result<Self> {
        let cache = Cache::new(true, model.dtype, &model.config, device)?;
        Ok(Self { model, cache, pending: text::prompts(random, shape, device)?, n_seen: 0 })
    }

    /// The most likely next token of each prompt, and its logit.
    fn next(&mut self) -> Result<(Vec<u32>, Vec<f32>)> {
        let logits = self.model.llama.forward(&self.pending, self.n_seen, &mut self.cache)?;
        self.n_seen += self.pending.dim(1)?;
        self.pending = logits.argmax_keepdim(D::Minus1)?;
        let tokens = self.pending.flatten_all()?.to_vec1()?;
        Ok((tokens, logits.max(D::Minus1)?.to_vec1()?))
    }
}
