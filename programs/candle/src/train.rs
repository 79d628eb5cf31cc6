//! The program `train`.

use std::error::Error;

use candle_core::Device;
use candle_nn::{AdamW, Optimizer, ParamsAdamW};

use crate::args::TrainArgs;
use crate::gpt::{Config, Gpt};
use crate::memory::Memory;
use crate::random::Random;
use crate::report::Steps;
use crate::schedule::{Schedule, Shape};
use crate::text;

/// Runs every kernel once, on next to no memory.
pub(crate) fn warm_up(args: &TrainArgs, device: &Device) -> Result<(), Box<dyn Error>> {
    let config = Config { max_len: 16, dim: 64, heads: 2, layers: 1, ..config(args, 16) };
    let mut training = Training::new(config, args, device)?;
    training.step(Shape { batch: 2, len: 16 }, device)?;
    Ok(())
}

pub(crate) fn run(args: &TrainArgs, device: &Device, memory: &mut Memory) -> Result<Steps, Box<dyn Error>> {
    let mut schedule =
        Schedule::new(args.common.seed, (args.batch_min, args.batch_max), (args.len_min, args.len_max))?;
    let mut training = Training::new(config(args, schedule.max_len()), args, device)?;
    let mut steps = Steps::default();
    for _ in 0..args.steps {
        let shape = schedule.next();
        let loss = steps.time(shape.n_tokens(), || training.step(shape, device))?;
        steps.push_loss(loss);
        memory.sample()?;
    }
    Ok(steps)
}

fn config(args: &TrainArgs, max_len: usize) -> Config {
    Config {
        vocabulary: text::VOCABULARY,
        max_len,
        dim: args.dim,
        heads: args.heads,
        layers: args.layers,
        dtype: args.common.dtype.dtype(),
    }
}

struct Training {
    gpt: Gpt,
    optimizer: AdamW,
    random: Random,
    config: Config,
}

impl Training {
    fn new(config: Config, args: &TrainArgs, device: &Device) -> candle_core::Result<Self> {
        let gpt = Gpt::new(config, args.common.seed, device)?;
        let parameters = ParamsAdamW { lr: args.learning_rate, ..ParamsAdamW::default() };
        let optimizer = AdamW::new(gpt.variables(), parameters)?;
        Ok(Self { gpt, optimizer, random: Random::new(args.common.seed), config })
    }

    /// The loss before the step; it has been computed when this returns.
    fn step(&mut self, shape: Shape, device: &Device) -> candle_core::Result<f32> {
        let (inputs, targets) = text::batch(&mut self.random, shape, self.config.dtype, device)?;
        let loss = self.gpt.loss(&inputs, &targets, shape)?;
        self.optimizer.backward_step(&loss)?;
        device.synchronize()?;
        loss.to_scalar()
    }
}
