//! Bytes on both sides, and whether they arrived.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use glake::driver::{Access, Driver, HostBuffer, HostBytes, pattern_word};
use glake::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES, StreamId, round_up};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Device memory, with a stream of its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSide<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) start: DevicePtr,
    pub(crate) stream: StreamId,
}

impl<'a> DeviceSide<'a> {
    /// `bytes` bytes in one handle, which `device` alone can reach.
    pub(crate) fn new(driver: &'a dyn Driver, device: DeviceId, bytes: u64) -> Outcome<Self> {
        let step = driver.granularity(device)?.max(PAGE_BYTES);
        let bytes = round_up(bytes, step).ok_or("too long a copy")?;
        let range = driver.reserve(bytes, step)?;
        driver.map(range.start, driver.create(device, bytes)?)?;
        driver.set_access(range, &[device], Access::ReadWrite)?;
        Ok(Self { driver, start: range.start, stream: driver.create_stream(device)? })
    }

    /// Fills `bytes` bytes with the pattern of `seed`.
    pub(crate) fn fill(&self, bytes: u64, seed: u64) -> Outcome<()> {
        self.driver.fill_pattern(AddressRange::new(self.start, bytes), seed, self.stream)?;
        self.finish()
    }

    /// Fails if the bytes are not the pattern of `seed`.
    pub(crate) fn check(&self, bytes: u64, seed: u64) -> Outcome<()> {
        let before = self.driver.mismatches(self.stream)?;
        self.driver.check_pattern(AddressRange::new(self.start, bytes), seed, self.stream)?;
        match self.driver.mismatches(self.stream)? - before {
            0 => Ok(()),
            wrong => Err(format!("{wrong} words of {bytes} bytes are wrong on the device").into()),
        }
    }

    /// Waits for what is enqueued on the stream.
    pub(crate) fn finish(&self) -> Outcome<()> {
        let event = self.driver.record(self.stream)?;
        let done = self.driver.synchronize(event);
        self.driver.forget(event);
        Ok(done?)
    }
}

/// Memory on the host.
pub(crate) fn host_memory(
    driver: &dyn Driver,
    device: DeviceId,
    bytes: u64,
    pinned: Pinned,
) -> Outcome<HostBuffer> {
    match pinned {
        Pinned::Yes => Ok(driver.pin(bytes, device)?),
        // Written throughout, so that the host has given it memory.
        Pinned::No => Ok(Box::new(vec![1; usize::try_from(bytes)?])),
    }
}

/// Whether memory on the host is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinned {
    Yes,
    No,
}

/// Writes the pattern of `seed`.
pub(crate) fn fill(memory: &mut dyn HostBytes, seed: u64) {
    fill_from(memory.as_mut(), seed, 0);
}

/// Writes the pattern of `seed` from its word `first` on.
pub(crate) fn fill_from(memory: &mut [u8], seed: u64, first: u64) {
    for (word, index) in memory.chunks_exact_mut(8).zip(first..) {
        word.copy_from_slice(&pattern_word(seed, index).to_le_bytes());
    }
}

/// Fails if the bytes are not the pattern of `seed`.
pub(crate) fn check(memory: &[u8], seed: u64) -> Outcome<()> {
    check_from(memory, seed, 0)
}

/// Fails if the bytes are not the pattern of `seed` from its word `first` on.
pub(crate) fn check_from(memory: &[u8], seed: u64, first: u64) -> Outcome<()> {
    let words = memory.chunks_exact(8).zip(first..);
    match words.filter(|(word, index)| **word != pattern_word(seed, *index).to_le_bytes()).count() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} words of {} bytes are wrong on the host", memory.len()).into()),
    }
}

/// A file with the bytes of `memory`, in the page cache. It has no name and goes with the value.
pub(crate) fn file(folder: &Path, memory: &[u8]) -> Outcome<File> {
    let path = folder.join(format!("glake-bandwidth-{}", std::process::id()));
    let open = || File::options().read(true).write(true).create_new(true).open(&path);
    let mut file = open()?;
    std::fs::remove_file(&path)?;
    file.write_all(memory)?;
    Ok(file)
}
