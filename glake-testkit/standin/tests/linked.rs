//! A program that is linked to the driver, instead of loading it, runs on the stand-in.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::path::Path;
use std::process::{Command, Output};

use glake_standin::folder;

/// Where the program is built: its profiles share it.
const TARGET: &str = env!("CARGO_TARGET_TMPDIR");

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    output
}

/// Builds the program, linked to what is in the folder of links, and runs it over that.
fn run(profile: &str, built: &str) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/linked");
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(program).args(["build", "--locked", "--profile", profile]);
    build.env("CARGO_TARGET_DIR", TARGET).env("RUSTFLAGS", format!("-L native={}", folder().display()));
    build.env_remove("CARGO_ENCODED_RUSTFLAGS");
    done(&mut build);
    let program = Path::new(TARGET).join(built).join("linked");
    let output = done(Command::new(program).env("LD_LIBRARY_PATH", folder()));
    String::from_utf8(output.stdout).unwrap()
}

/// The bytes came back, one allocation reached the driver, nothing was pinned.
const SAID: &str = "true 1 0\n";

#[test]
fn a_linked_program_finds_all_that_it_needs() {
    assert_eq!(run("dev", "debug"), SAID);
}

#[test]
fn a_linked_program_finds_all_that_it_needs_after_link_time_optimisation() {
    assert_eq!(run("release", "release"), SAID);
}
