//! The exported functions that steer the stand-in: CUDA has none of them.

use std::ffi::c_char;

use crate::abi::Text;
use crate::call::{self, machine};
use crate::machine::config::{Completion, Failure};

/// When work completes on streams that the calling thread makes from now on: 0 at once, 1 when
/// somebody waits, 2 after its stream was worked with `n` more times.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_set_completion(which: u32, n: u64) {
    let completion = match which {
        0 => Completion::Immediate,
        1 => Completion::Manual,
        _ => Completion::Lag(n),
    };
    machine().completion.insert(call::thread_id(), completion);
}

/// Runs at most `n` items of a stream, as far as they wait for nothing; returns how many ran.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_run(stream: u64, n: u64) -> u64 {
    let mut machine = machine();
    match machine.stream(stream) {
        Ok(stream) => machine.run_some_of(stream, n),
        Err(_) => 0,
    }
}

/// How many items are pending on a stream.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_pending(stream: u64) -> u64 {
    let mut machine = machine();
    let stream = machine.stream(stream).ok();
    stream.and_then(|stream| machine.streams.get(&stream)).map_or(0, |stream| stream.n_pending() as u64)
}

/// Makes the `nth` call of a function from now on fail with `code`.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glake_standin_fail(name: *const c_char, nth: u64, code: u32) {
    if let Ok(name) = Text::of(name).get() {
        machine().account.plan(Failure { name, nth, code });
    }
}

/// Forgets the failures that did not come; returns how many.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_forget_failures() -> u64 {
    machine().account.forget_plans() as u64
}

/// Bytes of the driver's own allocators that are not free, of a device, or of all where it is negative;
/// what is freed on a stream counts until that has run.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_allocated(device: i32) -> u64 {
    machine().allocated_bytes(usize::try_from(device).ok())
}

/// Bytes of pinned memory that the driver has made, and that is not free.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_pinned() -> u64 {
    machine().pinned_bytes()
}

/// How often the driver's own allocators of device memory were called, by whatever function.
#[unsafe(no_mangle)]
pub extern "C" fn glake_standin_allocations() -> u64 {
    let machine = machine();
    ALLOCATORS.iter().map(|name| machine.account.calls(name)).sum()
}

/// The functions that allocate device memory.
const ALLOCATORS: [&str; 6] = [
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocFromPoolAsync_ptsz",
];

/// How often a function was called.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn glake_standin_calls(name: *const c_char) -> u64 {
    Text::of(name).get().map_or(0, |name| machine().account.calls(&name))
}
