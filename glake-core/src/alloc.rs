//! The allocator interface: what every pool implements and every adaptor wraps.

use std::fmt;
use std::sync::Arc;

use crate::driver::DriverError;
use crate::stats::Stats;
use crate::units::{DevicePtr, StreamId};

/// What an allocation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Size in bytes; zero is refused.
    pub bytes: u64,
    /// Alignment of the address in bytes, a power of two up to one page (2 MiB).
    pub align_bytes: u64,
    /// The stream on which the memory is used first.
    pub stream: StreamId,
}

impl Request {
    /// The alignment that every allocation has, in bytes.
    pub const MIN_ALIGN_BYTES: u64 = 512;

    /// A request for `bytes` bytes on `stream`, aligned to 512 B.
    #[must_use]
    pub const fn new(bytes: u64, stream: StreamId) -> Self {
        Self { bytes, align_bytes: Self::MIN_ALIGN_BYTES, stream }
    }

    /// The same request at a multiple of `align_bytes`.
    #[must_use]
    pub const fn aligned(self, align_bytes: u64) -> Self {
        Self { align_bytes, ..self }
    }
}

/// Device memory handed out by an [`Allocator`]: a plain value that does not free itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// The address.
    pub ptr: DevicePtr,
    /// The bytes that were asked for; the allocator may have set more aside.
    pub bytes: u64,
    /// The stream that it was allocated on.
    pub stream: StreamId,
}

/// A stream-ordered allocator of device memory.
///
/// *Stream-ordered*: memory is valid for work enqueued on the allocation's stream from now on, and
/// a free takes effect behind the work enqueued before it, on the stream that it names and on those
/// named by [`record_use`](Self::record_use). Neither call waits for the device.
/// Allocators take `&mut self`; [`Locked`](crate::adapt::Locked) shares one between threads.
pub trait Allocator: fmt::Debug {
    /// Allocates memory.
    ///
    /// # Errors
    /// Every variant of [`AllocError`] that speaks of a request. The state is as before.
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError>;

    /// Frees the allocation at `ptr`, whose last use was enqueued on `stream`.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`] for an address that is not the start of a live allocation:
    /// freed before, inside one, or foreign; [`AllocError::Poisoned`]. The state is as before.
    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError>;

    /// Tells that work enqueued on `stream` uses the allocation at `ptr`: a later free takes effect
    /// behind the work enqueued there until the free, too. Work on a stream other than the
    /// allocation's has to be ordered behind the allocation by the caller.
    ///
    /// # Errors
    /// As [`free`](Self::free). The state is as before.
    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError>;

    /// Gives physical memory back to the device until at most `keep_bytes` are reserved or
    /// nothing more is free, and returns how many bytes went back. May wait for device work.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was given back until then stays given back.
    /// [`AllocError::Poisoned`].
    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError>;

    /// Figures of this moment.
    fn stats(&self) -> Stats;
}

impl<T: Allocator + ?Sized> Allocator for Box<T> {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        (**self).allocate(request)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        (**self).free(ptr, stream)
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        (**self).record_use(ptr, stream)
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        (**self).trim(keep_bytes)
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }
}

/// A shared allocator that can be used by reference.
impl<T: fmt::Debug + ?Sized> Allocator for Arc<T>
where
    for<'a> &'a T: Allocator,
{
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        (&mut &**self).allocate(request)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        (&mut &**self).free(ptr, stream)
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        (&mut &**self).record_use(ptr, stream)
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        (&mut &**self).trim(keep_bytes)
    }

    fn stats(&self) -> Stats {
        (&&**self).stats()
    }
}

/// Why an allocation or a free failed. The allocator is as before the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Nothing was asked for.
    #[error("zero bytes were asked for: skip the allocation, there is nothing to point at")]
    ZeroBytes,
    /// More was asked for than can be addressed.
    #[error("{bytes} bytes are more than the pool can address")]
    TooLarge {
        /// What was asked for.
        bytes: u64,
    },
    /// The alignment is not a power of two, or above a page.
    #[error("an alignment of {align_bytes} bytes is not a power of two up to 2 MiB")]
    BadAlignment {
        /// What was asked for.
        align_bytes: u64,
    },
    /// There is not enough memory.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The quota of a [`Limited`](crate::adapt::Limited) allocator would be exceeded.
    #[error("{bytes} bytes do not fit in what is left of the quota, {left_bytes} bytes")]
    OverQuota {
        /// What was asked for.
        bytes: u64,
        /// What is left of the quota.
        left_bytes: u64,
    },
    /// The address is not the start of a live allocation of this allocator.
    #[error("{0} is not the start of a live allocation here: freed before, inside one, or foreign")]
    NotAllocated(DevicePtr),
    /// More streams are in use than the allocator can tell apart.
    #[error("more streams are in use than a pool can tell apart: tell it of those that were destroyed")]
    TooManyStreams,
    /// A driver call failed.
    #[error("the driver failed: {0}")]
    Driver(#[from] DriverError),
    /// A record could not be written; the allocation itself was undone.
    #[error("the trace could not be written: {0:?}")]
    Record(std::io::ErrorKind),
    /// An undo failed earlier, or a thread panicked inside: only dropping is allowed.
    #[error("the allocator is poisoned by an earlier failure that could not be undone: drop it")]
    Poisoned,
}

const _: () = assert!(size_of::<AllocError>() <= 32);

/// Why memory could not be had, with the figures to act on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Free bytes in the pool.
    pub free_bytes: u64,
    /// The largest free run of addresses in bytes.
    pub largest_free_bytes: u64,
    /// Free bytes in whole free handles: what stitching could move.
    pub stitchable_bytes: u64,
    /// Physical bytes that the pool holds.
    pub reserved_bytes: u64,
    /// The pool's limit in bytes, `u64::MAX` if it has none.
    pub limit_bytes: u64,
    /// Free bytes on the device outside the pool.
    pub device_free_bytes: u64,
    /// The tags with most live bytes, largest first, if a
    /// [`Tagged`](crate::adapt::Tagged) allocator stands above.
    pub top_tags: Vec<(String, u64)>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: {} bytes requested; {} free in the pool (largest run {}), {} reserved",
            self.requested_bytes, self.free_bytes, self.largest_free_bytes, self.reserved_bytes
        )?;
        if self.limit_bytes != u64::MAX {
            write!(f, " of a limit of {}", self.limit_bytes)?;
        }
        write!(
            f,
            ", {} free on the device; stitching did not help: only {} of the free bytes are in \
             handles without a live allocation",
            self.device_free_bytes, self.stitchable_bytes
        )?;
        for (i, (tag, bytes)) in self.top_tags.iter().enumerate() {
            write!(f, "{}{tag} {bytes}", if i == 0 { "; live by tag: " } else { ", " })?;
        }
        Ok(())
    }
}
