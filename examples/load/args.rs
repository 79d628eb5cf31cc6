//! The command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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

/// Where to.
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

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sim => f.write_str("sim"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
