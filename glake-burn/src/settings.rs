//! The settings of cubecl that a stream-ordered pool underneath wants.

use cubecl_runtime::config::memory::CudaAllocator;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};

use crate::InstallError;

/// `settings`, with the stream-ordered allocation calls.
///
/// cubecl's default is `cuMemAlloc` and `cuMemFree`, which name no stream: the latter has to wait until
/// the device is idle, and memory that comes back can serve no stream before.
#[must_use]
pub fn stream_ordered(mut settings: CubeClRuntimeConfig) -> CubeClRuntimeConfig {
    settings.memory.cuda.allocator = CudaAllocator::Async;
    settings
}

/// Makes cubecl's settings of this process [`stream_ordered`]: those of its file and of the environment,
/// if there are any.
///
/// # Errors
/// [`InstallError::SettingsInUse`]; nothing has changed.
pub fn apply() -> Result<(), InstallError> {
    let settings = CubeClRuntimeConfig::from_current_dir().override_from_env();
    // Settings are taken once; what is in use already may still be what is wanted.
    let in_use = CubeClRuntimeConfig::try_set(stream_ordered(settings));
    let allocator = CubeClRuntimeConfig::get().memory.cuda.allocator;
    if in_use || allocator == CudaAllocator::Async { Ok(()) } else { Err(InstallError::SettingsInUse) }
}
