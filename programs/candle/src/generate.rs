//! The program `generate`.

use std::error::Error;

use candle_core::{Device, Result, Tensor};

use crate::args::GenerateArgs;
use crate::llama::{KeysAndValues, Llama, Size, most_likely};
use crate::memory::Memory;
use crate::random::Random;
use crate::report::Steps;
use crate::schedule::{Schedule, Shape};
use crate::text;

/// Runs every kernel once, on next to no memory.
pub(crate) fn warm_up(args: &GenerateArgs, device: &Device) -> std::result::Result<(), Box<dyn Error>> {
    let model = model(Size { dim: 64, heads: 2, layers: 1, max_len: 32 }, args, device)?;
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
    let model = model(size, args, device)?;
    let mut random = Random::new(seed);
    let mut steps = Steps::default();
    for _ in 0..args.prompts {
        let shape = schedule.next();
        let mut prompt = Prompt::new(&model, &mut random, shape, device)?;
        for _ in 0..random.between(n_tokens.div_ceil(4), n_tokens) {
            let (tokens, logits) = steps.time(shape.batch, || prompt.next())?;
            for (token, logit) in tokens.into_iter().zip(logits) {
                steps.push_token(token);
                steps.push_loss(logit);
            }
            memory.sample()?;
        }
    }
    Ok(steps)
}

fn model(size: Size, args: &GenerateArgs, device: &Device) -> Result<Llama> {
    Llama::new(size, args.common.seed, args.common.dtype.dtype(), device)
}

/// A batch of prompts that grows.
struct Prompt<'a> {
    model: &'a Llama,
    cache: Vec<KeysAndValues>,
    /// What the model has not seen yet: \[batch, tokens\].
    pending: Tensor,
    n_seen: usize,
}

impl<'a> Prompt<'a> {
    fn new(model: &'a Llama, random: &mut Random, shape: Shape, device: &Device) -> Result<Self> {
        Ok(Self { model, cache: model.cache(), pending: text::prompts(random, shape, device)?, n_seen: 0 })
    }

    /// The most likely next token of each prompt, and its logit.
    fn next(&mut self) -> Result<(Vec<u32>, Vec<f32>)> {
        let logits = self.model.forward(&self.pending, self.n_seen, &mut self.cache)?;
        self.n_seen += self.pending.dim(1)?;
        let (tokens, logits) = most_likely(&logits)?;
        self.pending = tokens;
        Ok((self.pending.flatten_all()?.to_vec1()?, logits.to_vec1()?))
    }
}
