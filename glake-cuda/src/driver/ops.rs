//! Work that runs as kernels.

use glake_core::driver::{DeviceOps, DriverError, Piece, Result};
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use super::space::Need;
use super::stream::OnStream;
use super::{CudaDriver, Shared};
use crate::call::copy;
use crate::call::kernel::Grid;
use crate::kernels::grid;

/// Bytes of a flag, a counter, or a word of a table.
const WORD_BYTES: usize = size_of::<u64>();

impl Shared {
    /// Checks one piece of a copy.
    fn may_copy(&self, on: &OnStream<'_>, piece: Piece) -> Result<()> {
        self.may_range(on, AddressRange::new(piece.src, piece.bytes), Need::Read)?;
        self.may_range(on, AddressRange::new(piece.dst, piece.bytes), Need::Write)
    }
}

impl OnStream<'_> {
    /// Enqueues the kernel that copies.
    ///
    /// # Safety
    /// Both ranges are mapped, with access, until the copy is done.
    pub(crate) unsafe fn copy_by_kernel(&self, dst: DevicePtr, src: DevicePtr, bytes: u64) -> Result<()> {
        let grid = grid(bytes, 1, self.device.n_processors);
        // SAFETY: the kernel takes two addresses and a length; the caller vouches for both.
        unsafe { self.launch(|kernels| kernels.copy, grid, &mut [dst.0, src.0, bytes]) }
    }
}

/// A range of whole aligned words: how many.
fn n_words(range: AddressRange) -> Result<u64> {
    let word_bytes = WORD_BYTES as u64;
    if range.start.is_aligned(word_bytes) && range.bytes.is_multiple_of(word_bytes) {
        Ok(range.bytes / word_bytes)
    } else {
        Err(DriverError::InvalidValue("a pattern is made of aligned 8-byte words"))
    }
}

impl DeviceOps for CudaDriver {
    fn copy_by_kernel(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on(stream)?;
        self.shared.may_copy(&on, Piece { dst, src, bytes })?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the map says that both ranges are mapped, with access.
        unsafe { on.copy_by_kernel(dst, src, bytes) }
    }

    fn gather(&self, pieces: &[Piece], stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on_for_host(stream)?;
        pieces.iter().try_for_each(|piece| self.shared.may_copy(&on, *piece))?;
        let longest = pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0);
        if longest == 0 {
            return Ok(());
        }
        let _relaxed = on.device.enter_beside_captures()?;
        // The kernel reads the table where it lies, in pinned host memory.
        let table: Vec<[u64; 3]> =
            pieces.iter().map(|piece| [piece.dst.0, piece.src.0, piece.bytes]).collect();
        let table: &[u8] = bytemuck::cast_slice(&table);
        let mut pinned = self.shared.pinned.take(table.len())?;
        // SAFETY: the block was idle, so no device works on it.
        unsafe { pinned.bytes_mut(table.len()) }.copy_from_slice(table);
        let at = pinned.raw(table.len()).cast::<u8>().expose_provenance() as u64;
        let n = pieces.len() as u64;
        let grid = grid(longest, n, on.device.n_processors);
        // SAFETY: the map says that all ranges are mapped, with access; the table is as long as
        // said, reachable for every device, and kept behind the kernel.
        let enqueued = unsafe { on.launch(|kernels| kernels.gather, grid, &mut [at, n]) };
        self.shared.keep(Box::new(pinned), &on);
        enqueued
    }

    fn compare(&self, a: DevicePtr, b: DevicePtr, bytes: u64, stream: StreamId) -> Result<bool> {
        self.shared.poll();
        let on = self.shared.on_for_host(stream)?;
        self.shared.may_range(&on, AddressRange::new(a, bytes), Need::Read)?;
        self.shared.may_range(&on, AddressRange::new(b, bytes), Need::Read)?;
        if bytes == 0 {
            return on.settle().map(|()| true);
        }
        let _relaxed = on.device.enter_beside_captures()?;
        let mut found = self.shared.pinned.take(WORD_BYTES)?;
        // SAFETY: the block was idle, so no device works on it.
        unsafe { found.bytes_mut(WORD_BYTES) }.fill(0);
        let at = found.raw(WORD_BYTES).cast::<u8>().expose_provenance() as u64;
        let grid = grid(bytes, 1, on.device.n_processors);
        // SAFETY: the map says that both ranges are mapped and readable; the flag is reachable for
        // every device and kept until the kernel is done, for which `settle` waits.
        let enqueued = unsafe { on.launch(|kernels| kernels.compare, grid, &mut [a.0, b.0, bytes, at]) };
        enqueued.and(on.settle())?;
        // SAFETY: the kernel is done.
        Ok(unsafe { found.bytes(WORD_BYTES) } == [0; WORD_BYTES])
    }

    fn fill_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on(stream)?;
        let n = n_words(range)?;
        self.shared.may_range(&on, range, Need::Write)?;
        if n == 0 {
            return Ok(());
        }
        let grid = grid(range.bytes, 1, on.device.n_processors);
        let mut words = [range.start.0, n, seed];
        // SAFETY: the map says that the range is mapped and writable.
        unsafe { on.launch(|kernels| kernels.fill_pattern, grid, &mut words) }
    }

    fn check_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on(stream)?;
        let n = n_words(range)?;
        self.shared.may_range(&on, range, Need::Read)?;
        if n == 0 {
            return Ok(());
        }
        let grid = grid(range.bytes, 1, on.device.n_processors);
        let mut words = [range.start.0, n, seed];
        // SAFETY: the map says that the range is mapped and readable.
        unsafe { on.launch(|kernels| kernels.check_pattern, grid, &mut words) }
    }

    fn mismatches(&self, stream: StreamId) -> Result<u64> {
        let on = self.shared.on_for_host(stream)?;
        let counter = on.device.kernels()?.mismatches;
        let mut n = [0; WORD_BYTES];
        // SAFETY: the counter is a word of the loaded module; `n` is borrowed until the copy is
        // done, for which `settle` waits.
        let enqueued = unsafe { copy::to_host(&raw mut n[..], counter, on.raw) };
        enqueued.and(on.settle())?;
        Ok(u64::from_ne_bytes(n))
    }

    fn delay(&self, stream: StreamId, ns: u64) -> Result<()> {
        self.shared.poll();
        let on = self.shared.on(stream)?;
        let one = Grid { x: 1, y: 1, threads: 1 };
        // SAFETY: the kernel touches no memory.
        unsafe { on.launch(|kernels| kernels.delay, one, &mut [ns]) }
    }
}
