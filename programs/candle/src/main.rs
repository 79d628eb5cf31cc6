//! Programs of candle with real work, in glake's pool or beside it, in one binary.
//!
//! ```text
//! glake-candle-programs train    [--dtype f32|bf16] [--glake on|off] [--steps N] [--json] ...
//! glake-candle-programs generate [--dtype f32|bf16] [--glake on|off] [--prompts N] [--json] ...
//! ```

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

mod args;
mod driver;
mod generate;
mod gpt;
mod llama;
mod memory;
mod random;
mod report;
mod schedule;
mod text;
mod train;

use args::{Cli, Common, Float, Program, Switch};
use memory::Memory;
use report::{Report, Setting};

fn main() -> ExitCode {
    match run(&Cli::parse().program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("glake-candle-programs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(program: &Program) -> Result<(), Box<dyn Error>> {
    let (name, common) = match program {
        Program::Train(args) => ("train", &args.common),
        Program::Generate(args) => ("generate", &args.common),
    };
    let mut memory = Memory::prepare(common)?;
    let device = common.device.device()?;
    memory.attach(&device)?;
    match program {
        Program::Train(args) => train::warm_up(args, &device)?,
        Program::Generate(args) => generate::warm_up(args, &device)?,
    }
    memory.warm(common.cap_bytes)?;
    let steps = match program {
        Program::Train(args) => train::run(args, &device, &mut memory)?,
        Program::Generate(args) => generate::run(args, &device, &mut memory)?,
    };
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
