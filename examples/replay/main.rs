//! Replays allocation traces of real programs through a pool, and says what it cost.
//!
//! ```text
//! cargo run --release --example replay -- [--policy glake|caching] [--mode default|compact]
//!     [--streams recorded|second|round-robin] [--device sim|cuda:N] [--gpu-lag-ms MS] [--cap R]
//!     [--json] [--check] [--svg PATH] [TRACE...]
//! ```
#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(unreachable_pub, reason = "the modules of a program are private")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use glake_core::trace;
use glake_testkit::replay::Plan;
use glake_testkit::synthetic;

mod args;
mod cut;
#[path = "../shared/device.rs"]
mod device;
mod figures;
mod picture;
mod policy;
mod report;
mod session;
mod time;

use args::{Args, Streams, Synthetic};
use device::Device;
use session::{Beside, Replayed, Setup};

/// The traces that are kept in the repository; `traces/README.md` says how they came about.
const OWN_TRACES: [&str; 3] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/traces/gpt2m_steps.csv.gz"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/traces/candle_gpt.csv.gz"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/traces/burn_gpt.csv.gz"),
];
const SYNTHETIC_STEPS: usize = 12;
const CHURN_ALLOCATIONS: usize = 12_000;
/// Microseconds of device work ahead of each pattern: a little, or longer than a gather takes.
const DELAY_US: u64 = 20;
const CHURN_DELAY_US: u64 = 1000;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let own = OWN_TRACES.map(PathBuf::from);
    let traces = if args.traces.is_empty() { &own[..] } else { &args.traces[..] };
    if let (Some(to), Some(n_events)) = (&args.cut, args.events) {
        return cut::cut(&traces[0], to, n_events);
    }
    if let Some(synthetic) = args.synthetic {
        let (name, events) = match synthetic {
            Synthetic::Fixed => ("fixed", synthetic::steps(SYNTHETIC_STEPS, 1)),
            Synthetic::Alternating => ("alternating", synthetic::steps(SYNTHETIC_STEPS, 2)),
            Synthetic::Churn => ("churn", synthetic::churn(CHURN_ALLOCATIONS)),
        };
        return one(args, name, Plan::from_events(events.into_iter().map(Ok))?);
    }
    for path in traces {
        let plan = Plan::from_events(trace::open(path)?)?;
        one(args, &name_of(path), plan)?;
    }
    Ok(())
}

/// The file's name without its endings.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.trim_end_matches(".gz").trim_end_matches(".csv").to_owned()
}

fn one(args: &Args, name: &str, plan: Plan) -> Result<(), Box<dyn Error>> {
    let plan = &args.streams.of(plan);
    let is_churn = args.synthetic == Some(Synthetic::Churn);
    let setup = Setup {
        policy: args.policy,
        mode: args.mode,
        cap: args.cap.or(is_churn.then_some(synthetic::CHURN_CAP)),
        stitch_above_bytes: args.stitch_above,
        beside: Beside {
            oracle: args.check.then_some(()),
            bytes: (args.check_bytes || args.device != Device::Sim).then_some(()),
        },
        delay_ns: args.delay_us.unwrap_or(if is_churn { CHURN_DELAY_US } else { DELAY_US }) * 1000,
        gpu_lag_ms: args.gpu_lag_ms,
    };
    let Replayed { mut figures, samples } = match args.device {
        Device::Sim => setup.on_sim(plan)?,
        Device::Cuda(ordinal) => on_cuda(&setup, plan, ordinal)?,
    };
    name.clone_into(&mut figures.trace);
    figures.streams = args.streams.name();
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!("{}", report::Table(&figures));
    }
    let svg = match &args.svg {
        Some(path) => path.clone(),
        None if args.json => return Ok(()),
        None if args.streams == Streams::Recorded => {
            PathBuf::from(format!("replay-{name}-{}.svg", figures.policy))
        }
        None => PathBuf::from(format!("replay-{name}-{}-{}.svg", figures.streams, figures.policy)),
    };
    picture::draw(&svg, plan, &figures, &samples)?;
    if !args.json {
        println!("  picture: {}\n", svg.display());
    }
    Ok(())
}

#[cfg(feature = "cuda")]
fn on_cuda(setup: &Setup, plan: &Plan, ordinal: u32) -> Result<Replayed, Box<dyn Error>> {
    let driver: std::sync::Arc<dyn glake_core::driver::Driver> = std::sync::Arc::new(glake_cuda::open()?);
    Ok(setup.on_device(plan, &driver, glake_core::units::DeviceId(ordinal))?)
}

#[cfg(not(feature = "cuda"))]
fn on_cuda(_: &Setup, _: &Plan, _: u32) -> Result<Replayed, Box<dyn Error>> {
    Err("built without the feature `cuda`".into())
}
