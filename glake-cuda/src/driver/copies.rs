//! Copies and fills. A copy runs on the device of its stream, which needs access to both sides.
//!
//! Host memory of asynchronous copies is pinned: memory lent as [`PinnedBytes`](crate::PinnedBytes)
//! as it is, other memory through a staging block. A copy from pageable memory would make the
//! caller wait for the stream.

use std::collections::BTreeMap;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::Ordering;

use glake_core::driver::{Copies, DriverError, ReadId, Result, SharedBytes};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};

use super::space::{Cover, Need, bit};
use super::stream::OnStream;
use super::{CudaDriver, Shared, lock};
use crate::call::{Event, copy, order};
use crate::host::Pinned;

/// When a copy on one device goes by kernel instead of by the copy engine.
#[derive(Clone, Copy, Debug)]
struct ByKernel {
    /// Copies of at least so many bytes.
    from_bytes: u64,
    /// Where a border between two mappings, on either side, comes that often: once in fewer bytes
    /// than these on average.
    border_within_bytes: u64,
}

/// The copy engine loses about 0.3 µs at each border between mappings, a third of its rate over
/// handles of 2 MiB; kernels lose nothing. Measured on an H200 by the example `gpu_compare`.
const BY_KERNEL: ByKernel = ByKernel { from_bytes: 8 << 20, border_within_bytes: 16 << 20 };

impl ByKernel {
    /// Whether to copy `bytes` by a kernel of `device`.
    fn takes(self, bytes: u64, src: Cover, dst: Cover, device: DeviceId) -> bool {
        let n_borders = (src.n_mappings + dst.n_mappings).saturating_sub(2);
        let own = src.owners | dst.owners == bit(device);
        own && bytes >= self.from_bytes && n_borders.saturating_mul(self.border_within_bytes) > bytes
    }
}

/// Asynchronous reads that were not taken yet.
pub(crate) type Reads = BTreeMap<ReadId, Read>;

/// One asynchronous read.
#[derive(Debug)]
pub(crate) struct Read {
    event: Event,
    device: DeviceId,
    pinned: ManuallyDrop<Pinned>,
    dst: Box<[u8]>,
}

impl Shared {
    /// Whether the stream's device may touch `bytes` bytes at `at`.
    pub(crate) fn may(&self, on: &OnStream<'_>, at: DevicePtr, bytes: usize, need: Need) -> Result<()> {
        self.may_range(on, AddressRange::new(at, bytes as u64), need)
    }

    /// Whether the stream's device may touch `range`.
    pub(crate) fn may_range(&self, on: &OnStream<'_>, range: AddressRange, need: Need) -> Result<()> {
        lock(&self.space).check_access(range, need, on.device.id)
    }

    /// As [`may_range`](Self::may_range), and what the range lies on.
    fn cover(&self, on: &OnStream<'_>, range: AddressRange, need: Need) -> Result<Cover> {
        lock(&self.space).cover(range, need, on.device.id)
    }

    /// Forgets the reads that nobody took; for closing, when all work is done.
    pub(crate) fn drop_reads(&self) {
        for (_, read) in mem::take(&mut *lock(&self.reads)) {
            self.end_read(read);
        }
    }

    /// Takes event and staging block of a finished read back; returns its buffer.
    fn end_read(&self, read: Read) -> Box<[u8]> {
        drop(ManuallyDrop::into_inner(read.pinned));
        if let Ok(device) = self.device(read.device) {
            device.recycle(read.event);
        }
        read.dst
    }

    fn start_read(&self, on: &OnStream<'_>, src: DevicePtr, dst: Box<[u8]>) -> Result<Read> {
        let _relaxed = on.device.enter_beside_captures()?;
        let pinned = self.pinned.take(dst.len())?;
        let event = on.device.take_event()?;
        let enqueued = match dst.len() {
            0 => Ok(()),
            // SAFETY: the map says that `src` is mapped and readable; the staging block is leaked
            // unless the event behind the copy has passed.
            n_bytes => unsafe { copy::to_host(pinned.raw(n_bytes), src, on.raw) },
        };
        if let Err(error) = enqueued {
            on.device.recycle(event);
            return Err(error);
        }
        let pinned = ManuallyDrop::new(pinned);
        // SAFETY: `on` keeps the stream alive; the event is the driver's, of the same device.
        unsafe { order::record(event, on.raw) }?;
        Ok(Read { event, device: on.device.id, pinned, dst })
    }
}

impl Copies for CudaDriver {
    fn write(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<()> {
        let on = self.shared.on_for_host(stream)?;
        self.shared.may(&on, dst, src.len(), Need::Write)?;
        if src.is_empty() {
            return on.settle();
        }
        // SAFETY: the map says that `dst` is mapped and writable; `src` is borrowed until the copy
        // is done, for which `settle` waits.
        let enqueued = unsafe { copy::to_device(dst, src, on.raw) };
        let settled = on.settle();
        self.shared.poll();
        enqueued.and(settled)
    }

    fn read(&self, src: DevicePtr, dst: &mut [u8], stream: StreamId) -> Result<()> {
        let on = self.shared.on_for_host(stream)?;
        self.shared.may(&on, src, dst.len(), Need::Read)?;
        if dst.is_empty() {
            return on.settle();
        }
        // SAFETY: the map says that `src` is mapped and readable; `dst` is borrowed until the copy
        // is done, for which `settle` waits.
        let enqueued = unsafe { copy::to_host(dst, src, on.raw) };
        let settled = on.settle();
        self.shared.poll();
        enqueued.and(settled)
    }

    fn write_async(&self, dst: DevicePtr, src: SharedBytes, stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on_for_host(stream)?;
        let bytes: &[u8] = (*src).as_ref();
        self.shared.may(&on, dst, bytes.len(), Need::Write)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if self.shared.pinned.has_lent(bytes) {
            // SAFETY: the map says that `dst` is mapped and writable; `src` owns the bytes, does
            // not change them while it is shared, and is kept behind the copy.
            let enqueued = unsafe { copy::to_device(dst, bytes, on.raw) };
            self.shared.keep(Box::new(src), &on);
            return enqueued;
        }
        let _relaxed = on.device.enter_beside_captures()?;
        let mut staging = self.shared.pinned.take(bytes.len())?;
        // SAFETY: the block was idle, so no device works on it.
        unsafe { staging.bytes_mut(bytes.len()) }.copy_from_slice(bytes);
        // SAFETY: the map says that `dst` is mapped and writable; the block is kept behind the copy.
        let enqueued = unsafe { copy::to_device(dst, staging.raw(bytes.len()), on.raw) };
        self.shared.keep(Box::new(staging), &on);
        enqueued
    }

    fn read_async(&self, src: DevicePtr, dst: Box<[u8]>, stream: StreamId) -> Result<ReadId> {
        self.shared.poll();
        let on = self.shared.on_for_host(stream)?;
        self.shared.may(&on, src, dst.len(), Need::Read)?;
        let read = self.shared.start_read(&on, src, dst)?;
        let id = ReadId(self.shared.n_reads.fetch_add(1, Ordering::Relaxed) + 1);
        lock(&self.shared.reads).insert(id, read);
        Ok(id)
    }

    fn take_read(&self, id: ReadId) -> Result<Option<Box<[u8]>>> {
        self.shared.poll();
        let mut read = lock(&self.shared.reads).remove(&id).ok_or(DriverError::UnknownRead)?;
        match self.shared.has_passed(read.event, read.device) {
            Ok(true) => {
                let n_bytes = read.dst.len();
                // SAFETY: the event behind the copy has passed, so no device writes the block.
                read.dst.copy_from_slice(unsafe { read.pinned.bytes(n_bytes) });
                Ok(Some(self.shared.end_read(read)))
            }
            pending => {
                lock(&self.shared.reads).insert(id, read);
                pending.map(|_| None)
            }
        }
    }

    fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on(stream)?;
        let from = self.shared.cover(&on, AddressRange::new(src, bytes), Need::Read)?;
        let to = self.shared.cover(&on, AddressRange::new(dst, bytes), Need::Write)?;
        if bytes == 0 {
            return Ok(());
        }
        if BY_KERNEL.takes(bytes, from, to, on.device.id) {
            // SAFETY: the map says that both ranges are mapped, with access.
            return unsafe { on.copy_by_kernel(dst, src, bytes) };
        }
        // SAFETY: the map says that both ranges are mapped, with access.
        unsafe { copy::on_device(dst, src, bytes, on.raw) }
    }

    fn fill(&self, range: AddressRange, value: u8, stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on(stream)?;
        self.shared.may_range(&on, range, Need::Write)?;
        if range.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the map says that the range is mapped and writable.
        unsafe { copy::fill(range, value, on.raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_over_many_borders_go_by_kernel() {
        const MIB: u64 = 1 << 20;
        let on = |n_mappings, owners| Cover { n_mappings, owners };
        let takes = |bytes, src, dst| BY_KERNEL.takes(bytes, on(src, 1), on(dst, 1), DeviceId(0));
        assert!(takes(256 * MIB, 128, 128), "handles of 2 MiB");
        assert!(takes(256 * MIB, 32, 32), "handles of 8 MiB");
        assert!(takes(256 * MIB, 128, 1), "from small handles into one");
        assert!(!takes(256 * MIB, 1, 1), "one handle each");
        assert!(!takes(256 * MIB, 8, 8), "handles of 32 MiB");
        assert!(!takes(4 * MIB, 2, 2), "too short");
        assert!(!takes(0, 0, 0), "nothing");
        let peers = BY_KERNEL.takes(256 * MIB, on(128, 1), on(128, 2), DeviceId(0));
        assert!(!peers, "between devices");
    }
}
