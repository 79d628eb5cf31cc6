//! Builds the shim, a shared object of a few functions that is called `libcuda.so` and needs
//! `libcuda.so.1`, and hands it to the crate as bytes.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

fn main() {
    for input in ["build.rs", "shim/shim.rs", "shim/driver.rs", "src/hooked.rs"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let is = |name, known: &[&str]| {
        env::var_os(name).is_some_and(|value| known.iter().any(|known| value == *known))
    };
    let has_shim = is("CARGO_CFG_TARGET_OS", &["linux"])
        && is("CARGO_CFG_TARGET_ENV", &["gnu"])
        && is("CARGO_CFG_TARGET_ARCH", &["x86_64", "aarch64"]);
    let shim = out.join("shim.so");
    if !has_shim {
        // `install` says that there is no hook here.
        if let Err(error) = std::fs::write(&shim, []) {
            fail(&format!("{}: {error}", shim.display()));
        }
        return;
    }
    // Something to be linked against, so that the shim names the driver as what it needs.
    let driver = out.join("libdriver.so");
    build("shim/driver.rs", &driver, &["-Wl,-soname,libcuda.so.1".as_ref()]);
    let needed = ["-Wl,-soname,libcuda.so".as_ref(), "-Wl,--no-as-needed".as_ref(), driver.as_os_str()];
    build("shim/shim.rs", &shim, &needed);
}

/// Compiles `source`, which needs no standard library, into a shared object.
fn build(source: &str, object: &Path, link_args: &[&OsStr]) {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args([
        "--edition=2024",
        "--crate-type=cdylib",
        "-Cpanic=abort",
        "-Copt-level=s",
        "-Cdebuginfo=0",
    ]);
    command.args(["-Cstrip=symbols", "-Clink-arg=-nostdlib", source, "-o"]).arg(object);
    if let Some(target) = env::var_os("TARGET") {
        command.arg("--target").arg(target);
    }
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut argument = std::ffi::OsString::from("-Clinker=");
        argument.push(linker);
        command.arg(argument);
    }
    for link_arg in link_args {
        let mut argument = std::ffi::OsString::from("-Clink-arg=");
        argument.push(link_arg);
        command.arg(argument);
    }
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("{source} could not be compiled: {status}")),
        Err(error) => fail(&format!("{command:?}: {error}")),
    }
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1);
}
