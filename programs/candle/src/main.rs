//! Programs of candle with real work, in glake's pool or beside it, in one binary.
//!
//! ```text
//! glake-candle-programs train    [--dtype f32|bf16] [--glake on|off] [--steps N] [--json] ...
//! glake-candle-programs generate [--dtype f32|bf16] [--glake on|off] [--prompts N] [--json] ...
//! glake-candle-programs load     [--dtype f32|bf16] [--glake on|off] [--file-bytes 8GiB] [--json] ...
//! glake-candle-programs check
//! ```

use std::error::Error;
use std::process::ExitCode;

use candle_core::Device;
use clap::Parser;

mod args;
mod check;
mod driver;
mod files;
mod generate;
mod gpt;
mod llama;
mod load;
mod memory;
mod random;
mod report;
mod schedule;
mod text;
mod train;

use args::{Cli, Common, Float, Program, Switch};
use memory::Memory;
use report::{Report, Setting, Steps};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run(&Cli::parse().program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("glake-candle-programs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: &Program) -> Outcome {
    match program {
        Program::Train(args) => measured("train", &args.common, args, train::warm_up, train::run),
        Program::Generate(args) => measured("generate", &args.common, args, generate::warm_up, generate::run),
        Program::Load(args) => load::run(args),
        Program::Check(args) => check::run(args),
    }
}

/// Runs a program and reports what it cost.
fn measured<A>(
    name: &'static str,
    common: &Common,
    args: &A,
    warm_up: fn(&A, &Device) -> Outcome,
    work: fn(&A, &Device, &mut Memory) -> Outcome<Steps>,
) -> Outcome {
    let mut memory = Memory::prepare(common)?;
    let device = common.device.device()?;
    memory.attach(&device)?;
    warm_up(args, &device)?;
    memory.warm(common, &device)?;
    let steps = work(args, &device, &mut memory)?;
    let figures = memory.finish(&device)?;
    Report::new(setting(name, common), steps, figures).print(common.json)?;
    Ok(())
}

fn setting(program: &'static str, common: &Common) -> Setting {
    Setting {
        program,
        dtype: match common.dtype {
            Float::F32 => "f32",
            Float::Bf16 => "bf16",
        },
        device: common.device.to_string(),
        glake: common.glake == Switch::On,
    }
}
