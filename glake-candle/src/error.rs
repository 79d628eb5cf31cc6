//! What can go wrong, and what to do.

use std::fmt;

use candle_core::{DType, DeviceLocation};
use glake_hook::checkpoint::{CheckpointError, Dtype};
use glake_hook::{AllocError, LoadError, WithCauses};

/// Why glake is not active. The program runs on, as if `install` had not been called.
#[derive(PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The crate was built without its feature `cuda`.
    #[error(
        "glake is not active: glake-candle was built without CUDA. Build the program with its feature `cuda`: \
         `cargo add glake-candle --features cuda`"
    )]
    CpuBuild,
    /// The hook could not be installed.
    #[error(transparent)]
    Hook(#[from] glake_hook::InstallError),
}

// As text: a `main` that returns an error prints it by `Debug`, and what to do has to be read there.
impl fmt::Debug for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a request was not served.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device is not one of CUDA's.
    #[error("glake serves CUDA devices, and this one is {0:?}: make it with `Device::new_cuda`")]
    NotCuda(DeviceLocation),
    /// candle's memory does not come from the pool, though the hook is active.
    #[error(
        "candle's memory on device {} does not come from glake: candle and glake use two versions of cudarc, or \
         the device has no virtual memory. See that `cargo tree -i cudarc` prints one version, and that CUDA \
         says yes to CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", .0.0
    )]
    NotServed(glake_hook::DeviceId),
    /// The pool refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// cuBLAS refused the workspace.
    #[error("cuBLAS did not take the workspace: status {0}")]
    Cublas(u32),
    /// The files are no checkpoint.
    #[error("{}", WithCauses(&**.0))]
    Checkpoint(Box<CheckpointError>),
    /// Loading failed; what was allocated for it is freed.
    #[error("{}", WithCauses(&**.0))]
    Load(Box<LoadError>),
    /// candle has no tensors of a type that the files have.
    #[error(
        "candle has no tensors of the type {dtype}, which {tensor:?} is of: leave it out by \
         `Checkpoint::only`, and load the rest"
    )]
    Dtype {
        /// The tensor's name.
        tensor: Box<str>,
        /// Its type.
        dtype: Dtype,
    },
    /// A type of candle's that is not known here.
    #[error("glake-candle does not know how candle keeps {0:?} on a device: give it this candle's version")]
    NotOnCuda(DType),
    /// candle refused.
    #[error(transparent)]
    Candle(Box<candle_core::Error>),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// With the causes in the text: candle and most programs print that alone.
impl From<CheckpointError> for Error {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Self::Load(Box::new(error))
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(Box::new(error))
    }
}

/// For functions that return [`candle_core::Result`].
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Candle(error) => *error,
            error => Self::wrap(error),
        }
    }
}
