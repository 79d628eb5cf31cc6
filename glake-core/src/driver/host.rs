//! Host memory that devices copy from and to while the host goes on.

use std::fmt::{self, Debug};
use std::ops::Range;

use super::{Result, SharedBytes};
use crate::units::{DeviceId, DevicePtr, HostId, StreamId};

/// A buffer of host bytes that can be handed over: pinned memory of a driver, or a vector.
///
/// While a driver holds it, its bytes stay where they are.
pub trait HostBytes: AsRef<[u8]> + AsMut<[u8]> + Debug + Send + Sync {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Debug + Send + Sync> HostBytes for T {}

/// An owned buffer of host bytes.
pub type HostBuffer = Box<dyn HostBytes>;

/// Host memory for a driver to hold.
pub enum Held {
    /// A buffer that devices read and write.
    Owned(HostBuffer),
    /// Bytes that devices only read.
    Shared(SharedBytes),
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owned(buffer) => write!(f, "Owned({} bytes)", (**buffer).as_ref().len()),
            Self::Shared(bytes) => write!(f, "Shared({} bytes)", (**bytes).as_ref().len()),
        }
    }
}

/// Host memory lent to a driver for the time of one call.
#[derive(Debug)]
pub enum Lent<'a> {
    /// Bytes that devices only read.
    Source(&'a [u8]),
    /// Bytes that devices read and write.
    Sink(&'a mut [u8]),
}

/// Host memory under asynchronous copies.
///
/// Copies run behind the work of their stream, on the stream's device. They read and write host
/// memory at any time until they are done: until then the driver keeps it, and nobody else reaches
/// it, or only to read. Who forgets a [`HostId`] leaks its memory.
pub trait HostMemory: Debug + Send + Sync {
    /// Pinned memory of `bytes` zeros, where copy engines read and write without a detour, cached
    /// by the host's processors, and close to `near` where the machine has several memories.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`](super::DriverError::OutOfMemory);
    /// [`DriverError::InvalidDevice`](super::DriverError::InvalidDevice).
    fn pin(&self, bytes: u64, near: DeviceId) -> Result<HostBuffer>;

    /// Whether all of `bytes` is pinned memory. A copy of other memory goes by a detour and may make
    /// the caller wait for the stream.
    fn is_pinned(&self, bytes: &[u8]) -> bool;

    /// Takes host memory into the driver's keeping.
    fn hold(&self, memory: Held) -> HostId;

    /// Gives up memory that the driver holds: it is kept until the copies from and to it are done.
    /// Never blocks; an unknown id is ignored, and that of lent memory.
    fn let_go(&self, host: HostId);

    /// The buffer behind `host` if all copies from and to it are done, and forgets the id; `None` while
    /// one is pending.
    ///
    /// # Errors
    /// [`DriverError::UnknownHost`](super::DriverError::UnknownHost) if it is not a held buffer;
    /// [`DriverError::DeviceLost`](super::DriverError::DeviceLost).
    fn take_back(&self, host: HostId) -> Result<Option<HostBuffer>>;

    /// Lends host memory to the driver while `body` runs, under an id that is forgotten behind it.
    /// Blocks until all copies from and to it are done, also where `body` fails or panics.
    ///
    /// # Errors
    /// The one of `body`; otherwise [`DriverError::DeviceLost`](super::DriverError::DeviceLost) if a
    /// copy could not be done.
    fn lend(&self, memory: Lent<'_>, body: &mut dyn FnMut(HostId) -> Result<()>) -> Result<()>;

    /// Enqueues a copy to the device at `dst` of the bytes `from` of `host`.
    ///
    /// # Errors
    /// [`DriverError::UnknownHost`](super::DriverError::UnknownHost);
    /// [`DriverError::InvalidValue`](super::DriverError::InvalidValue) if `from` is not inside it; as
    /// [`Copies::write`](super::Copies::write).
    fn write_from(&self, dst: DevicePtr, host: HostId, from: Range<u64>, stream: StreamId) -> Result<()>;

    /// Enqueues a copy from the device at `src` into the bytes `into` of `host`.
    ///
    /// # Errors
    /// As [`write_from`](Self::write_from); `InvalidValue` also if devices may only read it.
    fn read_into(&self, src: DevicePtr, host: HostId, into: Range<u64>, stream: StreamId) -> Result<()>;
}
