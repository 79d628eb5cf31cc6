//! A program from its command line to its report.

use std::process::ExitCode;

use clap::Parser as _;

use crate::{Args, Report};

/// Why a run came to nothing.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The `main` of a program that does what `run` does: reads the command line, prints the report, and adds it to the
/// file of `--json`.
#[must_use]
pub fn start(run: fn(&Args) -> Result<Report, Failure>) -> ExitCode {
    match try_start(&Args::parse(), run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn try_start(args: &Args, run: fn(&Args) -> Result<Report, Failure>) -> Result<(), Failure> {
    let report = run(args)?;
    print!("{report}");
    if let Some(path) = &args.json {
        report.append(path)?;
    }
    Ok(())
}
