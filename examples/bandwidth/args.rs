//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;

/// Measures copies between host and GPU: plain ones, the transfer engine on one link and on all, and what
/// the machine's links and memory carry at most. Every byte is checked.
///
/// Without a GPU the simulated driver is measured by its virtual clock, which knows links and nothing of the
/// host: only its figures for pinned memory say something.
#[derive(Debug, Parser)]
#[command(name = "bandwidth")]
pub(crate) struct Args {
    /// `cuda:N` for GPU N, `sim` for the simulated driver [default: GPU 0, or `sim` where there is none].
    #[arg(long)]
    pub(crate) device: Option<Device>,
    /// The smallest copy in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 10)]
    pub(crate) from: u64,
    /// The largest copy in bytes [default: 4 GiB, 256 MiB on the simulated driver].
    #[arg(long, value_name = "BYTES")]
    pub(crate) to: Option<u64>,
    /// Timed rounds of each copy, after one that is not; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Threads that fill and empty pinned slots [default: the engine's].
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// The largest chunk over several links, in bytes [default: the engine's].
    #[arg(long, value_name = "BYTES")]
    pub(crate) chunk: Option<u64>,
    /// Where the file is kept that is read [default: the folder for temporary files].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// Prints one JSON object for each line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What copies are made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Two simulated GPUs.
    Sim,
    /// A GPU, by its ordinal.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sim" => Ok(Self::Sim),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
                ordinal.map(Self::Cuda).ok_or("neither `sim` nor `cuda:N`")
            }
        }
    }
}
