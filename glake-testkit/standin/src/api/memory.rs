//! Plain device memory.

use std::ffi::c_void;

use crate::abi::Out;
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::space::Kind;
use crate::machine::work::Op;

driver_functions! {
    fn cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) |machine| {
        let device = machine.current_device()?;
        let (free_bytes, total_bytes) = machine.memory.info(device);
        free.put(free_bytes)?;
        total.put(total_bytes)
    }

    fn cuMemAlloc_v2(start: Out<u64>, bytes: u64) |machine| {
        let context = machine.current()?;
        machine.check_unsafe()?;
        start.put(machine.allocate(context, bytes, None)?)
    }

    fn cuMemFree_v2(start: u64) |machine| {
        let context = machine.current()?;
        if start == 0 {
            return Ok(());
        }
        machine.check_unsafe()?;
        machine.allocated(start)?;
        // Callers rely on it that this waits.
        machine.run_context(context)?;
        machine.free(start);
        Ok(())
    }

    fn cuMemAllocAsync(start: Out<u64>, bytes: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        let device = machine.streams.get(&stream).map_or(0, |stream| machine.device_of(stream.context));
        let pool = machine.device_pools[device].1;
        start.put(allocate_on(machine, bytes, pool, stream)?)
    }

    fn cuMemAllocFromPoolAsync(start: Out<u64>, bytes: u64, pool: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        start.put(allocate_on(machine, bytes, pool, stream)?)
    }

    fn cuMemFreeAsync(start: u64, stream: u64) |machine| {
        let stream = machine.stream(stream)?;
        let captured = machine.streams.get(&stream).is_some_and(|stream| stream.capture.is_some());
        if captured {
            // Only what was allocated inside; it lives as long as the graph.
            return if machine.is_kept(start) { Ok(()) } else { Err(Code::INVALID_VALUE) };
        }
        machine.allocated(start)?;
        machine.enqueue(stream, Op::Free { start }, Vec::new())
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<u64>, address: u64) |machine| {
        machine.current()?;
        let (first, region) = machine.space.at(address).ok_or(Code::INVALID_VALUE)?;
        start.put_if_wanted(first);
        bytes.put_if_wanted(region.bytes);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Out<u8>, attribute: u32, address: u64) |machine| {
        pointer_attribute(machine, &value, attribute, address)
    }
}

/// Memory of a pool, for a stream: of its graph, where it is captured.
fn allocate_on(machine: &mut Machine, bytes: u64, pool: u64, stream: u64) -> Result<u64> {
    let Some(on) = machine.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
    let (context, capture) = (on.context, on.capture);
    let start = machine.allocate(context, bytes, Some(pool))?;
    if let Some(capture) = capture {
        machine.keep_memory(capture, start)?;
    }
    Ok(start)
}

/// The attributes of an address that the stand-in knows.
fn pointer_attribute(machine: &Machine, value: &Out<u8>, attribute: u32, address: u64) -> Result {
    const HOST: u32 = 1;
    const DEVICE: u32 = 2;
    let (start, region) = machine.space.at(address).ok_or(Code::INVALID_VALUE)?;
    let (kind, device, context) = match region.kind {
        Kind::Allocated { device, context, .. } => (DEVICE, device, context),
        Kind::Mapped { physical, .. } => (DEVICE, machine.memory.device(physical), 0),
        Kind::Pinned { .. } => (HOST, 0, 0),
    };
    match attribute {
        1 => value.cast().put(context),
        2 => value.cast().put(kind),
        3 => value.cast().put(address),
        4 if kind == HOST => value.cast::<*mut c_void>().put(crate::raw::pointer(address)),
        9 => value.cast().put(i32::try_from(device).unwrap_or(0)),
        11 => value.cast().put(start),
        12 => value.cast().put(region.bytes),
        _ => Err(Code::INVALID_VALUE),
    }
}
