//! The command line.

use std::path::PathBuf;

use crate::device::Device;

/// Loads a model's safetensors files to a device, and says how fast.
#[derive(Debug, clap::Parser)]
#[command(name = "load")]
pub struct Args {
    /// A safetensors file, an index, or a folder with one [default: a small checkpoint is made].
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// `sim` for the simulated driver, on its own clock and with device memory on the host; `cuda:N` for GPU N.
    #[arg(long, default_value = "sim")]
    pub device: Device,
    /// How many GPUs the simulated driver has: peers relay.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub sim_gpus: u32,
    /// Loads only tensors with this text in their names.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Reads every byte back and compares it with the files.
    #[arg(long)]
    pub verify: bool,
    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}
