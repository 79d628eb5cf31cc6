//! Trains a transformer with burn 0.21 on generated data of varying shapes, with glake's pool under
//! cubecl's allocations or without, and prints times, losses and bytes.
//!
//! ```text
//! glake-burn21-train --glake on              every tensor is an allocation of glake
//! glake-burn21-train --glake off --granularity page    cubecl as it comes
//! ```

mod model;
#[cfg(feature = "cuda")]
mod on_cuda;

use std::process::ExitCode;

use burn::optim::{AdamConfig, GradientsParams, Optimizer as _};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{ElementConversion as _, Tensor, TensorData};
use glake_burn_common::{Args, Batches, Failure, N_FEATURES, Report, Steps};

use model::{Sizes, Transformer};

const PROGRAM: &str = "burn 0.21";

/// Trains as `args` says. `within_step` runs where a step has freed much, `after_step` when it has ended
/// on the device.
fn train<B: AutodiffBackend>(
    args: &Args,
    device: &B::Device,
    within_step: impl Fn(),
    mut after_step: impl FnMut(),
) -> Steps {
    B::seed(device, args.seed);
    let sizes = Sizes { n_features: N_FEATURES, layers: args.layers, width: args.width, heads: args.heads };
    let mut model = Transformer::<B>::new(sizes, device);
    let mut optimizer = AdamConfig::new().init();
    let mut steps = Steps::begin();
    for data in Batches::new(args.seed, args.max_batch, args.max_length).take(args.steps) {
        let shape = [data.batch, data.length, N_FEATURES];
        let on_device = |values| Tensor::<B, 3>::from_data(TensorData::new(values, shape), device);
        let loss = model.loss(on_device(data.inputs), on_device(data.targets));
        within_step();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        within_step();
        model = optimizer.step(1e-4, model, gradients);
        // Reading the loss waits for the device, as a program that logs does.
        steps.end(data.batch * data.length, loss.into_scalar().elem());
        after_step();
        within_step();
    }
    steps
}

fn main() -> ExitCode {
    glake_burn_common::start(run)
}

fn run(args: &Args) -> Result<Report, Failure> {
    match args.device {
        #[cfg(feature = "cuda")]
        glake_burn_common::Device::Cuda => on_cuda::run(args),
        #[cfg(feature = "cpu")]
        glake_burn_common::Device::Cpu => {
            type Cpu = burn::backend::Autodiff<burn::backend::Flex>;
            let steps = train::<Cpu>(args, &burn::backend::flex::FlexDevice, || {}, || {});
            Ok(Report::new(PROGRAM, args, &steps))
        }
        #[allow(unreachable_patterns, reason = "which devices are there depends on the features")]
        _ => Err("this program was built without that device".into()),
    }
}
