//! Ids, addresses and sizes.

use std::fmt;
use std::ops::{Add, Sub};

/// Size of a page in bytes: the granule of GPU virtual memory, 2 MiB.
///
/// Physical handles, mappings and access rights come in whole pages.
pub const PAGE_BYTES: u64 = 2 << 20;

/// `bytes` rounded up to a multiple of `step_bytes`, or `None` on overflow or a zero step.
///
/// ```
/// use glake_core::units::round_up;
/// assert_eq!(round_up(513, 512), Some(1024));
/// assert_eq!(round_up(u64::MAX, 512), None);
/// ```
#[must_use]
pub const fn round_up(bytes: u64, step_bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(step_bytes)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
    };
}

id! {
    /// A GPU, by its ordinal in the driver.
    DeviceId(u32)
}
id! {
    /// A stream: an ordered queue of device work. The number is the driver's own; on CUDA it is
    /// the value of the `CUstream` handle.
    StreamId(u64)
}
id! {
    /// A physical handle: device memory without an address.
    HandleId(u64)
}
id! {
    /// An event: a point in the order of a stream.
    EventId(u64)
}

id! {
    /// Host memory that a driver holds.
    HostId(u64)
}

impl StreamId {
    /// CUDA's legacy default stream.
    pub const LEGACY: Self = Self(1);
    /// The *calling* thread's default stream: one queue for each thread, under the same id.
    pub const PER_THREAD: Self = Self(2);
}

/// An address in device virtual memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` higher, or `None` if it does not fit in 64 bits.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(at) => Some(Self(at)),
            None => None,
        }
    }

    /// Whether the address is a multiple of `align_bytes`.
    #[must_use]
    pub const fn is_aligned(self, align_bytes: u64) -> bool {
        self.0.is_multiple_of(align_bytes)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The address `bytes` higher.
impl Add<u64> for DevicePtr {
    type Output = Self;
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// The distance in bytes from a lower address.
impl Sub<DevicePtr> for DevicePtr {
    type Output = u64;
    fn sub(self, lower: DevicePtr) -> u64 {
        self.0 - lower.0
    }
}

/// A range of device addresses: `bytes` bytes from `start`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// First address.
    pub start: DevicePtr,
    /// Length in bytes.
    pub bytes: u64,
}

impl AddressRange {
    /// The range of `bytes` bytes from `start`.
    #[must_use]
    pub const fn new(start: DevicePtr, bytes: u64) -> Self {
        Self { start, bytes }
    }

    /// The first address behind the range; saturates at the end of the address space.
    #[must_use]
    pub const fn end(self) -> DevicePtr {
        DevicePtr(self.start.0.saturating_add(self.bytes))
    }

    /// Whether `other` lies wholly inside this range.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.start.0 <= other.start.0
            && other.end().0 <= self.end().0
            && other.start.0.checked_add(other.bytes).is_some()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end())
    }
}
