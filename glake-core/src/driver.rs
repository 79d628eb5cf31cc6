//! The driver seam: what glake asks of a GPU driver.
//!
//! Six small object-safe traits, gathered in [`Driver`]. [`SimDriver`](crate::sim::SimDriver)
//! and `glake_cuda::CudaDriver` implement them and are held to one suite of laws
//! (`glake-testkit`). All methods take `&self`: a driver is shared between pools and threads.
//!
//! The traits are *sound*: an implementation keeps a map of the ranges that it handed out and
//! refuses addresses, handles and events that it does not know. Host memory crosses an
//! asynchronous call only as an owned buffer; borrowed slices appear only in calls that block
//! until the copy is done.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::units::{AddressRange, DeviceId, DevicePtr, EventId, HandleId, StreamId};

mod error;
mod host;
mod info;
mod into;
mod ledger;

pub use error::DriverError;
pub use host::{Held, HostBuffer, HostBytes, HostMemory, Lent};
pub use info::{DeviceInfo, PciAddress, PciAddressError};
pub use into::IntoDriver;
pub use ledger::{Call, Ledger};

/// Shorthand for results of driver calls.
pub type Result<T, E = DriverError> = std::result::Result<T, E>;

/// Host bytes that an asynchronous copy may read until it is done.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// What a device may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Nothing: touching the range is a fault.
    None,
    /// Read only: a write is a fault.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// How much memory a device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that can still be created.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// Mappings and memory whose owner is done with them, for [`VirtualMemory::retire`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// Events behind the last use; the driver forgets them.
    pub after: Vec<EventId>,
    /// Ranges to unmap, each covering whole mappings.
    pub mappings: Vec<AddressRange>,
    /// Handles to release after that.
    pub handles: Vec<HandleId>,
    /// Reservations to give back after that.
    pub reservations: Vec<AddressRange>,
}

/// Device virtual memory: physical handles, reserved addresses, and the two joined.
///
/// Rules, each a law: sizes and addresses are multiples of [`granularity`](Self::granularity);
/// a handle is mapped whole or not at all; one handle may be mapped at several addresses, which
/// then show the same bytes; a new mapping has no access until
/// [`set_access`](Self::set_access); none of the calls waits for device work.
pub trait VirtualMemory: Debug + Send + Sync {
    /// The granule of sizes and addresses in bytes (2 MiB on today's devices).
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`] if there is no such device.
    fn granularity(&self, device: DeviceId) -> Result<u64>;

    /// Reserves `bytes` of addresses, without memory, aligned to `align_bytes`.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] for a size or alignment that is not a multiple of the
    /// granularity, or zero; [`DriverError::OutOfAddresses`] if no range is left.
    fn reserve(&self, bytes: u64, align_bytes: u64) -> Result<AddressRange>;

    /// Gives a reservation back.
    ///
    /// # Errors
    /// [`DriverError::UnknownAddress`] if `range` is not exactly a reservation;
    /// [`DriverError::StillMapped`] if something is mapped in it.
    fn unreserve(&self, range: AddressRange) -> Result<()>;

    /// Creates a physical handle of `bytes` on `device`. It has no address yet.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if the device has not that much left;
    /// [`DriverError::InvalidValue`] if `bytes` is zero or not a multiple of the granularity.
    fn create(&self, device: DeviceId, bytes: u64) -> Result<HandleId>;

    /// Releases a handle. Its memory returns to the device when no mapping is left.
    ///
    /// # Errors
    /// [`DriverError::UnknownHandle`] if it is not live.
    fn release(&self, handle: HandleId) -> Result<()>;

    /// Maps the whole of `handle` at `at`, inside one reservation, without access.
    ///
    /// # Errors
    /// [`DriverError::UnknownHandle`]; [`DriverError::UnknownAddress`] if the range is not
    /// inside a reservation or `at` is not aligned; [`DriverError::StillMapped`] if any part of
    /// the range is mapped.
    fn map(&self, at: DevicePtr, handle: HandleId) -> Result<()>;

    /// Unmaps the mappings that lie in `range`, which must cover whole mappings and nothing
    /// unmapped. The caller knows that no device work still touches them: a kernel that does
    /// dies, and its context with it.
    ///
    /// # Errors
    /// [`DriverError::NotMapped`] if a part is not mapped; [`DriverError::InvalidValue`] if the
    /// range cuts a mapping.
    fn unmap(&self, range: AddressRange) -> Result<()>;

    /// Says what `devices` may do with the mappings in `range`.
    ///
    /// # Errors
    /// As [`unmap`](Self::unmap); [`DriverError::NoPeerAccess`] if one of the devices cannot
    /// reach the memory.
    fn set_access(&self, range: AddressRange, devices: &[DeviceId], access: Access) -> Result<()>;

    /// Takes over what its owner is done with, to be unmapped, released and unreserved once the
    /// events have passed. Never blocks and reports nothing: what cannot be given back, as on a
    /// lost device, goes with the driver. Unknown parts are skipped.
    fn retire(&self, retired: Retired);

    /// Free and total memory of a device.
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`] if there is no such device.
    fn memory_info(&self, device: DeviceId) -> Result<MemoryInfo>;
}

/// Streams and events: the order of device work.
///
/// [`StreamId::PER_THREAD`] is a queue of the calling thread's own: what one thread enqueues on it is
/// not ordered against what another does, though both name the same stream.
///
/// Work enqueued on a stream that is being captured goes into a graph and runs when that is
/// launched. An event has no place there: no call puts one into a graph.
pub trait StreamOrder: Debug + Send + Sync {
    /// Creates a stream on `device` that does not synchronise with any other.
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`].
    fn create_stream(&self, device: DeviceId) -> Result<StreamId>;

    /// Destroys a stream made by [`create_stream`](Self::create_stream); its work still runs.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::Capturing`] while it is captured.
    fn destroy_stream(&self, stream: StreamId) -> Result<()>;

    /// Records an event behind all work enqueued on `stream` so far.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::Capturing`] while the stream is captured.
    fn record(&self, stream: StreamId) -> Result<EventId>;

    /// Records an event behind all work enqueued on `device` so far: on every stream there, those of
    /// other threads and those that were destroyed included.
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`]; [`DriverError::NotSupported`] on CUDA before 12.5;
    /// [`DriverError::Capturing`] while a stream of the device is captured. The captures of streams
    /// that the driver knows, and of the calling thread's own, are seen before and not disturbed. A
    /// capture of another thread's default stream is not seen, and is broken by the call.
    fn record_all(&self, device: DeviceId) -> Result<EventId>;

    /// Whether the work before `event` is done. Does not block.
    ///
    /// # Errors
    /// [`DriverError::UnknownEvent`]; [`DriverError::DeviceLost`] if the work failed.
    fn query(&self, event: EventId) -> Result<bool>;

    /// Makes later work of `stream` wait for `event`. Does not block the host.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`], [`DriverError::UnknownEvent`]; [`DriverError::Capturing`]
    /// while the stream is captured.
    fn wait(&self, stream: StreamId, event: EventId) -> Result<()>;

    /// Blocks the host until `event` has passed.
    ///
    /// # Errors
    /// [`DriverError::UnknownEvent`]; [`DriverError::DeviceLost`].
    fn synchronize(&self, event: EventId) -> Result<()>;

    /// Blocks the host until all work enqueued on `device` so far is done.
    ///
    /// # Errors
    /// As [`record_all`](Self::record_all), which it treats captures like, but supported by every
    /// driver; [`DriverError::DeviceLost`].
    fn synchronize_all(&self, device: DeviceId) -> Result<()>;

    /// Whether work enqueued on `stream` goes into a graph instead of the device.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::Capturing`] where CUDA does not tell of the legacy
    /// stream because a stream that synchronises with it is captured.
    fn is_capturing(&self, stream: StreamId) -> Result<bool>;

    /// Forgets an event. Never blocks; an unknown event is ignored.
    fn forget(&self, event: EventId);
}

/// Copies and fills. Ranges on the device must be mapped, with access, in ranges of this driver.
///
/// Copies with host memory are refused with [`DriverError::Capturing`] on a stream that is captured,
/// because the graph would keep the host's address and use it again at each launch.
pub trait Copies: Debug + Send + Sync {
    /// Copies `src` to the device at `dst`, behind the work of `stream`, and blocks until done.
    ///
    /// # Errors
    /// [`DriverError::UnknownAddress`] for a range that is not the driver's;
    /// [`DriverError::NoAccess`] if it may not be written; [`DriverError::DeviceLost`].
    fn write(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<()>;

    /// Copies from the device at `src` into `dst`, behind the work of `stream`, and blocks until
    /// done.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn read(&self, src: DevicePtr, dst: &mut [u8], stream: StreamId) -> Result<()>;

    /// Enqueues a copy of `src` to the device at `dst`. The bytes are kept until it is done.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn write_async(&self, dst: DevicePtr, src: SharedBytes, stream: StreamId) -> Result<()>;

    /// Enqueues a copy of `dst.len()` bytes from the device at `src` into `dst`, which the driver
    /// keeps until [`take_read`](Self::take_read). A read that nobody takes is freed when it is
    /// done and the driver closes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn read_async(&self, src: DevicePtr, dst: Box<[u8]>, stream: StreamId) -> Result<ReadId>;

    /// The buffer of an asynchronous read if it is done, `None` while it is pending.
    ///
    /// # Errors
    /// [`DriverError::UnknownRead`] if it was taken already; [`DriverError::DeviceLost`].
    fn take_read(&self, read: ReadId) -> Result<Option<Box<[u8]>>>;

    /// Enqueues a copy of `bytes` from `src` to `dst`, on one device or between peers.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()>;

    /// Enqueues a fill of `range` with `value`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn fill(&self, range: AddressRange, value: u8, stream: StreamId) -> Result<()>;
}

/// An asynchronous read that has not been taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// One piece of a [`DeviceOps::gather`]: `bytes` from `src` to `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the bytes go.
    pub dst: DevicePtr,
    /// Where they come from.
    pub src: DevicePtr,
    /// How many.
    pub bytes: u64,
}

/// Work that runs as a kernel on the device.
///
/// [`gather`](Self::gather), [`compare`](Self::compare) and [`mismatches`](Self::mismatches) use host
/// memory and are refused with [`DriverError::Capturing`] on a stream that is captured.
pub trait DeviceOps: Debug + Send + Sync {
    /// Enqueues a copy by the device's cores instead of its copy engine: as fast over small
    /// handles as over one large one.
    ///
    /// # Errors
    /// As [`Copies::write`].
    fn copy_by_kernel(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()>;

    /// Enqueues the copies of all `pieces` in one launch, gathers and scatters alike. The pieces
    /// must not overlap one another.
    ///
    /// # Errors
    /// As [`Copies::write`]; on `Err` nothing was enqueued.
    fn gather(&self, pieces: &[Piece], stream: StreamId) -> Result<()>;

    /// Whether the `bytes` bytes at `a` and `b` are equal. Blocks until known.
    ///
    /// # Errors
    /// As [`Copies::write`].
    fn compare(&self, a: DevicePtr, b: DevicePtr, bytes: u64, stream: StreamId) -> Result<bool>;

    /// Enqueues a fill of `range` with a pattern made of `seed` and the distance of each aligned
    /// 8-byte word from the start of the range (see [`pattern_word`]). `range` is 8-byte aligned
    /// and a multiple of 8 bytes long.
    ///
    /// # Errors
    /// As [`Copies::write`]; [`DriverError::InvalidValue`] if not aligned to 8 bytes.
    fn fill_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()>;

    /// Enqueues a check of `range` against the pattern of `seed`; mismatching words are counted
    /// on the device of `stream`, see [`mismatches`](Self::mismatches).
    ///
    /// # Errors
    /// As [`fill_pattern`](Self::fill_pattern).
    fn check_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()>;

    /// How many 8-byte words all checks on `device` found wrong so far. Blocks until the checks
    /// enqueued on `stream` are done.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`]; [`DriverError::DeviceLost`].
    fn mismatches(&self, stream: StreamId) -> Result<u64>;

    /// Keeps `stream` busy for about `ns` nanoseconds: a delay for tests that need work to be
    /// pending.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`].
    fn delay(&self, stream: StreamId, ns: u64) -> Result<()>;
}

/// The word that [`DeviceOps::fill_pattern`] writes at 8-byte word `index` of a range: the
/// finaliser of `SplitMix64` over seed and index.
#[must_use]
pub const fn pattern_word(seed: u64, index: u64) -> u64 {
    let mut x = seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Physical handles shared between processes.
pub trait Sharing: Debug + Send + Sync {
    /// A file descriptor that stands for `handle`; pass it with `SCM_RIGHTS`.
    ///
    /// # Errors
    /// [`DriverError::UnknownHandle`]; [`DriverError::NotSupported`].
    fn export(&self, handle: HandleId) -> Result<OwnedFd>;

    /// The handle behind `fd`, made by [`export`](Self::export) in this or another process, of
    /// `bytes` bytes. It keeps the memory alive like the original.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if `fd` is not an exported handle of that size.
    fn import(&self, device: DeviceId, fd: OwnedFd, bytes: u64) -> Result<HandleId>;
}

/// A whole driver.
pub trait Driver: VirtualMemory + StreamOrder + Copies + HostMemory + DeviceOps + Sharing {
    /// How many devices there are.
    fn n_devices(&self) -> u32;

    /// Where a device sits and whom it reaches. Makes no context on it, and answers on a lost one, too.
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`].
    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo>;

    /// What has been asked of the driver for `device` so far, and what it cost.
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`].
    fn ledger(&self, device: DeviceId) -> Result<Ledger>;

    /// Nanoseconds on the driver's clock, which never goes back: the host's, or a virtual one.
    fn now_ns(&self) -> u64;
}
