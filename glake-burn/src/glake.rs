//! glake under burn, once it is installed.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use cubecl_runtime::client::Client;
use glake_hook::{OptionError, PassedOn};

use crate::{Config, Gpu, Granularity, InstallError, settings};

static INSTALLED: OnceLock<Glake> = OnceLock::new();

/// Puts glake's pool under burn, for the rest of the process.
///
/// Call it before anything touches burn's CUDA devices: cubecl reads its settings once and finds the
/// driver once.
///
/// # Errors
/// cubecl is in use, or the hook could not be made active; the error says what to do. In the latter case
/// cubecl's allocator is set all the same, and a program goes on with the driver's own pool.
pub fn install(config: Config) -> Result<Glake, InstallError> {
    settings::apply()?;
    let hook = glake_hook::install(config.hook)?;
    Ok(*INSTALLED.get_or_init(|| Glake { hook, granularity: config.granularity }))
}

/// glake, installed under burn.
#[derive(Clone, Copy, Debug)]
pub struct Glake {
    pub(crate) hook: glake_hook::Glake,
    granularity: Granularity,
}

impl Glake {
    /// glake, if [`install`] has put it under burn.
    #[must_use]
    pub fn installed() -> Option<Self> {
        INSTALLED.get().copied()
    }

    /// The GPU of one of cubecl's clients.
    #[must_use]
    pub fn gpu_of(&self, client: Client) -> Gpu {
        Gpu { hook: self.hook, granularity: self.granularity, client }
    }

    /// The hook underneath.
    #[must_use]
    pub fn hook(&self) -> glake_hook::Glake {
        self.hook
    }

    /// Live bytes by the names of [`Gpu::tagged`].
    #[must_use]
    pub fn tagged_bytes(&self) -> BTreeMap<String, u64> {
        self.hook.tagged_bytes()
    }

    /// Sets one of the pool's options by its name.
    ///
    /// # Errors
    /// There is no such option, it has no such value, or it cannot be changed any more.
    pub fn set_option(&self, name: &str, value: &str) -> Result<(), OptionError> {
        self.hook.set_option(name, value)
    }

    /// What reached the driver's own allocator past the pool.
    #[must_use]
    pub fn passed_on(&self) -> PassedOn {
        self.hook.passed_on()
    }
}
