//! Pinned host memory: what copy engines read and write without a detour.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex};

use glake_core::driver::{DriverError, Result};

use crate::call::copy;
use crate::driver::lock;

/// The smallest block in bytes.
const MIN_BLOCK_BYTES: usize = 4096;
/// Blocks up to this are a power of two long, so that few sizes serve all requests. Longer ones would
/// waste too much by that: they are multiples of [`STEP_BYTES`].
const MOST_ROUND_BYTES: usize = 64 << 20;
const STEP_BYTES: usize = 2 << 20;

/// The length of a new block for `bytes`, and that of the longest idle one which serves them, too.
fn block_bytes(bytes: usize) -> Option<(usize, usize)> {
    if bytes <= MOST_ROUND_BYTES {
        let least = bytes.max(MIN_BLOCK_BYTES).next_power_of_two();
        return Some((least, least));
    }
    let least = bytes.checked_next_multiple_of(STEP_BYTES)?;
    Some((least, least.saturating_add(least / 8)))
}

/// One pinned block, initialised throughout.
struct Block {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block is plain memory that the driver pinned for all contexts and threads; whoever
// holds the value is its only owner on the host.
unsafe impl Send for Block {}
// SAFETY: a shared block is only read.
unsafe impl Sync for Block {}

/// Idle pinned blocks by size. Blocks come back here and are freed only by
/// [`free_idle`](Self::free_idle), because freeing pinned memory waits for the device.
#[derive(Default)]
pub(crate) struct PinnedPool {
    idle: Mutex<BTreeMap<usize, Vec<Block>>>,
    /// Blocks lent to users, by address: asynchronous copies need no staging for them.
    lent: Mutex<BTreeMap<usize, usize>>,
}

impl PinnedPool {
    /// A block of at least `bytes`. A context is current.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Pinned> {
        let (least, most) = block_bytes(bytes).ok_or(DriverError::OutOfMemory)?;
        let idle = lock(&self.idle).range_mut(least..=most).find_map(|(_, blocks)| blocks.pop());
        let is_zero = idle.is_none();
        let block = match idle {
            Some(block) => block,
            None => Block::new(least)?,
        };
        Ok(Pinned { block: Some(block), is_zero, pool: Arc::clone(self) })
    }

    /// Whether `bytes` lies in memory lent as [`PinnedBytes`].
    pub(crate) fn has_lent(&self, bytes: &[u8]) -> bool {
        let at = bytes.as_ptr().addr();
        let lent = lock(&self.lent);
        let block = lent.range(..=at).next_back();
        block.is_some_and(|(start, len)| at - start <= *len && bytes.len() <= len - (at - start))
    }

    /// Whether any [`PinnedBytes`] are alive.
    pub(crate) fn is_lent(&self) -> bool {
        !lock(&self.lent).is_empty()
    }

    /// Frees all idle blocks. May wait for device work. A context is current.
    pub(crate) fn free_idle(&self) -> Result<()> {
        for block in std::mem::take(&mut *lock(&self.idle)).into_values().flatten() {
            // SAFETY: an idle block is nobody's: staging blocks come back behind their event,
            // lent ones when their owner and all copies from and to them are gone.
            unsafe { copy::host_free(block.start) }?;
        }
        Ok(())
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle: usize = lock(&self.idle).iter().map(|(bytes, blocks)| bytes * blocks.len()).sum();
        f.debug_struct("PinnedPool").field("idle_bytes", &idle).finish_non_exhaustive()
    }
}

impl Block {
    /// A block of zeros.
    fn new(bytes: usize) -> Result<Self> {
        let start = copy::host_alloc(bytes)?;
        // SAFETY: the driver has just handed out `bytes` bytes at `start`, and to nobody else.
        unsafe { ptr::write_bytes(start.as_ptr(), 0, bytes) };
        Ok(Self { start, bytes })
    }
}

/// A block taken from the pool; goes back when dropped. Holders that a copy engine works for keep
/// it until the event behind the copy has passed.
pub(crate) struct Pinned {
    /// None only while dropping.
    block: Option<Block>,
    /// Whether nobody has had it before.
    is_zero: bool,
    pool: Arc<PinnedPool>,
}

impl Pinned {
    /// The first `bytes` bytes, for the driver and for reading with care.
    pub(crate) fn raw(&self, bytes: usize) -> *mut [u8] {
        let (start, most) = self.block.as_ref().map_or((NonNull::dangling(), 0), |b| (b.start, b.bytes));
        ptr::slice_from_raw_parts_mut(start.as_ptr(), bytes.min(most))
    }

    /// The first `bytes` bytes.
    ///
    /// # Safety
    /// No device writes the block.
    pub(crate) unsafe fn bytes(&self, bytes: usize) -> &[u8] {
        // SAFETY: the block is initialised and as long, and nobody writes it: the host needs
        // `&mut self` for that, and the caller vouches for the device.
        unsafe { slice::from_raw_parts(self.raw(bytes).cast(), self.raw(bytes).len()) }
    }

    /// The first `bytes` bytes, to be written.
    ///
    /// # Safety
    /// No device reads or writes the block.
    pub(crate) unsafe fn bytes_mut(&mut self, bytes: usize) -> &mut [u8] {
        // SAFETY: the block is initialised, as long, and held by `&mut self`; the caller vouches
        // for the device.
        unsafe { slice::from_raw_parts_mut(self.raw(bytes).cast(), self.raw(bytes).len()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            lock(&self.pool.idle).entry(block.bytes).or_default().push(block);
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.raw(usize::MAX).len())
    }
}

/// Pinned host bytes, zero at first: asynchronous copies from and to them need no staging copy.
///
/// Made by [`CudaDriver::pinned`](crate::CudaDriver::pinned). Wrap them in an `Arc` to pass them
/// to `write_async`, which then keeps them until the copy is done, or in a `Box` to let the driver
/// [hold](glake_core::driver::HostMemory::hold) them.
#[derive(Debug)]
pub struct PinnedBytes {
    pinned: Pinned,
    n_bytes: usize,
}

impl PinnedBytes {
    /// Lends a block of the pool, filled with zeros.
    pub(crate) fn new(mut pinned: Pinned, n_bytes: usize) -> Self {
        if !pinned.is_zero {
            // SAFETY: the block was idle, so no device works on it.
            unsafe { pinned.bytes_mut(n_bytes) }.fill(0);
        }
        let start = pinned.raw(n_bytes).cast::<u8>().addr();
        lock(&pinned.pool.lent).insert(start, n_bytes);
        Self { pinned, n_bytes }
    }
}

impl Deref for PinnedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: a device writes a lent block only while the driver has this value in its keeping, or
        // an exclusive borrow of it; neither leaves a shared one.
        unsafe { self.pinned.bytes(self.n_bytes) }
    }
}

impl DerefMut for PinnedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: a copy keeps this value, a share of the `Arc` around it, or a borrow of it until it is
        // done, and none of them leaves a `&mut`.
        unsafe { self.pinned.bytes_mut(self.n_bytes) }
    }
}

impl AsRef<[u8]> for PinnedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PinnedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        let start = self.pinned.raw(self.n_bytes).cast::<u8>().addr();
        lock(&self.pinned.pool.lent).remove(&start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_blocks_waste_little() {
        const MIB: usize = 1 << 20;
        assert_eq!(block_bytes(0), Some((4096, 4096)));
        assert_eq!(block_bytes(4097), Some((8192, 8192)));
        assert_eq!(block_bytes(33 * MIB), Some((64 * MIB, 64 * MIB)));
        assert_eq!(block_bytes(64 * MIB), Some((64 * MIB, 64 * MIB)));
        assert_eq!(block_bytes(64 * MIB + 1), Some((66 * MIB, 66 * MIB + 66 * MIB / 8)));
        assert_eq!(block_bytes(usize::MAX), None);
    }
}
