//! Why a driver call failed.

use crate::units::{AddressRange, DeviceId, DevicePtr, EventId, HandleId, HostId, StreamId};

/// Why a driver call failed. After every error but [`DeviceLost`](Self::DeviceLost) the driver is
/// as before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The device has no memory left.
    #[error("the device is out of memory: free something, or lower the limit of other pools")]
    OutOfMemory,
    /// No range of addresses is left.
    #[error("no device address range of {bytes} bytes is left")]
    OutOfAddresses {
        /// What was asked for.
        bytes: u64,
    },
    /// A size, address or flag that the driver does not take.
    #[error("invalid value: {0}")]
    InvalidValue(&'static str),
    /// There is no such device.
    #[error("there is no device {}", .0.0)]
    InvalidDevice(DeviceId),
    /// A handle that this driver did not hand out or that was released.
    #[error("handle {} is not a live handle of this driver", .0.0)]
    UnknownHandle(HandleId),
    /// A stream that this driver does not know.
    #[error("stream {:#x} is not a stream of this driver", .0.0)]
    UnknownStream(StreamId),
    /// An event that this driver did not hand out or that was forgotten.
    #[error("event {} is not a live event of this driver", .0.0)]
    UnknownEvent(EventId),
    /// The call is impossible while that stream is captured into a graph; stream 0 where the driver
    /// does not say which. The capture goes on, unless the call says otherwise.
    #[error("stream {:#x} is being captured into a graph: try again when the capture has ended", .0.0)]
    Capturing(StreamId),
    /// An asynchronous read that was taken already.
    #[error("the asynchronous read was taken already")]
    UnknownRead,
    /// Host memory that this driver does not hold, or not as an owned buffer.
    #[error("host memory {} is not held by this driver", .0.0)]
    UnknownHost(HostId),
    /// An address outside everything that this driver handed out.
    #[error("address {0} is not in a range of this driver")]
    UnknownAddress(DevicePtr),
    /// A range with a part that is not mapped.
    #[error("{0} is not mapped throughout")]
    NotMapped(AddressRange),
    /// Something is mapped where nothing may be.
    #[error("something is still mapped in {0}")]
    StillMapped(AddressRange),
    /// The mapping's access rights forbid it.
    #[error("{0} may not be accessed in that way")]
    NoAccess(AddressRange),
    /// The devices are not peers.
    #[error("device {} cannot reach that memory", .0.0)]
    NoPeerAccess(DeviceId),
    /// The device, driver or platform cannot do it.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// A kernel died or the device was reset. Nothing works on the device's context any more.
    #[error("the device is lost: an earlier kernel faulted or the device was reset; restart the process")]
    DeviceLost,
    /// Another error of the native driver.
    #[error("{call} failed with driver error {code}")]
    Native {
        /// The driver function.
        call: &'static str,
        /// Its error number.
        code: u32,
    },
    /// A failure planned by a test.
    #[error("a failure planned by a test")]
    Planned,
}

const _: () = assert!(size_of::<DriverError>() <= 32);
