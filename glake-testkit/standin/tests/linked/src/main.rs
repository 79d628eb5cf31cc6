//! Allocates, copies and frees through cudarc, and says what reached the driver's own allocators.
//! `tests/linked.rs` builds and runs it.

use std::error::Error;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use cudarc::driver::CudaContext;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `RTLD_DEFAULT`: whatever the program was linked to.
const DEFAULT: *mut c_void = ptr::null_mut();

/// A count or a size that the stand-in tells.
fn told(name: &CStr) -> Result<u64, String> {
    // SAFETY: the name is a C string.
    let found = unsafe { dlsym(DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("the driver is none that tells {name:?}"));
    }
    // SAFETY: the functions that are asked for have this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(found) };
    Ok(function())
}

fn main() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let values: Vec<u32> = (0..100_000).collect();
    let copied = stream.clone_htod(&values)?;
    let back = stream.clone_dtoh(&copied)?;
    let pinned = told(c"glake_standin_pinned")?;
    drop(copied);
    context.synchronize()?;
    let allocations = told(c"glake_standin_allocations")?;
    println!("{} {allocations} {pinned}", back == values);
    Ok(())
}
