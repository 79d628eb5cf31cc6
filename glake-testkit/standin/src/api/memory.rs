//! Plain device memory.

use std::ffi::c_void;

use crate::abi::Out;
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::space::Kind;

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

    fn cuMemAllocPitch_v2(start: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32) |machine| {
        let context = machine.current()?;
        machine.check_unsafe()?;
        let row = width.checked_next_multiple_of(PITCH_BYTES).ok_or(Code::INVALID_VALUE)?;
        let bytes = row.checked_mul(height).filter(|_| matches!(element, 4 | 8 | 16));
        start.put(machine.allocate(context, bytes.ok_or(Code::INVALID_VALUE)?, None)?)?;
        pitch.put(row)
    }

    fn cuMemFree_v2(start: u64) |machine| {
        let context = machine.current()?;
        if start == 0 {
            return Ok(());
        }
        machine.check_unsafe()?;
        let region = machine.allocated(start)?;
        // Callers rely on it that this waits, for the context that the memory is of, too.
        machine.run_context(context)?;
        if let Kind::Allocated { context: owner, .. } = region.kind {
            machine.run_context(owner)?;
        }
        machine.free(start);
        Ok(())
    }

    fn cuMemAllocAsync(start: Out<u64>, bytes: u64, stream: u64) |machine| {
        start.put(machine.allocate_async(bytes, None, stream)?)
    }

    fn cuMemAllocFromPoolAsync(start: Out<u64>, bytes: u64, pool: u64, stream: u64) |machine| {
        start.put(machine.allocate_async(bytes, Some(pool), stream)?)
    }

    fn cuMemFreeAsync(start: u64, stream: u64) |machine| { machine.free_async(start, stream) }

    fn cuIpcGetMemHandle(handle: Out<[u8; IPC_BYTES]>, start: u64) |machine| {
        machine.current()?;
        match machine.allocated(start)?.kind {
            // Of a pool there is none, nor of what is mapped.
            Kind::Allocated { pool: None, device, .. } => handle.put(ipc_handle(device, start)),
            _ => Err(Code::INVALID_VALUE),
        }
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

/// What rows begin at multiples of.
const PITCH_BYTES: u64 = 512;
/// The size of a `CUipcMemHandle`.
const IPC_BYTES: usize = 64;

/// A handle that is another for each allocation; nobody opens it.
fn ipc_handle(device: usize, start: u64) -> [u8; IPC_BYTES] {
    let mut handle = [0; IPC_BYTES];
    handle[..8].copy_from_slice(&start.to_le_bytes());
    handle[8..16].copy_from_slice(&(device as u64).to_le_bytes());
    handle[16..20].copy_from_slice(&std::process::id().to_le_bytes());
    handle
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
        // Nothing is managed.
        8 => value.put(0),
        9 => value.cast().put(i32::try_from(device).unwrap_or(0)),
        11 => value.cast().put(start),
        12 => value.cast().put(region.bytes),
        _ => Err(Code::INVALID_VALUE),
    }
}
