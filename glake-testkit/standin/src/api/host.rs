//! Pinned host memory.

use std::ffi::c_void;

use crate::abi::Out;
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::space::{Kind, Region};
use crate::raw;

driver_functions! {
    fn cuMemHostAlloc(start: Out<*mut c_void>, bytes: u64, flags: u32) |machine| {
        let _ = flags;
        start.put(raw::pointer(pin_new(machine, bytes)?))
    }

    fn cuMemAllocHost_v2(start: Out<*mut c_void>, bytes: u64) |machine| {
        start.put(raw::pointer(pin_new(machine, bytes)?))
    }

    fn cuMemFreeHost(start: *mut c_void) |machine| {
        let context = machine.current()?;
        machine.check_unsafe()?;
        let start = start.expose_provenance() as u64;
        let region = pinned(machine, start, true).ok_or(Code::INVALID_VALUE)?;
        // What still copies from there or to it comes first, as it may on hardware.
        machine.run_context(context)?;
        machine.space.regions.remove(&start);
        // SAFETY: it was made by `pin_new`; with its region gone no work touches it.
        unsafe { raw::give_back(start, region.bytes) };
        Ok(())
    }

    fn cuMemHostRegister_v2(start: *mut c_void, bytes: u64, flags: u32) |machine| {
        let _ = flags;
        machine.current()?;
        machine.check_unsafe()?;
        let start = start.expose_provenance() as u64;
        let end = start.checked_add(bytes).filter(|end| start != 0 && *end > start);
        let end = end.ok_or(Code::INVALID_VALUE)?;
        let before = machine.space.regions.range(..end).next_back();
        if before.is_some_and(|(first, region)| first + region.bytes > start) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        machine.space.regions.insert(start, Region { bytes, kind: Kind::Pinned { is_ours: false } });
        Ok(())
    }

    fn cuMemHostUnregister(start: *mut c_void) |machine| {
        let context = machine.current()?;
        machine.check_unsafe()?;
        let start = start.expose_provenance() as u64;
        pinned(machine, start, false).ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?;
        machine.run_context(context)?;
        machine.space.regions.remove(&start);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, start: *mut c_void, flags: u32) |machine| {
        let _ = flags;
        let start = start.expose_provenance() as u64;
        machine.space.is_pinned(start, 1).then_some(()).ok_or(Code::INVALID_VALUE)?;
        address.put(start)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, start: *mut c_void) |machine| {
        let start = start.expose_provenance() as u64;
        machine.space.is_pinned(start, 1).then_some(()).ok_or(Code::INVALID_VALUE)?;
        flags.put(0)
    }
}

/// New pinned memory.
fn pin_new(machine: &mut Machine, bytes: u64) -> Result<u64> {
    machine.current()?;
    machine.check_unsafe()?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let start = raw::allocate(bytes).ok_or(Code::OUT_OF_MEMORY)?;
    machine.space.regions.insert(start, Region { bytes, kind: Kind::Pinned { is_ours: true } });
    Ok(start)
}

/// Pinned memory that begins at an address, made here or registered.
fn pinned(machine: &Machine, start: u64, ours: bool) -> Option<Region> {
    let region = machine.space.regions.get(&start)?;
    (region.kind == Kind::Pinned { is_ours: ours }).then_some(*region)
}
