//! Loads a model's safetensors files to a device, and says how fast.
//!
//! ```text
//! cargo run --release --example load -- [PATH] [--device sim|cuda:N] [--only TEXT] [--verify] [--json]
//! ```
//!
//! Without a path it makes a small checkpoint of its own.
#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(unreachable_pub, reason = "the modules of a program are private")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use glake_core::driver::Driver;
use glake_core::sim::{Completion, LinkRates, SimConfig};
use glake_core::units::DeviceId;
use glake_multipath::checkpoint::{Checkpoint, Loader};
use glake_multipath::{Config, Engine, Progress};
use glake_vmm::StitchPool;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tempfile::TempDir;

mod args;
#[path = "../shared/device.rs"]
mod device;
mod figures;
mod own;
mod verify;

use args::Args;
use device::Device;
use figures::Figures;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("load: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (driver, device) = open(args)?;
    let own = args.path.is_none().then(own::checkpoint).transpose()?;
    let path = args.path.as_deref().or(own.as_ref().map(TempDir::path)).ok_or("no path")?;
    let figures = load(args, path, driver, device)?;
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!("{figures}");
    }
    Ok(())
}

/// The driver and the device of the command line.
fn open(args: &Args) -> Result<(Arc<dyn Driver>, DeviceId), Box<dyn Error>> {
    match args.device {
        Device::Sim => {
            let config = SimConfig::h200(args.sim_gpus).completion(Completion::Lag(0));
            Ok((Arc::new(config.links(LinkRates::h200()).build()), DeviceId(0)))
        }
        Device::Cuda(ordinal) => Ok((open_cuda()?, DeviceId(ordinal))),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda() -> Result<Arc<dyn Driver>, Box<dyn Error>> {
    Ok(Arc::new(glake_cuda::open()?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda() -> Result<Arc<dyn Driver>, Box<dyn Error>> {
    Err("built without the feature `cuda`".into())
}

/// Loads what is at `path`, and frees it.
fn load(
    args: &Args,
    path: &Path,
    driver: Arc<dyn Driver>,
    device: DeviceId,
) -> Result<Figures, Box<dyn Error>> {
    let whole = Checkpoint::open(path)?;
    let checkpoint = match &args.only {
        Some(text) => whole.only(|tensor| tensor.name.contains(text)),
        None => whole,
    };
    let stream = driver.create_stream(device)?;
    let mut pool = StitchPool::new(Arc::clone(&driver), glake_vmm::Config::new(device))?;
    let engine = Engine::new(driver, Config::new())?;
    let bar = bar(checkpoint.bytes())?;
    let tell = |progress: Progress| bar.set_position(progress.done_bytes);
    let loaded = Loader::new(&engine, device, stream).on_progress(&tell).load(&checkpoint, &mut pool)?;
    bar.finish_and_clear();
    let mut figures = Figures::new(&args.device.to_string(), &checkpoint, &loaded);
    if args.verify {
        figures.verified_bytes = Some(verify::verify(&engine, device, &checkpoint, &loaded)?);
    }
    loaded.free(&mut pool, stream)?;
    Ok(figures)
}

/// A bar on standard error, hidden where that is no terminal.
fn bar(total_bytes: u64) -> Result<ProgressBar, Box<dyn Error>> {
    let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")?;
    Ok(bar.with_style(style))
}
