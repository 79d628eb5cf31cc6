//! Why a transfer failed.

use glake_core::driver::DriverError;

use crate::chunk::Segment;

/// Segments that make no transfer. Nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSegments {
    /// A segment does not lie inside the host side.
    #[error(
        "the segment of {} bytes at offset {} is not inside the {host_bytes} bytes on the host",
        segment.bytes, segment.host_offset
    )]
    OutsideHost {
        /// The segment.
        segment: Segment,
        /// How long the host side is.
        host_bytes: u64,
    },
    /// A segment wraps around at the end of the device's addresses.
    #[error("the segment of {} bytes at {} ends behind all addresses", .0.bytes, .0.device)]
    OutsideDevice(Segment),
    /// Two segments overlap where they are written.
    #[error("the segments at host offsets {} and {} overlap where they are written", .0.host_offset, .1.host_offset)]
    Overlap(Segment, Segment),
    /// A segment of a copy on devices is copied from where another, or it itself, is copied to.
    #[error(
        "the segment at offset {} of the source is copied from where the one at offset {} is written: copy through \
         memory between",
        .0.host_offset, .1.host_offset
    )]
    OntoSource(Segment, Segment),
}

/// Why a transfer failed. What had arrived by then stays where it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The segments make no transfer. Nothing was copied.
    #[error(transparent)]
    Segments(#[from] Box<InvalidSegments>),
    /// It was cancelled.
    #[error("the transfer was cancelled: {} ranges did not arrive", missing.len())]
    Cancelled {
        /// What did not arrive, in the order of the host side.
        missing: Box<[Segment]>,
    },
    /// No lane is left.
    #[error("every path failed: {} ranges did not arrive", missing.len())]
    NoPath {
        /// What did not arrive, in the order of the host side.
        missing: Box<[Segment]>,
        /// Why the last lane failed.
        #[source]
        source: Box<DriverError>,
    },
    /// The driver failed before anything was copied.
    #[error("the transfer could not begin")]
    Driver(#[source] Box<DriverError>),
    /// A callback of a submitted transfer panicked, and the transfer was stopped.
    #[error("a callback panicked: {} ranges did not arrive", missing.len())]
    Panicked {
        /// What did not arrive, in the order of the host side.
        missing: Box<[Segment]>,
    },
    /// No thread could be started for submitted transfers. Nothing was copied.
    #[error("no thread could be started for it: copy in the calling thread instead")]
    NoThread(#[source] Box<std::io::Error>),
    /// Reading the source failed.
    #[error("reading the source failed: {} ranges did not arrive", missing.len())]
    Source {
        /// What did not arrive, in the order of the host side.
        missing: Box<[Segment]>,
        /// Why.
        #[source]
        source: Box<std::io::Error>,
    },
}

const _: () = assert!(size_of::<TransferError>() <= 32);

impl From<DriverError> for TransferError {
    fn from(error: DriverError) -> Self {
        Self::Driver(Box::new(error))
    }
}

impl From<InvalidSegments> for TransferError {
    fn from(error: InvalidSegments) -> Self {
        Self::Segments(Box::new(error))
    }
}
