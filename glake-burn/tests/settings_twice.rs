//! cubecl's settings are the process's: this test has a process of its own.

use cubecl_runtime::config::memory::CudaAllocator;
use cubecl_runtime::config::{CubeClRuntimeConfig, RuntimeConfig};
use glake_burn::settings;

#[test]
fn settings_apply_once_and_again() {
    settings::apply().unwrap();
    assert_eq!(CubeClRuntimeConfig::get().memory.cuda.allocator, CudaAllocator::Async);
    settings::apply().unwrap();
}

#[test]
fn nothing_else_changes() {
    let mut other = CubeClRuntimeConfig::default();
    other.streaming.max_streams = 7;
    let settings = settings::stream_ordered(other);
    assert_eq!(settings.memory.cuda.allocator, CudaAllocator::Async);
    assert_eq!(settings.streaming.max_streams, 7);
}
