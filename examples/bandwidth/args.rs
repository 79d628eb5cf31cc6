//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::device::Device;

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
    /// The size of a pinned slot, in bytes [default: the engine's].
    #[arg(long, value_name = "BYTES")]
    pub(crate) slot: Option<u64>,
    /// Memory that is not pinned is staged from so many bytes on [default: the engine's].
    #[arg(long, value_name = "BYTES")]
    pub(crate) stage_from: Option<u64>,
    /// Where the file is kept that is read [default: the folder for temporary files].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
    /// Prints one JSON object for each line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
