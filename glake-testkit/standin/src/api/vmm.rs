//! Virtual memory: reservations, physical handles, mappings, rights.

use std::ffi::c_void;
use std::os::fd::IntoRawFd as _;

use crate::abi::{ALLOCATION_PINNED, In, LOCATION_DEVICE, Location, Out, POSIX_FD, Properties, Right};
use crate::code::{Code, Result};
use crate::machine::Machine;
use crate::machine::physical::{GRANULE_BYTES, PhysicalId};
use crate::machine::space::{Kind, Region, bit};
use crate::raw::{self, Protection};

driver_functions! {
    fn cuMemGetAllocationGranularity(bytes: Out<u64>, properties: In<Properties>, option: u32) |machine| {
        let _ = option;
        device_of(machine, &properties.get()?)?;
        bytes.put(GRANULE_BYTES)
    }

    fn cuMemAddressReserve(start: Out<u64>, bytes: u64, align: u64, hint: u64, flags: u64) |machine| {
        let align = align.max(GRANULE_BYTES);
        if !is_whole(bytes) || !align.is_power_of_two() || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let _ = hint;
        machine.begin_memory()?;
        let reserved = raw::reserve(bytes, align).ok_or(Code::OUT_OF_MEMORY)?;
        machine.space.reservations.insert(reserved, bytes);
        start.put(reserved)
    }

    fn cuMemAddressFree(start: u64, bytes: u64) |machine| {
        machine.begin_memory()?;
        let is_ours = machine.space.reservations.get(&start) == Some(&bytes);
        if !is_ours || !machine.space.is_free(start, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        machine.space.reservations.remove(&start);
        // SAFETY: the reservation was made here and is empty.
        unsafe { raw::give_back(start, bytes) };
        Ok(())
    }

    fn cuMemCreate(handle: Out<u64>, bytes: u64, properties: In<Properties>, flags: u64) |machine| {
        let properties = properties.get()?;
        let device = device_of(machine, &properties)?;
        if !is_whole(bytes) || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        machine.begin_memory()?;
        let id = machine.id();
        machine.memory.create(id, device, bytes, properties)?;
        handle.put(id)
    }

    fn cuMemRelease(handle: u64) |machine| {
        machine.begin_memory()?;
        machine.memory.release(handle)
    }

    fn cuMemMap(start: u64, bytes: u64, offset: u64, handle: u64, flags: u64) |machine| {
        machine.begin_memory()?;
        let (physical, memory) = machine.memory.of(handle)?;
        if offset != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let is_aligned = start.is_multiple_of(GRANULE_BYTES);
        if !is_aligned || memory.bytes != bytes || flags != 0 || !machine.space.is_free(start, bytes) {
            return Err(Code::INVALID_VALUE);
        }
        place(machine, start, bytes, physical)?;
        let kind = Kind::Mapped { physical, handle, readers: 0, writers: 0 };
        machine.space.regions.insert(start, Region { bytes, kind });
        machine.memory.mapped(physical);
        Ok(())
    }

    fn cuMemUnmap(start: u64, bytes: u64) |machine| {
        machine.begin_memory()?;
        let mappings = machine.space.mappings(start, bytes).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: the range consists of mappings made here.
        if !unsafe { raw::unmap(start, bytes) } {
            return Err(Code::UNKNOWN);
        }
        for start in mappings {
            if let Some(Region { kind: Kind::Mapped { physical, .. }, .. }) = machine.space.regions.remove(&start) {
                machine.memory.unmapped(physical);
            }
        }
        Ok(())
    }

    fn cuMemSetAccess(start: u64, bytes: u64, rights: In<Right>, n: u64) |machine| {
        machine.begin_memory()?;
        let mappings = machine.space.mappings(start, bytes).ok_or(Code::INVALID_VALUE)?;
        let n = usize::try_from(n).map_err(|_| Code::INVALID_VALUE)?;
        let rights = (0..n).map(|index| rights.at(index)).collect::<Result<Vec<_>>>()?;
        for right in &rights {
            let is_known = right.location.kind == LOCATION_DEVICE && matches!(right.flags, 0 | 1 | 3);
            machine.device(right.location.id)?;
            is_known.then_some(()).ok_or(Code::INVALID_VALUE)?;
        }
        mappings.into_iter().try_for_each(|start| set_access(machine, start, &rights))
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) |machine| {
        let device = machine.device(location.get()?.id)?;
        let Some((_, Region { kind: Kind::Mapped { readers, writers, .. }, .. })) = machine.space.at(address) else {
            return Err(Code::INVALID_VALUE);
        };
        let has = |devices: &u64| devices & bit(device) != 0;
        flags.put(u64::from(has(readers)) | u64::from(has(writers)) << 1)
    }

    fn cuMemExportToShareableHandle(shareable: Out<i32>, handle: u64, kind: u32, flags: u64) |machine| {
        if kind != POSIX_FD || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        machine.begin_memory()?;
        let (file, moved) = machine.memory.export(handle)?;
        if let Some(moved) = moved {
            show_moved(machine, moved.id)?;
            machine.memory.vacate(moved);
        }
        shareable.put(file.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, shareable: *mut c_void, kind: u32) |machine| {
        if kind != POSIX_FD {
            return Err(Code::INVALID_VALUE);
        }
        machine.begin_memory()?;
        let fd = i32::try_from(shareable.addr()).map_err(|_| Code::INVALID_VALUE)?;
        let id = machine.id();
        machine.memory.import(id, fd, |id| Properties {
            kind: ALLOCATION_PINNED,
            handle_types: POSIX_FD,
            location: Location { kind: LOCATION_DEVICE, id },
            win32_meta: 0,
            flags: [0; 8],
        })?;
        handle.put(id)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) |machine| {
        let (_, physical) = machine.memory.of(handle)?;
        properties.put(physical.properties)
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) |machine| {
        let Some((_, region)) = machine.space.at(address) else { return Err(Code::INVALID_VALUE) };
        let Kind::Mapped { physical, handle: of, .. } = region.kind else { return Err(Code::INVALID_VALUE) };
        machine.memory.retain(of, physical)?;
        handle.put(of)
    }
}

impl Machine {
    /// Begins a call that changes memory: a capture may forbid it, and a lost context fails it.
    pub(crate) fn begin_memory(&mut self) -> Result {
        self.check_current()?;
        self.check_unsafe()
    }
}

/// Whether a size is whole granules, and not nothing.
const fn is_whole(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(GRANULE_BYTES)
}

/// The device on which such memory lies.
fn device_of(machine: &Machine, properties: &Properties) -> Result<usize> {
    let is_known = properties.kind == ALLOCATION_PINNED
        && properties.location.kind == LOCATION_DEVICE
        && matches!(properties.handle_types, 0 | POSIX_FD);
    is_known.then_some(()).ok_or(Code::INVALID_VALUE)?;
    machine.device(properties.location.id)
}

/// Shows physical memory at reserved addresses, without access.
fn place(machine: &Machine, start: u64, bytes: u64, physical: PhysicalId) -> Result {
    let (file, offset) = machine.memory.place(physical).ok_or(Code::INVALID_VALUE)?;
    // SAFETY: the range lies in a reservation made here, free or a mapping of this very memory.
    unsafe { raw::map(start, bytes, file, offset) }.then_some(()).ok_or(Code::OUT_OF_MEMORY)
}

/// Sets what devices may do with one mapping; others' rights stay.
fn set_access(machine: &mut Machine, start: u64, rights: &[Right]) -> Result {
    let Some(region) = machine.space.regions.get_mut(&start) else { return Err(Code::INVALID_VALUE) };
    let Kind::Mapped { readers, writers, .. } = &mut region.kind else { return Err(Code::INVALID_VALUE) };
    for right in rights {
        let device = usize::try_from(right.location.id).map_err(|_| Code::INVALID_DEVICE)?;
        *readers = *readers & !bit(device) | u64::from(right.flags & 1) << device;
        *writers = *writers & !bit(device) | u64::from(right.flags >> 1 & 1) << device;
    }
    let (bytes, protection) = (region.bytes, protection(*readers, *writers));
    // SAFETY: the range is a mapping made here.
    unsafe { raw::protect(start, bytes, protection) }.then_some(()).ok_or(Code::OUT_OF_MEMORY)
}

/// What the host has to allow, so that each device can do what it may.
const fn protection(readers: u64, writers: u64) -> Protection {
    match (readers, writers) {
        (0, 0) => Protection::Nothing,
        (_, 0) => Protection::Read,
        _ => Protection::Write,
    }
}

/// Shows memory that moved at all its addresses again.
fn show_moved(machine: &Machine, moved: PhysicalId) -> Result {
    for (&start, region) in &machine.space.regions {
        let Kind::Mapped { physical, readers, writers, .. } = region.kind else { continue };
        if physical != moved {
            continue;
        }
        place(machine, start, region.bytes, moved)?;
        // SAFETY: the range is a mapping made here.
        let protected = unsafe { raw::protect(start, region.bytes, protection(readers, writers)) };
        protected.then_some(()).ok_or(Code::OUT_OF_MEMORY)?;
    }
    Ok(())
}
