//! How the hook is put in place, and how it proves that it is.

use std::cell::Cell;
use std::fmt;
use std::sync::Mutex;

use glake_core::driver::Driver as _;
use glake_core::units::DeviceId;
use glake_cuda::OpenError;
use libloading::Library;

use crate::config::Config;
use crate::device::Device;
use crate::glake::Glake;
use crate::hook::{self, Hook, inside, lock};
use crate::real::{Ptr, real};
use crate::shim::{self, Bound};

/// Why the hook is not active. The program runs on, with the driver's own allocator.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// There is no driver, or none that glake can use.
    #[error("glake is not active: {0}")]
    NoDriver(#[from] OpenError),
    /// The driver was loaded before.
    #[error(
        "glake is not active: the CUDA driver was loaded before. Call `install` first thing in `main`, before \
         anything touches the GPU or asks whether there is one"
    )]
    TooLate,
    /// The program links to the driver, and its calls do not come to the hook.
    #[error(
        "glake is not active: the program's CUDA calls are linked to the driver itself. Make `glake-hook` a \
         dependency of the executable, not of a shared library that it loads, and link them together"
    )]
    NotLinked,
    /// Something else stands in front of the driver.
    #[error(
        "glake is not active: another hook of the CUDA driver came first. Take it out, for example from \
         LD_PRELOAD, or from the dependencies a second version of glake-hook"
    )]
    OtherHook,
    /// The hook is installed already.
    #[error("glake is active already: `Glake::installed` gives what the first `install` returned")]
    AlreadyInstalled,
    /// The shim could not be loaded.
    #[error(
        "glake is not active: the shim could not be loaded from memory. glake needs Linux with glibc and a \
         mounted /proc"
    )]
    NoShim,
}

// As text: a `main` that returns an error prints it by `Debug`, and what to do has to be read there.
impl fmt::Debug for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Installs the hook: from now on, allocations of device memory come from glake's pools.
///
/// To be called first thing in `main`: a program that loads the driver at run time is given the shim if it
/// asks for the driver from now on. Whether the program links or loads the driver is found out. This initialises
/// CUDA, which processes that are forked afterwards cannot use.
///
/// # Errors
/// [`InstallError`], which says why the hook is not active and what to do. The program then runs as if
/// `install` had not been called.
pub fn install(config: Config) -> Result<Glake, InstallError> {
    install_by(config, Proof::Wanted)
}

/// As [`install`], without the proof that the program's calls come to the hook: for a library that is called by other
/// names ([`Glake::allocate`]), or that stands in front of the driver by `LD_PRELOAD`, where the call that leads to
/// this is the proof.
///
/// # Errors
/// As [`install`].
pub fn install_unproved(config: Config) -> Result<Glake, InstallError> {
    install_by(config, Proof::NotWanted)
}

/// From now on the first call of a hooked function installs the hook, set up by the environment, if it is not
/// installed. Where that fails, the driver serves, and `tracing` says why.
pub fn install_at_first_call() {
    hook::install_at_first_call(|| {
        let installed = Config::from_env().map(install_unproved);
        match installed {
            Ok(Ok(_) | Err(InstallError::AlreadyInstalled)) => {}
            Ok(Err(error)) => tracing::warn!("{error}"),
            Err(error) => tracing::warn!("glake is not active: {error}"),
        }
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    Wanted,
    NotWanted,
}

fn install_by(config: Config, proof: Proof) -> Result<Glake, InstallError> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = lock(&INSTALLING);
    if hook::installed().is_some() {
        return Err(InstallError::AlreadyInstalled);
    }
    let installed = inside(|| try_install(config, proof));
    installed.unwrap_or(Err(InstallError::NoDriver(OpenError::NoDriver)))
}

fn try_install(config: Config, proof: Proof) -> Result<Glake, InstallError> {
    let real = real().ok_or(OpenError::NoDriver)?;
    let shim = shim::load();
    let driver = glake_cuda::open()?;
    if proof == Proof::Wanted && !is_reached() {
        return Err(diagnose(shim.is_some()));
    }
    let devices = (0..driver.n_devices()).map(|id| {
        let cu = i32::try_from(id).unwrap_or(i32::MAX);
        Device::new(DeviceId(id), cu, config.limit_bytes)
    });
    let hook = Hook {
        real,
        devices: devices.collect(),
        driver,
        streams: crate::streams::Streams::default(),
        captures: crate::captures::Captures::default(),
        mempools: crate::pools::Mempools::default(),
        pinned: crate::pinned::Pinned::new(config.pinned_bytes),
        tags: Mutex::default(),
        has_tags: false.into(),
        copies: crate::copies::Copies::new(&config),
        passed_on: hook::PassedOnCounters::default(),
        config,
    };
    let hook = hook::set(hook).map_err(|_| InstallError::AlreadyInstalled)?;
    tracing::info!(n_devices = hook.devices.len(), "glake serves device memory");
    Ok(Glake::of(hook))
}

thread_local! {
    static PROBE: Cell<Probe> = const { Cell::new(Probe::None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    None,
    Asked,
    Seen,
}

/// Whether cudarc's calls come to the hook: it is asked to free nothing.
fn is_reached() -> bool {
    PROBE.set(Probe::Asked);
    // SAFETY: the null address is nobody's: the driver, if it is reached, does nothing.
    let _ = unsafe { cudarc::driver::sys::cuMemFree_v2(0) };
    PROBE.replace(Probe::None) == Probe::Seen
}

/// Whether a free of `ptr` is the question of [`is_reached`].
pub(crate) fn is_probe(ptr: Ptr) -> bool {
    let is_probe = ptr == 0 && PROBE.get() == Probe::Asked;
    if is_probe {
        PROBE.set(Probe::Seen);
    }
    is_probe
}

/// Why cudarc's calls do not come to the hook.
fn diagnose(has_shim: bool) -> InstallError {
    if links_to_driver() {
        return InstallError::NotLinked;
    }
    match shim::bound() {
        Bound::Elsewhere => InstallError::OtherHook,
        _ if !has_shim => InstallError::NoShim,
        Bound::Here | Bound::Driver => InstallError::TooLate,
    }
}

/// Whether the driver was loaded with the program.
#[cfg(unix)]
fn links_to_driver() -> bool {
    let program: Library = libloading::os::unix::Library::this().into();
    // SAFETY: the function is only looked up.
    unsafe { program.get::<*const ()>(b"cuInit") }.is_ok()
}

#[cfg(not(unix))]
fn links_to_driver() -> bool {
    false
}
