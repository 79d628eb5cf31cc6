//! What the driver says of memory, where that is the pool's.

use std::ffi::CStr;

use glake_core::units::DevicePtr;

use crate::exports;
use crate::hook::{Hook, lock};
use crate::real::{Code, INVALID_VALUE, NOT_SUPPORTED, Ptr, SUCCESS};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

impl Hook {
    /// Free memory as programs budget by it: what the pool holds and nobody uses is free, and what lies
    /// above its limit is not.
    pub(crate) fn free_bytes(&self, driver_free: usize) -> Option<usize> {
        let device = self.device_of(self.current_context())?;
        let stats = device.pool_if_any().map(|pool| pool.pool.stats()).unwrap_or_default();
        let limit = *lock(&device.limit_bytes);
        let free = (driver_free as u64).saturating_add(stats.free_bytes());
        usize::try_from(free.min(limit.saturating_sub(stats.allocated_bytes))).ok()
    }

    /// The allocation around an address of the pool's.
    pub(crate) fn range_of(&self, ptr: Ptr) -> Option<Result<(Ptr, usize), Code>> {
        let (_, pool) = self.owner(ptr)?;
        let range = pool.pool.allocation_at(DevicePtr(ptr));
        let range = range.and_then(|range| Some((range.start.0, usize::try_from(range.bytes).ok()?)));
        Some(range.ok_or(INVALID_VALUE))
    }

    /// Pool memory cannot be shared by the old interface.
    pub(crate) fn refuse_ipc(&self, ptr: Ptr) -> Option<Code> {
        self.owner(ptr)?;
        tracing::warn!(
            ptr = %DevicePtr(ptr),
            "cuIpcGetMemHandle does not know memory of the virtual memory API: share it by file descriptor"
        );
        Some(NOT_SUPPORTED)
    }

    /// The current device was given access to the memory of the device of `peer`: to the pool's too.
    pub(crate) fn enable_peer(&'static self, peer: u64) -> Code {
        let Some(device) = self.device_of(self.current_context()) else { return SUCCESS };
        // Its own primary context exists, if it is one: it was named.
        let mut active = self.devices.iter().filter(|device| self.is_active(device));
        let Some(peer) = active.find(|other| self.retain(other) == Some(peer)) else {
            return SUCCESS;
        };
        if let Err(error) = self.grant(peer, device) {
            tracing::warn!(%error, "device {} cannot reach the pool of device {}", device.id.0, peer.id.0);
            return NOT_SUPPORTED;
        }
        SUCCESS
    }
}

/// The hook's function of that name, as `cuGetProcAddress` would find the driver's.
pub(crate) fn hooked(name: &CStr, version: i32, flags: u64) -> Option<usize> {
    let name = match name.to_str().ok()? {
        // The function of that name takes a context from CUDA 13 on.
        "cuCtxSynchronize" => return None,
        // This one says more from CUDA 12 on.
        "cuGetProcAddress" if version >= 12_000 => "cuGetProcAddress_v2",
        name => name,
    };
    // Functions that know no stream have one form only; those of CUDA 3.1 and before are not hooked.
    let all = ["_ptsz", "_v2_ptsz", "_ptds", "_v2_ptds", "", "_v2"];
    let suffixes = if flags & PER_THREAD == 0 { &all[4..] } else { &all };
    if version < 3020 {
        return None;
    }
    suffixes.iter().find_map(|suffix| exports::by_name(name, suffix))
}
