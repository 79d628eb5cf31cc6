//! Memory pools of the driver's.

use std::ffi::{c_int, c_void};

use crate::hook::{Hook, tell};
use crate::real::{Code, Handle, SUCCESS};

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolCreate(pool: *mut Handle, properties: *const c_void) -> Code {
    let code = real!(cuMemPoolCreate(pool, properties));
    if code == SUCCESS {
        // SAFETY: the driver has just written it.
        let pool = unsafe { pool.read() };
        // SAFETY: the driver has just read them.
        tell(|hook| unsafe { hook.mempools.made(pool, properties) });
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolDestroy(pool: Handle) -> Code {
    tell(|hook| hook.mempools.forget(pool));
    let code = real!(cuMemPoolDestroy(pool));
    tell(Hook::look_for_current_pools);
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuMemPoolSetAccess(pool: Handle, rights: *const c_void, n: usize) -> Code {
    let code = real!(cuMemPoolSetAccess(pool, rights, n));
    if code == SUCCESS {
        // SAFETY: the driver has just read them.
        tell(|hook| unsafe { hook.grant_from(pool, rights, n) });
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn cuDeviceSetMemPool(device: c_int, pool: Handle) -> Code {
    let code = real!(cuDeviceSetMemPool(device, pool));
    if code == SUCCESS {
        tell(|hook| hook.current_pool_is(device, pool));
    }
    code
}
