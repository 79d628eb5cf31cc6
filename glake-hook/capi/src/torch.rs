//! How PyTorch hears that there is no memory: its pluggable allocator takes a null pointer for memory.

use std::ffi::{c_char, c_void};
use std::ptr;

use libloading::Library;

/// `c10::detail::torchCheckFail(const char *function, const char *file, uint32_t line, const char *message)`
const CHECK_FAIL: &[u8] = b"_ZN3c106detail14torchCheckFailEPKcS2_jS2_";

type CheckFail = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char) -> *mut c_void;

/// Throws a `c10::Error` with the message, where PyTorch is loaded; returns null otherwise.
pub(crate) fn throw(message: *const c_char) -> *mut c_void {
    let Some(fail) = check_fail() else { return ptr::null_mut() };
    // SAFETY: C strings. The exception passes frames that own nothing, on their way to PyTorch's.
    unsafe { fail(c"glake_malloc".as_ptr(), c"libglake.so".as_ptr(), 0, message) }
}

/// PyTorch's function, if the process has it.
fn check_fail() -> Option<CheckFail> {
    use libloading::os::unix::{Library as Unix, RTLD_LAZY};
    /// Only what is loaded already, on Linux.
    const NO_LOAD: i32 = 4;
    // SAFETY: nothing is loaded.
    let c10: Library = unsafe { Unix::open(Some("libc10.so"), RTLD_LAZY | NO_LOAD) }.ok()?.into();
    // SAFETY: the function's type.
    unsafe { c10.get::<CheckFail>(CHECK_FAIL) }.ok().map(|found| *found)
}
