//! The command line.

use std::fmt;
use std::path::PathBuf;

use candle_core::{DType, Device};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Programs of candle with real work, in glake's pool or beside it.
#[derive(Debug, Parser)]
#[command(version, about, args_override_self = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) program: Program,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Program {
    /// Trains a small GPT on the text; batch and length change from step to step.
    Train(TrainArgs),
    /// Generates with a Llama-shaped model of random weights, for several batches of prompts.
    Generate(GenerateArgs),
    /// Loads a sharded safetensors checkpoint of a Llama-shaped model to the device, by candle or by glake.
    Load(LoadArgs),
    /// Sees that glake keeps its promises on this GPU.
    Check(CheckArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Float {
    F32,
    Bf16,
}

impl Float {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Cpu,
    Cuda(usize),
}

impl Place {
    pub(crate) fn device(self) -> candle_core::Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(ordinal) => Device::new_cuda(ordinal),
        }
    }

    /// CUDA's number of the device, `None` on the CPU.
    pub(crate) fn ordinal(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Cuda(ordinal) => Some(ordinal),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

fn place(text: &str) -> Result<Place, String> {
    match text.strip_prefix("cuda:").map(str::parse) {
        Some(Ok(ordinal)) => Ok(Place::Cuda(ordinal)),
        None if text == "cpu" => Ok(Place::Cpu),
        None if text == "cuda" => Ok(Place::Cuda(0)),
        _ => Err("cpu, cuda or cuda:N".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// cpu, cuda or cuda:N.
    #[arg(long, default_value = if cfg!(feature = "cuda") { "cuda:0" } else { "cpu" }, value_parser = place)]
    pub(crate) device: Place,
    /// What the weights are multiplied in.
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: Float,
    /// `on`: in glake's pool. `off`: in the device's default pool, which keeps what it once had.
    #[arg(long, value_enum, default_value = "off")]
    pub(crate) glake: Switch,
    /// With `--glake on`: whether cuBLAS works in the pool's memory too.
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) workspace: Switch,
    /// Leave only so many bytes of the device free, once candle is warm.
    #[arg(long)]
    pub(crate) cap_bytes: Option<u64>,
    /// With `--glake on`: write all allocations to a trace that the example `replay` reads.
    #[arg(long)]
    pub(crate) record: Option<PathBuf>,
    /// Of the weights, the shapes and the batches.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// One line of JSON, with all losses.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// cuda or cuda:N.
    #[arg(long, default_value = "cuda:0", value_parser = place)]
    pub(crate) device: Place,
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// About how large the checkpoint is: `8GiB`, `500MiB` or bytes.
    #[arg(long, default_value = "8GiB", value_parser = byte_count)]
    pub(crate) file_bytes: u64,
    /// Where it is written and kept, and not written again; a folder of its own, which goes, if not said. Its bytes
    /// stay in the page cache where there is room.
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How often it is loaded.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(8..=32_768))]
    pub(crate) dim: u64,
}

fn byte_count(text: &str) -> Result<u64, String> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let of = |(unit, shift)| text.strip_suffix(unit).map(|number: &str| (number, shift));
    let (number, shift) = units.into_iter().find_map(of).unwrap_or((text, 0));
    let number = number.trim().parse::<u64>().ok().filter(|number| *number <= u64::MAX >> shift);
    number.map(|number| number << shift).ok_or_else(|| "a number, of GiB, MiB, KiB or bytes".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    #[arg(long, default_value_t = 4)]
    pub(crate) batch_min: usize,
    #[arg(long, default_value_t = 32)]
    pub(crate) batch_max: usize,
    #[arg(long, default_value_t = 64)]
    pub(crate) len_min: usize,
    #[arg(long, default_value_t = 512)]
    pub(crate) len_max: usize,
    #[arg(long, default_value_t = 8)]
    pub(crate) layers: usize,
    #[arg(long, default_value_t = 8)]
    pub(crate) heads: usize,
    #[arg(long, default_value_t = 512)]
    pub(crate) dim: usize,
    #[arg(long, default_value_t = 3e-4)]
    pub(crate) learning_rate: f64,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Batches of prompts, one after the other.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompts: u32,
    /// Tokens generated for each prompt, at most; at least a quarter of it.
    #[arg(long, default_value_t = 160, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: u32,
    #[arg(long, default_value_t = 2)]
    pub(crate) batch_min: usize,
    #[arg(long, default_value_t = 24)]
    pub(crate) batch_max: usize,
    #[arg(long, default_value_t = 32)]
    pub(crate) len_min: usize,
    #[arg(long, default_value_t = 640)]
    pub(crate) len_max: usize,
    #[arg(long, default_value_t = 16)]
    pub(crate) layers: usize,
    #[arg(long, default_value_t = 16)]
    pub(crate) heads: usize,
    #[arg(long, default_value_t = 1024)]
    pub(crate) dim: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(byte_count("8GiB"), Ok(8 << 30));
        assert_eq!(byte_count("3 MiB"), Ok(3 << 20));
        assert_eq!(byte_count("17"), Ok(17));
        for wrong in ["", "GiB", "1.5GiB", "8GB", "99999999999GiB"] {
            assert!(byte_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(place("cpu"), Ok(Place::Cpu));
        assert_eq!(place("cuda"), Ok(Place::Cuda(0)));
        assert_eq!(place("cuda:3"), Ok(Place::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cpu:0"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
