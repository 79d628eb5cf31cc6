//! Memory pools of the driver's that the program made.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use glake_core::alloc::AllocError;
use glake_core::units::StreamId;

use crate::device::{Device, InContext};
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

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Right {
    location_type: c_int,
    location_id: c_int,
    flags: c_int,
}

/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
const NO_ACCESS: c_int = 0;
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
        if self.is_served(pool, device) { self.allocate_on(device, bytes, stream) } else { None }
    }

    /// Whether memory from a pool of the driver's is plain memory of the device.
    fn is_served(&self, pool: Handle, device: &Device) -> bool {
        if let Some(&of) = lock(&self.mempools.0).get(&pool.addr()) {
            return of == device.cu;
        }
        let mut default = ptr::null_mut();
        // SAFETY: writes a pool.
        let code = unsafe { (self.real.cuDeviceGetDefaultMemPool)(&raw mut default, device.cu) };
        code == SUCCESS && default == pool
    }

    /// The program's allocations on a device come from `pool` from now on.
    pub(crate) fn current_pool_is(&self, cu: c_int, pool: Handle) {
        if let Some(device) = self.devices.iter().find(|device| device.cu == cu) {
            device.is_async_served.store(self.is_served(pool, device), Ordering::Relaxed);
        }
    }

    /// A pool was destroyed, whose place another may have taken.
    pub(crate) fn look_for_current_pools(&self) {
        for device in self.devices.iter().filter(|device| !device.is_async_served.load(Ordering::Relaxed)) {
            let mut pool = ptr::null_mut();
            // SAFETY: writes a pool.
            if unsafe { (self.real.cuDeviceGetMemPool)(&raw mut pool, device.cu) } == SUCCESS {
                self.current_pool_is(device.cu, pool);
            }
        }
    }

    /// Devices were given access to the memory of a pool of the driver's: to what is served in its place too.
    ///
    /// # Safety
    /// The rights are `n` of `CUmemAccessDesc`.
    pub(crate) unsafe fn grant_from(&'static self, pool: Handle, rights: *const c_void, n: usize) {
        let Some(device) = self.devices.iter().find(|device| self.is_served(pool, device)) else { return };
        for index in 0..n {
            // SAFETY: the caller vouches for so many.
            let right = unsafe { rights.cast::<Right>().add(index) };
            // SAFETY: as above.
            let right = unsafe { right.read() };
            let granted = self.devices.iter().find(|granted| granted.cu == right.location_id);
            if let Some(granted) = granted
                && right.location_type == ON_DEVICE
                && right.flags != NO_ACCESS
                && granted.id != device.id
                && let Err(error) = self.grant(device, granted)
            {
                tracing::warn!(%error, "device {} cannot reach the pool of device {}", granted.id.0, device.id.0);
            }
        }
    }

    /// Lets another device use the memory of a device's pool.
    pub(crate) fn grant(&'static self, device: &Device, to: &Device) -> Result<(), AllocError> {
        let Some(context) = self.retain(device) else { return Ok(()) };
        let _in_context = InContext::enter(self.real, context);
        device.pool(self).map_or(Ok(()), |pool| pool.pool.grant_access(to.id))
    }
}
