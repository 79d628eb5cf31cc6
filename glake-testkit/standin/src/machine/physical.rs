//! Physical memory: who holds it, where its bytes are, how much of a device it takes.
//!
//! The memory of a device is one sparse memory file; a handle that is exported moves into a file of
//! its own, whose descriptor is what the other process gets.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};

use crate::abi::Properties;
use crate::code::{Code, Result};

/// The granule of sizes and addresses.
pub(crate) const GRANULE_BYTES: u64 = 2 << 20;
/// The length of a device's file: more than is ever handed out, sparse.
const FILE_BYTES: u64 = 1 << 56;
/// What one step of a move copies.
const STEP_BYTES: usize = 1 << 20;
/// Exported files have these seals and a name that says the device; nothing else is imported.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
const NAME: &str = "glake-standin-";

/// A piece of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PhysicalId(pub(crate) u64);

/// Where bytes are.
#[derive(Debug)]
enum Place {
    /// At an offset of the device's file.
    Piece(u64),
    /// In a file of their own: exported or imported.
    Own(File),
}

#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
    pub(crate) properties: Properties,
    place: Place,
    /// Bytes that it takes from the device; none where another process made it.
    taken_bytes: u64,
    n_handles: u64,
    n_mappings: u64,
}

/// The memory of one device.
#[derive(Debug, Default)]
struct Bank {
    total_bytes: u64,
    used_bytes: u64,
    file: Option<File>,
    next: u64,
}

/// Memory whose bytes an export moved, and where they were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) id: PhysicalId,
    device: usize,
    offset: u64,
    bytes: u64,
}

/// All physical memory.
#[derive(Debug)]
pub(crate) struct Memory {
    banks: Vec<Bank>,
    physical: BTreeMap<PhysicalId, Physical>,
    /// What each handle stands for, and how often it is held.
    handles: BTreeMap<u64, (PhysicalId, u64)>,
}

/// An error of the host.
fn host<T, E>(result: std::result::Result<T, E>) -> Result<T> {
    result.map_err(|_| Code::OUT_OF_MEMORY)
}

fn memory_file(name: &str, flags: MemfdFlags, bytes: u64) -> Result<File> {
    let file = File::from(host(fs::memfd_create(name, flags | MemfdFlags::CLOEXEC))?);
    host(file.set_len(bytes))?;
    Ok(file)
}

impl Memory {
    pub(crate) fn new(n_devices: usize, total_bytes: u64) -> Self {
        let bank = || Bank { total_bytes, ..Bank::default() };
        Self {
            banks: (0..n_devices).map(|_| bank()).collect(),
            physical: BTreeMap::new(),
            handles: BTreeMap::new(),
        }
    }

    /// Free and total bytes of a device.
    pub(crate) fn info(&self, device: usize) -> (u64, u64) {
        let bank = &self.banks[device];
        (bank.total_bytes - bank.used_bytes, bank.total_bytes)
    }

    /// Takes bytes of a device.
    pub(crate) fn take(&mut self, device: usize, bytes: u64) -> Result {
        let bank = &mut self.banks[device];
        let used = bank.used_bytes.checked_add(bytes).filter(|used| *used <= bank.total_bytes);
        bank.used_bytes = used.ok_or(Code::OUT_OF_MEMORY)?;
        Ok(())
    }

    /// Gives bytes of a device back.
    pub(crate) fn give(&mut self, device: usize, bytes: u64) {
        self.banks[device].used_bytes -= bytes;
    }

    /// Creates memory under the handle `id`.
    pub(crate) fn create(&mut self, id: u64, device: usize, bytes: u64, properties: Properties) -> Result {
        self.take(device, bytes)?;
        let bank = &mut self.banks[device];
        if bank.file.is_none() {
            bank.file = memory_file(&format!("{NAME}all-{device}"), MemfdFlags::empty(), FILE_BYTES)
                .inspect_err(|_| bank.used_bytes -= bytes)?
                .into();
        }
        let place = Place::Piece(bank.next);
        bank.next += bytes;
        self.insert(
            id,
            Physical { device, bytes, properties, place, taken_bytes: bytes, n_handles: 1, n_mappings: 0 },
        );
        Ok(())
    }

    fn insert(&mut self, id: u64, physical: Physical) {
        self.physical.insert(PhysicalId(id), physical);
        self.handles.insert(id, (PhysicalId(id), 1));
    }

    /// What a handle stands for.
    pub(crate) fn of(&self, handle: u64) -> Result<(PhysicalId, &Physical)> {
        let (id, _) = self.handles.get(&handle).ok_or(Code::INVALID_VALUE)?;
        Ok((*id, self.physical.get(id).ok_or(Code::INVALID_VALUE)?))
    }

    /// The device of some physical memory.
    pub(crate) fn device(&self, id: PhysicalId) -> usize {
        self.physical.get(&id).map_or(0, |physical| physical.device)
    }

    /// The file and offset of some physical memory.
    pub(crate) fn place(&self, id: PhysicalId) -> Option<(&File, u64)> {
        let physical = self.physical.get(&id)?;
        match &physical.place {
            Place::Piece(offset) => Some((self.banks[physical.device].file.as_ref()?, *offset)),
            Place::Own(file) => Some((file, 0)),
        }
    }

    /// Holds a mapped handle once more, released or not.
    pub(crate) fn retain(&mut self, handle: u64, id: PhysicalId) -> Result {
        let physical = self.physical.get_mut(&id).ok_or(Code::INVALID_VALUE)?;
        let (_, n) = self.handles.entry(handle).or_insert((id, 0));
        if *n == 0 {
            physical.n_handles += 1;
        }
        *n += 1;
        Ok(())
    }

    /// Lets a handle go; the memory lives on while it is held or mapped.
    pub(crate) fn release(&mut self, handle: u64) -> Result {
        let (id, n) = self.handles.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        let id = *id;
        *n -= 1;
        if *n == 0 {
            self.handles.remove(&handle);
            self.drop_share(id, |physical| physical.n_handles -= 1);
        }
        Ok(())
    }

    pub(crate) fn mapped(&mut self, id: PhysicalId) {
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.n_mappings += 1;
        }
    }

    pub(crate) fn unmapped(&mut self, id: PhysicalId) {
        self.drop_share(id, |physical| physical.n_mappings -= 1);
    }

    fn drop_share(&mut self, id: PhysicalId, change: impl FnOnce(&mut Physical)) {
        let Some(physical) = self.physical.get_mut(&id) else { return };
        change(physical);
        if physical.n_handles + physical.n_mappings > 0 {
            return;
        }
        let Some(physical) = self.physical.remove(&id) else { return };
        self.give(physical.device, physical.taken_bytes);
        if let Place::Piece(offset) = physical.place {
            self.punch(physical.device, offset, physical.bytes);
        }
    }

    /// Gives the host's memory back. The offset is never used again, so that a failure of the host
    /// costs memory and nothing else.
    fn punch(&self, device: usize, offset: u64, bytes: u64) {
        if let Some(file) = &self.banks[device].file {
            let _ =
                fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes);
        }
    }

    /// A descriptor that stands for a handle. Where its bytes moved, its mappings have to be made
    /// anew, and then [`vacate`](Self::vacate) called.
    pub(crate) fn export(&mut self, handle: u64) -> Result<(File, Option<Moved>)> {
        let (id, physical) = self.of(handle)?;
        if physical.properties.handle_types & crate::abi::POSIX_FD == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let (device, bytes) = (physical.device, physical.bytes);
        let offset = match &physical.place {
            Place::Own(file) => return Ok((host(file.try_clone())?, None)),
            Place::Piece(offset) => *offset,
        };
        let own = memory_file(&format!("{NAME}{device}"), MemfdFlags::ALLOW_SEALING, bytes)?;
        host(fs::fcntl_add_seals(&own, SEALS))?;
        if let Some(from) = &self.banks[device].file {
            move_bytes(from, offset, &own, bytes)?;
        }
        let exported = host(own.try_clone())?;
        if let Some(physical) = self.physical.get_mut(&id) {
            physical.place = Place::Own(own);
        }
        Ok((exported, Some(Moved { id, device, offset, bytes })))
    }

    /// Gives the host's memory back where an exported handle was.
    pub(crate) fn vacate(&self, moved: Moved) {
        self.punch(moved.device, moved.offset, moved.bytes);
    }

    /// A new handle `id` for an exported descriptor, which stays the caller's.
    pub(crate) fn import(&mut self, id: u64, fd: i32, properties: impl Fn(i32) -> Properties) -> Result {
        if fd < 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller of the import vouches that its descriptor is open during the call.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let file = File::from(borrowed.try_clone_to_owned().map_err(|_| Code::INVALID_VALUE)?);
        let device = exported_device(&file, fd).filter(|device| *device < self.banks.len());
        let device = device.ok_or(Code::INVALID_VALUE)?;
        let key = host(file.metadata())?;
        let same = self.physical.iter_mut().find(|(_, physical)| match &physical.place {
            Place::Own(own) => {
                own.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (key.dev(), key.ino()))
            }
            Place::Piece(_) => false,
        });
        if let Some((&physical_id, physical)) = same {
            physical.n_handles += 1;
            self.handles.insert(id, (physical_id, 1));
            return Ok(());
        }
        let ordinal = i32::try_from(device).map_err(|_| Code::INVALID_VALUE)?;
        let (properties, place) = (properties(ordinal), Place::Own(file));
        let bytes = key.len();
        self.insert(
            id,
            Physical { device, bytes, properties, place, taken_bytes: 0, n_handles: 1, n_mappings: 0 },
        );
        Ok(())
    }
}

/// The device whose memory an exported file is.
fn exported_device(file: &File, fd: i32) -> Option<usize> {
    let seals = fs::fcntl_get_seals(file).ok()?;
    seals.contains(SEALS).then_some(())?;
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_prefix(NAME)?;
    name.split(' ').next()?.parse().ok()
}

/// Copies what the file has; behind its end and in its holes all is zero, as in a new file.
fn move_bytes(from: &File, mut offset: u64, to: &File, bytes: u64) -> Result {
    let mut step = vec![0; STEP_BYTES];
    let mut done = 0;
    while done < bytes {
        let n = (bytes - done).min(STEP_BYTES as u64);
        let part = &mut step[..crate::abi::to_usize(n)];
        host(from.read_exact_at(part, offset))?;
        if part.iter().any(|byte| *byte != 0) {
            host(to.write_all_at(part, done))?;
        }
        (offset, done) = (offset + n, done + n);
    }
    Ok(())
}
