//! Memory pools of the driver's that the program made.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use glake_core::units::StreamId;

use crate::hook::{Hook, lock};
use crate::real::{Code, Handle, Ptr, SUCCESS};

/// The program's pools of plain device memory, with the device of each.
#[derive(Debug, Default)]
pub(crate) struct Mempools(Mutex<HashMap<usize, i32>>);

/// The head of `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    alloc_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location_id: c_int,
    security: *mut c_void,
    max_bytes: usize,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

impl Mempools {
    /// A pool was made with these properties.
    ///
    /// # Safety
    /// The properties are a `CUmemPoolProps`.
    pub(crate) unsafe fn made(&self, pool: Handle, properties: *const c_void) {
        // SAFETY: the caller vouches for them, and the driver has just read them.
        let properties = unsafe { properties.cast::<Properties>().read() };
        let is_plain = properties.alloc_type == PINNED
            && properties.location_type == ON_DEVICE
            && properties.handle_types == 0
            && properties.max_bytes == 0;
        if is_plain {
            lock(&self.0).insert(pool.addr(), properties.location_id);
        }
    }

    /// A pool is about to be destroyed.
    pub(crate) fn forget(&self, pool: Handle) {
        lock(&self.0).remove(&pool.addr());
    }
}

impl Hook {
    /// Memory for work on `stream` from a pool of the driver's: served where that is plain memory of
    /// the stream's device, which nobody shares and no limit holds.
    pub(crate) fn allocate_from(
        &'static self,
        bytes: usize,
        pool: Handle,
        stream: StreamId,
    ) -> Option<Result<Ptr, Code>> {
        let device = self.device_of_stream(stream)?;
        let is_own = lock(&self.mempools.0).get(&pool.addr()) == Some(&device.cu);
        let is_default = || {
            let mut default = ptr::null_mut();
            // SAFETY: writes a pool.
            let code = unsafe { (self.real.cuDeviceGetDefaultMemPool)(&raw mut default, device.cu) };
            code == SUCCESS && default == pool
        };
        if is_own || is_default() { self.allocate(bytes, stream) } else { None }
    }
}
