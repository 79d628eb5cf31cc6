//! The command line.

use std::path::PathBuf;

use clap::Parser;
use glake_testkit::replay::Plan;

use crate::device::Device;
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
    /// The simulated GPU lags this many milliseconds of the trace's own time behind the host: an
    /// event recorded at time t passes at t and this.
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub gpu_lag_ms: f64,
    /// On which streams the trace runs: those that were recorded, or made-up ones.
    #[arg(long, value_enum, default_value_t = Streams::Recorded)]
    pub streams: Streams,
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

/// On which streams a trace runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Streams {
    /// As it was recorded.
    Recorded,
    /// One in ten sizes from 1 MiB on lives on a second stream, everything else on the first.
    Second,
    /// Allocations take turns on eight streams.
    RoundRobin,
}

impl Streams {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Second => "second",
            Self::RoundRobin => "round-robin",
        }
    }

    /// The plan on these streams.
    pub fn of(self, plan: Plan) -> Plan {
        match self {
            Self::Recorded => plan,
            Self::Second => plan.with_second_stream(),
            Self::RoundRobin => plan.round_robin(N_STREAMS),
        }
    }
}

/// Streams of [`Streams::RoundRobin`].
const N_STREAMS: u32 = 8;

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
