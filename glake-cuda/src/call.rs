//! One function per driver symbol: out-parameters become values, error codes become errors.
//!
//! Functions that take only plain values are safe. Those that take a handle or an address are
//! unsafe: the caller vouches that the driver knows it. All need [`probe`](crate::probe) first.

use glake_core::driver::{DriverError, Result};
use glake_core::units::StreamId;

use cudarc::driver::sys;

pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod graph;
pub(crate) mod kernel;
pub(crate) mod order;
pub(crate) mod vmm;

macro_rules! raw {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) struct $name(pub(crate) u64);

        impl $name {
            /// As the driver's type.
            pub(crate) fn cu(self) -> $inner {
                std::ptr::with_exposed_provenance_mut(size(self.0))
            }

            /// From the driver's type.
            pub(crate) fn of(raw: $inner) -> Self {
                Self(raw.expose_provenance() as u64)
            }
        }
    };
}

raw! {
    /// A `CUcontext`, never dereferenced here.
    Context(sys::CUcontext)
}
raw! {
    /// A `CUstream`, never dereferenced here.
    Stream(sys::CUstream)
}
raw! {
    /// A `CUevent`, never dereferenced here.
    Event(sys::CUevent)
}
raw! {
    /// A `CUmodule`, never dereferenced here.
    Module(sys::CUmodule)
}
raw! {
    /// A `CUfunction`, never dereferenced here.
    Function(sys::CUfunction)
}

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "glake-cuda needs a 64-bit host");

/// A size in the driver's type.
#[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted above")]
pub(crate) const fn size(bytes: u64) -> usize {
    bytes as usize
}

/// The result of `call`.
pub(crate) fn check(call: &'static str, code: sys::CUresult) -> Result<()> {
    match code as u32 {
        0 => Ok(()),
        code => Err(error(call, code)),
    }
}

/// The error that `code` of `call` stands for: the one place that knows CUDA's numbers.
pub(crate) const fn error(call: &'static str, code: u32) -> DriverError {
    match code {
        2 => DriverError::OutOfMemory,
        801 => DriverError::NotSupported(call),
        // STREAM_CAPTURE_UNSUPPORTED, _UNJOINED .. _WRONG_THREAD: the driver does not say which stream.
        900 | 904..=908 => DriverError::Capturing(StreamId(0)),
        // DEINITIALIZED, ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED
        4 | 214 | 220 | 226
        // ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, CONTEXT_IS_DESTROYED, ASSERT
        | 700 | 702 | 709 | 710
        // HARDWARE_STACK_ERROR .. LAUNCH_FAILED, TENSOR_MEMORY_LEAK
        | 714..=719 | 721
        // MPS_RPC_FAILURE, MPS_CLIENT_TERMINATED, EXTERNAL_DEVICE
        | 806 | 810 | 911 => DriverError::DeviceLost,
        code => DriverError::Native { call, code },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_become_typed_errors() {
        use sys::CUresult as R;
        let of = |code: R| check("cuX", code);
        assert_eq!(of(R::CUDA_SUCCESS), Ok(()));
        assert_eq!(of(R::CUDA_ERROR_OUT_OF_MEMORY), Err(DriverError::OutOfMemory));
        assert_eq!(of(R::CUDA_ERROR_NOT_SUPPORTED), Err(DriverError::NotSupported("cuX")));
        for lost in [
            R::CUDA_ERROR_ILLEGAL_ADDRESS,
            R::CUDA_ERROR_LAUNCH_FAILED,
            R::CUDA_ERROR_ECC_UNCORRECTABLE,
            R::CUDA_ERROR_LAUNCH_TIMEOUT,
            R::CUDA_ERROR_ASSERT,
            R::CUDA_ERROR_MISALIGNED_ADDRESS,
            R::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            R::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        ] {
            assert_eq!(of(lost), Err(DriverError::DeviceLost), "{lost:?}");
        }
        let capturing = Err(DriverError::Capturing(StreamId(0)));
        assert_eq!(of(R::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), capturing);
        let native = DriverError::Native { call: "cuX", code: 1 };
        assert_eq!(of(R::CUDA_ERROR_INVALID_VALUE), Err(native));
    }
}
