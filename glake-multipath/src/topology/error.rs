//! Why a topology could not be read.

use std::io;
use std::path::Path;

use glake_core::driver::DriverError;

/// Why a topology could not be read. What is hidden or missing is no error but unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The driver does not say what its devices are.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A file holds what Linux does not write there.
    #[error("{} holds no answer of Linux's: give the folder where a sysfs is mounted", .0.display())]
    Malformed(Box<Path>),
    /// A file or folder is there, and reading it failed.
    #[error("{} could not be read", path.display())]
    Unreadable {
        /// Which.
        path: Box<Path>,
        /// Why.
        source: io::Error,
    },
}

const _: () = assert!(size_of::<TopologyError>() <= 32);
