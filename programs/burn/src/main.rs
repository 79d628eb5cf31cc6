//! Trains a transformer with burn on generated data of varying shapes, with glake's pool under
//! cubecl's allocations or without, and prints times, losses and bytes.
//!
//! ```text
//! glake-burn-train --glake on              every tensor is an allocation of glake
//! glake-burn-train --glake off --granularity page    cubecl as it comes
//! glake-burn-train load --file FILE [--glake on|off]   a safetensors file to a module, by glake or by burn
//! ```

#[cfg(feature = "cuda")]
mod load;
mod model;
#[cfg(feature = "cuda")]
mod on_cuda;

use std::process::ExitCode;

use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use glake_burn_common::{Args, Batches, Failure, N_FEATURES, Report, Steps};

use model::{Sizes, Transformer};

const PROGRAM: &str = "burn 0.22";

/// Trains as `args` says. `after_step` runs when a step has ended on the device.
fn train<E>(args: &Args, device: &Device, mut after_step: impl FnMut() -> Result<(), E>) -> Result<Steps, E> {
    device.seed(args.seed);
    let sizes = Sizes { n_features: N_FEATURES, layers: args.layers, width: args.width, heads: args.heads };
    let mut model = Transformer::new(sizes, device);
    let mut optimizer = AdamConfig::new().init();
    let mut steps = Steps::begin();
    for data in Batches::new(args.seed, args.max_batch, args.max_length).take(args.steps) {
        let shape = [data.batch, data.length, N_FEATURES];
        let on_device = |values| Tensor::<3>::from_data(TensorData::new(values, shape), device);
        let loss = model.loss(on_device(data.inputs), on_device(data.targets));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-4, model, gradients);
        // Reading the loss waits for the device, as a program that logs does.
        steps.end(data.batch * data.length, loss.into_scalar());
        after_step()?;
    }
    Ok(steps)
}

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    if std::env::args().nth(1).as_deref() == Some("load") {
        return match load::run(std::env::args_os().skip(1)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    glake_burn_common::start(run)
}

fn run(args: &Args) -> Result<Report, Failure> {
    match args.device {
        #[cfg(feature = "cuda")]
        glake_burn_common::Device::Cuda => on_cuda::run(args),
        #[cfg(feature = "cpu")]
        glake_burn_common::Device::Cpu => {
            let steps = train(args, &Device::flex().autodiff(), || Ok::<(), Failure>(()))?;
            Ok(Report::new(PROGRAM, args, &steps))
        }
        #[allow(unreachable_patterns, reason = "which devices are there depends on the features")]
        _ => Err("this program was built without that device".into()),
    }
}
