//! Bytes of simulated memory in sparse memory files.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::driver::{DriverError, Result};

/// Bytes that one step of a copy moves.
const STEP_BYTES: usize = 1 << 20;
/// The seals by which a file is known as an exported handle: its size is fixed for ever.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What tells memory files apart: device and inode number.
pub(super) type FileKey = (u64, u64);

/// Turns errors of the host into driver errors.
fn native(call: &'static str) -> impl Fn(Errno) -> DriverError {
    move |errno| DriverError::Native { call, code: errno.raw_os_error().unsigned_abs() }
}

fn native_io(call: &'static str) -> impl Fn(std::io::Error) -> DriverError {
    move |error| DriverError::Native { call, code: error.raw_os_error().unwrap_or(0).unsigned_abs() }
}

/// Reads at `offset`; behind the end of the file all is zero.
pub(super) fn load(file: &File, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
    while !out.is_empty() {
        let n = match file.read_at(out, offset) {
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(native_io("pread")(error)),
        };
        if n == 0 {
            out.fill(0);
        }
        let n = if n == 0 { out.len() } else { n };
        out = &mut out[n..];
        offset += n as u64;
    }
    Ok(())
}

/// Writes at `offset`.
pub(super) fn store(file: &File, offset: u64, data: &[u8]) -> Result<()> {
    file.write_all_at(data, offset).map_err(native_io("pwrite"))
}

/// Another descriptor of the same file.
pub(super) fn duplicate(file: &File) -> Result<File> {
    file.try_clone().map_err(native_io("dup"))
}

/// A new file of `size` zeros whose size nobody can change.
pub(super) fn shared_file(size: u64) -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(fs::memfd_create("glake-sim-handle", flags).map_err(native("memfd_create"))?);
    file.set_len(size).map_err(native_io("ftruncate"))?;
    fs::fcntl_add_seals(&file, SEALS).map_err(native("fcntl"))?;
    Ok(file)
}

/// Whether `file` came from [`shared_file`] with that size.
pub(super) fn check_shared(file: &File, size: u64) -> Result<()> {
    let foreign = DriverError::InvalidValue("the file descriptor is not an exported handle of that size");
    let seals = fs::fcntl_get_seals(file).map_err(|_| foreign)?;
    let stat = fs::fstat(file).map_err(native("fstat"))?;
    let fits = seals.contains(SEALS) && u64::try_from(stat.st_size) == Ok(size) && size > 0;
    if fits { Ok(()) } else { Err(foreign) }
}

/// What tells `file` apart.
pub(super) fn key(file: &File) -> Result<FileKey> {
    let stat = fs::fstat(file).map_err(native("fstat"))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// One sparse file for all memory of a device, made when the first byte is written.
#[derive(Debug, Default)]
pub(super) struct DeviceBytes {
    file: Option<File>,
    next: u64,
}

impl DeviceBytes {
    /// An offset for `bytes` bytes that was never handed out, or `None` when the file is full.
    pub(super) fn take(&mut self, bytes: u64) -> Option<u64> {
        let offset = self.next;
        self.next = offset.checked_add(bytes).filter(|&end| i64::try_from(end).is_ok())?;
        Some(offset)
    }

    pub(super) fn load(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if let Some(file) = &self.file {
            return load(file, offset, out);
        }
        out.fill(0);
        Ok(())
    }

    pub(super) fn store(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let file = if let Some(file) = &self.file {
            file
        } else {
            let fd = fs::memfd_create("glake-sim-device", MemfdFlags::CLOEXEC);
            self.file.insert(File::from(fd.map_err(native("memfd_create"))?))
        };
        store(file, offset, data)
    }

    /// Gives the host's memory back. The offset is never used again, so that a failure of the
    /// host to do so costs memory and nothing else.
    pub(super) fn clear(&self, offset: u64, bytes: u64) {
        if let Some(file) = &self.file {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = fs::fallocate(file, flags, offset, bytes);
        }
    }

    /// Copies what is not zero to the start of `file`.
    pub(super) fn copy_out(&self, offset: u64, bytes: u64, file: &File) -> Result<()> {
        let mut buffer = vec![0; STEP_BYTES];
        let mut at = 0;
        while at < bytes {
            let n = usize::try_from(bytes - at).map_or(STEP_BYTES, |left| left.min(STEP_BYTES));
            self.load(offset + at, &mut buffer[..n])?;
            if buffer[..n].iter().any(|&byte| byte != 0) {
                store(file, at, &buffer[..n])?;
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Bytes of the host's memory that the file holds.
    #[cfg(test)]
    pub(super) fn host_bytes(&self) -> u64 {
        let blocks = self.file.as_ref().map_or(0, |file| fs::fstat(file).unwrap().st_blocks);
        u64::try_from(blocks).unwrap() * 512
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceBytes, check_shared, load, shared_file, store};
    use crate::units::PAGE_BYTES;

    #[test]
    fn cleared_bytes_leave_the_host_and_read_as_zeros() {
        let mut device = DeviceBytes::default();
        assert_eq!(device.host_bytes(), 0);
        let (first, second) = (device.take(PAGE_BYTES).unwrap(), device.take(PAGE_BYTES).unwrap());
        device.store(first, &vec![1; 1 << 20]).unwrap();
        device.store(second, &[2; 4096]).unwrap();
        let before = device.host_bytes();
        device.clear(first, PAGE_BYTES);
        assert!(before - device.host_bytes() >= 1 << 20, "{before} {}", device.host_bytes());
        let mut out = [9; 2];
        device.load(first, &mut out).unwrap();
        assert_eq!(out, [0, 0]);
        device.load(second + 4095, &mut out).unwrap();
        assert_eq!(out, [2, 0], "behind the end of the file all is zero");
    }

    #[test]
    fn an_offset_is_taken_once_until_the_file_is_full() {
        let mut device = DeviceBytes { file: None, next: i64::MAX.unsigned_abs() - PAGE_BYTES };
        assert!(device.take(PAGE_BYTES).is_some());
        assert_eq!(device.take(PAGE_BYTES), None);
    }

    #[test]
    fn only_exported_files_of_the_right_size_are_taken() {
        let file = shared_file(PAGE_BYTES).unwrap();
        check_shared(&file, PAGE_BYTES).unwrap();
        check_shared(&file, 2 * PAGE_BYTES).unwrap_err();
        file.set_len(PAGE_BYTES / 2).unwrap_err();
        check_shared(&std::fs::File::open("/dev/zero").unwrap(), PAGE_BYTES).unwrap_err();
        store(&file, PAGE_BYTES - 1, &[7]).unwrap();
        let mut last = [0];
        load(&file, PAGE_BYTES - 1, &mut last).unwrap();
        assert_eq!(last, [7]);
    }
}
