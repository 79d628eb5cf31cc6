//! Programs in C over libglake.so and the stand-in driver.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The folder of libglake.so, which cargo does not build for tests by itself.
fn folder() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "glake-capi", "--profile", profile, "--manifest-path"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let program = env::current_exe().unwrap();
        let found = program.ancestors().skip(1).find(|folder| folder.join("libglake.so").is_file());
        found.unwrap().to_owned()
    })
}

/// Compiles a program in C and links it against a library.
fn compile(source: &str, links: &Path, library: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{source}.program"));
    let mut search = OsString::from("-L");
    search.push(links);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let output = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-Wall", "-Werror", "-O1", "-pthread", "-o"])
        .args([program.as_os_str(), source.as_os_str(), &search])
        .arg(library)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn run(program: &Path, preload: Option<&Path>, variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    let search = env::join_paths([glake_standin::folder(), folder().to_owned()]).unwrap();
    command.env("LD_LIBRARY_PATH", search).envs(variables.iter().copied());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{status} {said} {}", String::from_utf8_lossy(&stderr));
    said
}

#[test]
fn a_program_that_is_linked_to_the_driver_is_served_by_preload() {
    let program = compile("linked.c", &glake_standin::folder(), "-lcuda");
    assert_eq!(run(&program, None, &[]), "4 calls of the driver's allocator\n");
    let library = folder().join("libglake.so");
    assert_eq!(run(&program, Some(&library), &[]), "0 calls of the driver's allocator\n");
    // What makes no sense leaves the program to the driver.
    let nonsense = [("GLAKE_POOL_LIMIT", "much")];
    assert_eq!(run(&program, Some(&library), &nonsense), "4 calls of the driver's allocator\n");
}

#[test]
fn threads_and_programs_may_call_until_they_end() {
    let program = compile("ends.c", &glake_standin::folder(), "-lcuda");
    let library = folder().join("libglake.so");
    for background in ["off", "on"] {
        let variables = [("GLAKE_POOL_BACKGROUND", background), ("GLAKE_STANDIN_COMPLETION", "manual")];
        assert_eq!(run(&program, Some(&library), &variables), "0 allocations of the driver's\n");
    }
}

#[test]
fn a_program_calls_the_functions_of_the_header() {
    let program = compile("direct.c", folder(), "-lglake");
    assert_eq!(run(&program, None, &[]), "ok\n");
}
