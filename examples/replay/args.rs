//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;

use crate::policy::{Mode, Policy};

/// Replays allocation traces of real programs through a pool of GPU memory.
///
/// Without a trace, a real one kept in the repository is replayed: the training of GPT-2
/// medium, whose batch and length vary from step to step.
#[derive(Debug, Parser)]
#[command(name = "replay")]
pub struct Args {
    /// The allocator: glake's pool, or a model of `PyTorch`'s caching allocator.
    #[arg(long, value_enum, default_value_t = Policy::Glake)]
    pub policy: Policy,
    /// How glake's pool weighs driver time against memory.
    #[arg(long, value_enum, default_value_t = Mode::Default)]
    pub mode: Mode,
    /// `sim` for the simulated driver, `cuda:N` for GPU N, with real bytes checked at every free.
    #[arg(long, default_value = "sim")]
    pub device: Device,
    /// Limits physical memory to this many times the trace's peak requested bytes [default: no
    /// limit; 1.06 for `churn`].
    #[arg(long, value_name = "R")]
    pub cap: Option<f64>,
    /// glake's pool stitches only above this many physical bytes.
    #[arg(long, value_name = "BYTES")]
    pub stitch_above: Option<u64>,
    /// Prints one JSON object for each trace instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Runs a shadow oracle beside the pool: who owns which byte, which stream may touch it.
    #[arg(long)]
    pub check: bool,
    /// On the simulated driver too, fills and checks every allocation (slow: real bytes).
    #[arg(long)]
    pub check_bytes: bool,
    /// Microseconds of device work submitted ahead of each pattern [default: 20; 1000 for `churn`,
    /// so that gathers happen while it is pending].
    #[arg(long, value_name = "US")]
    pub delay_us: Option<u64>,
    /// The simulated device lags this many microseconds of the trace's time behind the host.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub lag_us: u64,
    /// Where to write the picture: requested, allocated and reserved bytes over time
    /// [default: replay-TRACE-POLICY.svg, none with --json].
    #[arg(long, value_name = "PATH")]
    pub svg: Option<PathBuf>,
    /// Replays a generated trace.
    #[arg(long, value_enum, conflicts_with = "traces")]
    pub synthetic: Option<Synthetic>,
    /// Writes the first events of the trace to this path, gzip, and stops.
    #[arg(long, value_name = "PATH", requires = "events")]
    pub cut: Option<PathBuf>,
    /// How many events `--cut` keeps.
    #[arg(long, value_name = "N")]
    pub events: Option<usize>,
    /// Traces, plain or gzip.
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
}

/// What runs the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The simulated driver.
    Sim,
    /// A GPU, by its ordinal.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("cuda") {
            None if text == "sim" => Ok(Self::Sim),
            Some("") => Ok(Self::Cuda(0)),
            Some(ordinal) => ordinal
                .strip_prefix(':')
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Self::Cuda)
                .ok_or("a GPU is `cuda:N`"),
            None => Err("neither `sim` nor `cuda:N`"),
        }
    }
}

/// A generated trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Synthetic {
    /// Steps with the same shapes.
    Fixed,
    /// Steps with two sets of shapes in turn.
    Alternating,
    /// Random sizes from 1 to 64 MiB in memory that is always nearly full: gathers all the time.
    Churn,
}
