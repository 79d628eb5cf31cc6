//! Graphs, and the objects that they keep.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys;
use glake_core::driver::Result;

use super::check;

/// Takes the data of a user object when nobody holds it any more.
pub(crate) type Destroy = unsafe extern "C" fn(*mut c_void);

/// Creates a user object, which the caller holds once. `destroy` gets `data` on a thread of the
/// driver's own.
///
/// # Safety
/// `destroy` may be called with `data` once, from any thread, and calls no function of CUDA.
pub(crate) unsafe fn create_object(data: *mut c_void, destroy: Destroy) -> Result<sys::CUuserObject> {
    let mut object = ptr::null_mut();
    let flags = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as u32;
    // SAFETY: `object` is a live local; the caller vouches for the rest.
    let code = unsafe { sys::cuUserObjectCreate(&raw mut object, data, Some(destroy), 1, flags) };
    check("cuUserObjectCreate", code)?;
    Ok(object)
}

/// Makes the caller's hold on `object` the graph's.
///
/// # Safety
/// Both are live; on success the caller does not use `object` any more.
pub(crate) unsafe fn move_object(graph: sys::CUgraph, object: sys::CUuserObject) -> Result<()> {
    let flags = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as u32;
    // SAFETY: the caller vouches for both.
    let code = unsafe { sys::cuGraphRetainUserObject(graph, object, 1, flags) };
    check("cuGraphRetainUserObject", code)
}

/// Ends the caller's hold on `object`, which destroys it if nobody else holds it.
///
/// # Safety
/// `object` is live and held by the caller, who does not use it any more.
pub(crate) unsafe fn release_object(object: sys::CUuserObject) -> Result<()> {
    // SAFETY: the caller vouches for the object.
    check("cuUserObjectRelease", unsafe { sys::cuUserObjectRelease(object, 1) })
}
