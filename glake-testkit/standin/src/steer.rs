//! How a test gets to run over the stand-in, and steers it.

use std::env;
use std::ffi::{CString, OsString, c_char};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

pub use crate::machine::config::Completion;

/// What cargo calls the shared object.
const OBJECT: &str = "libglake_standin.so";
/// The names under which programs look for the driver.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
const SEARCH_PATH: &str = "LD_LIBRARY_PATH";
/// Set in a process that runs one test alone: the test's name.
const ALONE: &str = "GLAKE_STANDIN_ALONE";

/// The loaded stand-in of this process.
///
/// The copy of this crate inside a test program is another one than the shared object that the
/// program loads as its driver: all that is said here goes to the latter.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    set_completion: extern "C" fn(u32, u64),
    run: extern "C" fn(u64, u64) -> u64,
    pending: extern "C" fn(u64) -> u64,
    fail: unsafe extern "C" fn(*const c_char, u64, u32),
    forget_failures: extern "C" fn() -> u64,
    calls: unsafe extern "C" fn(*const c_char) -> u64,
}

/// Makes the calling process run over the stand-in; call it before anything of CUDA.
///
/// # Panics
/// As [`enter_with`].
#[must_use]
pub fn enter() -> StandIn {
    enter_with(&[])
}

/// As [`enter`], in an environment with `variables` added, which the first call of a process decides.
///
/// That call executes its program anew, with the same arguments and the stand-in in
/// front of the search path: so it is found under both names of the driver, and before a real one.
///
/// # Panics
/// If the shared object is not there, or cannot be loaded.
#[must_use]
pub fn enter_with(variables: &[(&str, &str)]) -> StandIn {
    static ENTERED: OnceLock<StandIn> = OnceLock::new();
    *ENTERED.get_or_init(|| {
        let links = links();
        if !is_first(&links) {
            let error = again(variables).exec();
            unreachable("the program cannot be executed anew", &error);
        }
        load().unwrap_or_else(|error| unreachable("the stand-in cannot be loaded", &error))
    })
}

/// Runs `test` in a process of its own, over the stand-in, in an environment with `variables` added:
/// for what changes the whole process, or ends with the device lost.
///
/// `name` is the name of the calling test, by which the process finds it.
///
/// # Panics
/// If the test fails there, or is not found.
pub fn alone(name: &str, variables: &[(&str, &str)], test: impl FnOnce(StandIn)) {
    if env::var_os(ALONE).is_some_and(|alone| alone == name) {
        return test(enter());
    }
    let links = links();
    let mut command = Command::new(program());
    command.args([name, "--exact", "--test-threads=1"]).env(ALONE, name);
    command.env(SEARCH_PATH, search_path(&links)).envs(variables.iter().copied());
    let output = command.output().unwrap_or_else(|error| unreachable("no process", &error));
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} failed alone: {}\n{out}\n{errors}", output.status);
    assert!(out.contains("1 passed"), "no test is called {name}:\n{out}");
}

impl StandIn {
    /// When work completes on streams that the calling thread makes from now on.
    pub fn complete(&self, completion: Completion) {
        let (which, n) = match completion {
            Completion::Immediate => (0, 0),
            Completion::Manual => (1, 0),
            Completion::Lag(n) => (2, n),
        };
        (self.set_completion)(which, n);
    }

    /// Runs at most `n` items of a stream, as far as they wait for nothing; returns how many ran.
    #[must_use]
    pub fn run(&self, stream: u64, n: u64) -> u64 {
        (self.run)(stream, n)
    }

    /// How many items are pending on a stream.
    #[must_use]
    pub fn n_pending(&self, stream: u64) -> u64 {
        (self.pending)(stream)
    }

    /// Makes the `nth` call of a function from now on fail with `code`.
    pub fn fail(&self, name: &str, nth: u64, code: u32) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the name is a C string.
        unsafe { (self.fail)(name.as_ptr(), nth, code) }
    }

    /// Forgets the failures that did not come; returns how many.
    #[must_use]
    pub fn forget_failures(&self) -> u64 {
        (self.forget_failures)()
    }

    /// How often a function was called.
    #[must_use]
    pub fn n_calls(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the name is a C string.
        unsafe { (self.calls)(name.as_ptr()) }
    }
}

#[allow(clippy::panic, reason = "a test cannot go on")]
fn unreachable(what: &str, error: &dyn std::error::Error) -> ! {
    panic!("{what}: {error}")
}

/// This program.
fn program() -> PathBuf {
    env::current_exe().unwrap_or_else(|error| unreachable("the program has no path", &error))
}

/// This program again, with its arguments, over the stand-in.
fn again(variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program());
    command.args(env::args_os().skip(1)).env(SEARCH_PATH, search_path(&links()));
    command.envs(variables.iter().copied());
    command
}

/// The folder that holds nothing but links to the stand-in by the driver's names: for the search path of a
/// program's process, or of its linker. Not a folder that cargo searches itself: other tests must not find the
/// stand-in by chance.
///
/// # Panics
/// If the shared object is not there, or the links cannot be made.
#[must_use]
pub fn links() -> PathBuf {
    let object = object().unwrap_or_else(|error| unreachable("the stand-in was not built", &error));
    let links = object.with_file_name("glake-standin");
    let make = || {
        fs::create_dir_all(&links)?;
        for name in NAMES {
            match symlink(Path::new("..").join(OBJECT), links.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    };
    make().unwrap_or_else(|error| unreachable("the stand-in cannot be linked to", &error));
    links
}

/// The shared object, which cargo puts beside the test program, or beside its folder.
fn object() -> io::Result<PathBuf> {
    let program = program();
    let folders = program.ancestors().skip(1).take(2);
    let places = folders.flat_map(|folder| [folder.join(OBJECT), folder.join("deps").join(OBJECT)]);
    let missing = io::Error::new(io::ErrorKind::NotFound, OBJECT);
    places.into_iter().find(|place| place.is_file()).ok_or(missing)
}

/// Whether the links come first in the search path.
fn is_first(links: &Path) -> bool {
    env::var_os(SEARCH_PATH)
        .is_some_and(|path| env::split_paths(&path).next().is_some_and(|first| first == links))
}

/// The search path with the links in front.
fn search_path(links: &Path) -> OsString {
    let rest = env::var_os(SEARCH_PATH).unwrap_or_default();
    let rest = env::split_paths(&rest).filter(|path| path != links && !path.as_os_str().is_empty());
    let paths = [links.to_path_buf()].into_iter().chain(rest);
    env::join_paths(paths).unwrap_or_else(|error| unreachable("the search path cannot be changed", &error))
}

/// What the process knows as its driver, which has to be the stand-in.
fn load() -> Result<StandIn, libloading::Error> {
    // SAFETY: the stand-in has no initialisers, and a driver's have no effect on others.
    let library = Box::leak(Box::new(unsafe { Library::new(NAMES[1]) }?));
    macro_rules! look {
        ($name:literal) => {
            // SAFETY: the field's type is that of the function in `control.rs`.
            *unsafe { library.get($name) }?
        };
    }
    Ok(StandIn {
        set_completion: look!(b"glake_standin_set_completion"),
        run: look!(b"glake_standin_run"),
        pending: look!(b"glake_standin_pending"),
        fail: look!(b"glake_standin_fail"),
        forget_failures: look!(b"glake_standin_forget_failures"),
        calls: look!(b"glake_standin_calls"),
    })
}
