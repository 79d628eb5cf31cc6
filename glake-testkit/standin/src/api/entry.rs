//! Start, versions, texts of errors, addresses of functions.

use std::ffi::{c_char, c_void};

use crate::abi::{Out, Text};
use crate::code::{Code, texts};

/// CUDA 13.0.
const VERSION: i32 = 13_000;

driver_functions! {
    fn cuInit(flags: u32) |machine| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if machine.config.n_devices == 0 {
            return Err(Code::NO_DEVICE);
        }
        machine.is_initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<i32>) |_| { version.put(VERSION) }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) |_| {
        let known = texts(code);
        name.put(known.map_or(std::ptr::null(), |(name, _)| name.as_ptr()))?;
        known.map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) |_| {
        let known = texts(code);
        text.put(known.map_or(std::ptr::null(), |(_, text)| text.as_ptr()))?;
        known.map(drop).ok_or(Code::INVALID_VALUE)
    }

    fn cuGetProcAddress(symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) |_| {
        let found = newest(&symbol.get()?, version, flags);
        function.put(found.unwrap_or(std::ptr::null()))?;
        found.map(drop).ok_or(Code::NOT_FOUND)
    }

    fn cuGetProcAddress_v2(
        symbol: Text,
        function: Out<*const c_void>,
        version: i32,
        flags: u64,
        status: Out<u32>,
    ) |_| {
        let found = newest(&symbol.get()?, version, flags);
        function.put(found.unwrap_or(std::ptr::null()))?;
        status.put_if_wanted(u32::from(found.is_none()));
        Ok(())
    }
}

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

/// The newest variant of a function: those who ask leave the suffix to the driver. Callers older
/// than 12.0 know `cuStreamGetCaptureInfo` only as it was at first. Where nothing but the variant for each
/// thread's default stream is missing, it is the other.
fn newest(symbol: &str, version: i32, flags: u64) -> Option<*const c_void> {
    if symbol == "cuStreamGetCaptureInfo" && version < 12_000 {
        return super::find(symbol);
    }
    let of = |suffix: &str| super::find(&format!("{symbol}{suffix}"));
    let of_thread = ["_v3_ptsz", "_v2_ptsz", "_ptsz", "_v2_ptds", "_ptds"]
        .into_iter()
        .filter(|_| flags & PER_THREAD != 0);
    of_thread.chain(["_v3", "_v2", ""]).find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_variant_is_found() {
        let address = |function: Option<*const c_void>| function.map(<*const c_void>::addr);
        let found = |symbol, flags| address(newest(symbol, 12_000, flags));
        let named = |symbol| address(super::super::find(symbol));
        assert_eq!(found("cuMemAlloc", 0), named("cuMemAlloc_v2"));
        assert_eq!(found("cuMemMap", PER_THREAD), named("cuMemMap"));
        assert_eq!(found("cuMemAllocAsync", 1), named("cuMemAllocAsync"));
        assert_eq!(found("cuMemAllocAsync", PER_THREAD), named("cuMemAllocAsync_ptsz"));
        assert_eq!(found("cuMemcpyHtoD", PER_THREAD), named("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(found("cuStreamBeginCapture", PER_THREAD), named("cuStreamBeginCapture_v2_ptsz"));
        let info = |version| address(newest("cuStreamGetCaptureInfo", version, 0));
        assert_ne!(info(11_000), info(12_000));
        assert_eq!(found("cuNothing", PER_THREAD), None);
    }
}
