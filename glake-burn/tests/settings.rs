//! cubecl's settings are the process's: this test has a process of its own.

use cubecl_runtime::config::memory::CudaAllocator;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use glake_burn::{InstallError, settings};

#[test]
fn settings_in_use_are_refused_and_kept() {
    assert_eq!(CubeClRuntimeConfig::get().memory.cuda.allocator, CudaAllocator::Sync);
    assert!(matches!(settings::apply(), Err(InstallError::SettingsInUse)));
    assert_eq!(CubeClRuntimeConfig::get().memory.cuda.allocator, CudaAllocator::Sync);
}
