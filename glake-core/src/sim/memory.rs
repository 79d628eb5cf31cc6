//! Physical memory: handles, who holds them, and where their bytes are.

use std::collections::BTreeMap;
use std::fs::File;

use super::bytes::{self, DeviceBytes, FileKey};
use super::slab::Slab;
use super::space::Segment;
use crate::driver::{DriverError, Result};
use crate::units::HandleId;

/// Memory that handles and mappings hold.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) device: usize,
    pub(super) bytes: u64,
    /// Made by another process, and accounted there.
    pub(super) foreign: bool,
    n_handles: u64,
    n_mappings: u64,
    store: Store,
}

/// Where the bytes of a [`Physical`] are.
#[derive(Debug)]
enum Store {
    /// Nowhere yet: it reads as zeros.
    Untouched { offset: u64 },
    /// At an offset of the device's file.
    Device { offset: u64 },
    /// In a file of its own, which other handles and processes may share.
    Own { file: File, key: FileKey },
}

/// All physical memory of the machine.
#[derive(Debug)]
pub(super) struct Memory {
    /// Id of the physical memory by handle.
    handles: Slab<u64>,
    physicals: Slab<Physical>,
    devices: Vec<DeviceBytes>,
    /// Id of the physical memory by the file of its own.
    shared: BTreeMap<FileKey, u64>,
}

impl Memory {
    pub(super) fn new(n_devices: u32) -> Self {
        Self {
            handles: Slab::default(),
            physicals: Slab::default(),
            devices: (0..n_devices).map(|_| DeviceBytes::default()).collect(),
            shared: BTreeMap::new(),
        }
    }

    pub(super) fn create(&mut self, device: usize, bytes: u64) -> Result<HandleId> {
        // Offsets are never used twice, so fresh memory needs no clearing.
        let offset = self.devices[device].take(bytes).ok_or(DriverError::OutOfMemory)?;
        Ok(self.hold(device, bytes, Store::Untouched { offset }, false))
    }

    fn hold(&mut self, device: usize, bytes: u64, store: Store, foreign: bool) -> HandleId {
        let physical = Physical { device, bytes, foreign, n_handles: 1, n_mappings: 0, store };
        let id = self.physicals.insert(physical);
        HandleId(self.handles.insert(id))
    }

    /// The id of the memory of a live handle, and the memory.
    pub(super) fn of(&self, handle: HandleId) -> Result<(u64, &Physical)> {
        let id = *self.handles.get(handle.0).ok_or(DriverError::UnknownHandle(handle))?;
        Ok((id, self.physicals.get(id).ok_or(DriverError::UnknownHandle(handle))?))
    }

    /// Memory by its id.
    pub(super) fn get(&self, id: u64) -> Option<&Physical> {
        self.physicals.get(id)
    }

    /// Forgets a handle; returns the memory if nothing holds it any more.
    pub(super) fn release(&mut self, handle: HandleId) -> Result<Option<Physical>> {
        let id = self.handles.remove(handle.0).ok_or(DriverError::UnknownHandle(handle))?;
        Ok(self.let_go(id, |physical| physical.n_handles -= 1))
    }

    pub(super) fn mapped(&mut self, id: u64) {
        if let Some(physical) = self.physicals.get_mut(id) {
            physical.n_mappings += 1;
        }
    }

    /// Counts a mapping off; returns the memory if nothing holds it any more.
    pub(super) fn unmapped(&mut self, id: u64) -> Option<Physical> {
        self.let_go(id, |physical| physical.n_mappings -= 1)
    }

    fn let_go(&mut self, id: u64, count: impl FnOnce(&mut Physical)) -> Option<Physical> {
        let physical = self.physicals.get_mut(id)?;
        count(physical);
        if physical.n_handles + physical.n_mappings > 0 {
            return None;
        }
        let physical = self.physicals.remove(id)?;
        match &physical.store {
            Store::Untouched { .. } => {}
            Store::Device { offset } => self.devices[physical.device].clear(*offset, physical.bytes),
            Store::Own { key, .. } => drop(self.shared.remove(key)),
        }
        Some(physical)
    }

    /// Reads the bytes at `from` in a segment; memory that was never written is zero.
    pub(super) fn load(&self, from: Segment, out: &mut [u8]) -> Result<()> {
        match self.physicals.get(from.memory).map(|physical| (physical.device, &physical.store)) {
            Some((device, Store::Device { offset })) => self.devices[device].load(offset + from.offset, out),
            Some((_, Store::Own { file, .. })) => bytes::load(file, from.offset, out),
            Some((_, Store::Untouched { .. })) | None => {
                out.fill(0);
                Ok(())
            }
        }
    }

    /// Writes the bytes at `to` in a segment.
    pub(super) fn store(&mut self, to: Segment, data: &[u8]) -> Result<()> {
        let Some(physical) = self.physicals.get_mut(to.memory) else { return Ok(()) };
        match &physical.store {
            Store::Untouched { offset } | Store::Device { offset } => {
                let offset = *offset;
                self.devices[physical.device].store(offset + to.offset, data)?;
                physical.store = Store::Device { offset };
                Ok(())
            }
            Store::Own { file, .. } => bytes::store(file, to.offset, data),
        }
    }

    /// The file behind a handle, its bytes moved there at the first call.
    pub(super) fn share(&mut self, handle: HandleId) -> Result<File> {
        let (id, physical) = self.of(handle)?;
        let (device, size) = (physical.device, physical.bytes);
        let moved_from = match &physical.store {
            Store::Own { file, .. } => return bytes::duplicate(file),
            Store::Untouched { .. } => None,
            Store::Device { offset } => Some(*offset),
        };
        let file = bytes::shared_file(size)?;
        if let Some(offset) = moved_from {
            self.devices[device].copy_out(offset, size, &file)?;
        }
        let key = bytes::key(&file)?;
        let copy = bytes::duplicate(&file)?;
        if let Some(offset) = moved_from {
            self.devices[device].clear(offset, size);
        }
        if let Some(physical) = self.physicals.get_mut(id) {
            physical.store = Store::Own { file, key };
            self.shared.insert(key, id);
        }
        Ok(copy)
    }

    /// A handle for the memory behind `file`: the same memory where it came from this machine.
    pub(super) fn attach(&mut self, device: usize, file: File, size: u64) -> Result<HandleId> {
        bytes::check_shared(&file, size)?;
        let key = bytes::key(&file)?;
        let Some(&id) = self.shared.get(&key) else {
            let handle = self.hold(device, size, Store::Own { file, key }, true);
            let (id, _) = self.of(handle)?;
            self.shared.insert(key, id);
            return Ok(handle);
        };
        match self.physicals.get_mut(id) {
            Some(physical) if physical.device == device => {
                physical.n_handles += 1;
                Ok(HandleId(self.handles.insert(id)))
            }
            _ => Err(DriverError::InvalidValue("the handle is on another device")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Memory;
    use crate::sim::space::Segment;
    use crate::units::{HandleId, PAGE_BYTES};

    fn write(memory: &mut Memory, handle: HandleId) {
        let id = memory.of(handle).unwrap().0;
        let all = Segment { memory: id, offset: 0, bytes: PAGE_BYTES };
        memory.store(all, &vec![1; 1 << 20]).unwrap();
    }

    #[test]
    fn the_host_has_only_what_was_written_and_not_released() {
        let mut memory = Memory::new(1);
        let handles = [(); 3].map(|()| memory.create(0, PAGE_BYTES).unwrap());
        assert_eq!(memory.devices[0].host_bytes(), 0);
        write(&mut memory, handles[0]);
        write(&mut memory, handles[1]);
        assert!(memory.devices[0].host_bytes() >= 2 << 20);
        memory.release(handles[0]).unwrap();
        memory.release(handles[2]).unwrap();
        assert!(memory.devices[0].host_bytes() < 2 << 20);
        let shared = memory.share(handles[1]).unwrap();
        assert_eq!(memory.devices[0].host_bytes(), 0, "the bytes moved to a file of their own");
        assert_eq!(memory.release(handles[1]).unwrap().map(|freed| freed.bytes), Some(PAGE_BYTES));
        assert!(memory.shared.is_empty());
        let again = memory.attach(0, shared, PAGE_BYTES).unwrap();
        assert!(memory.of(again).unwrap().1.foreign);
    }
}
