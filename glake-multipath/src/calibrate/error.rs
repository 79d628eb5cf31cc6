//! Why nothing could be measured, read or written.

use std::io;
use std::path::Path;

use glake_core::driver::DriverError;

use crate::topology::TopologyKey;

/// Why a machine could not be measured. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The topology is that of another machine.
    #[error("the driver has {n_devices} devices, the topology {n_places}: read it with this driver")]
    ForeignTopology {
        /// The driver's devices.
        n_devices: usize,
        /// The topology's.
        n_places: usize,
    },
    /// Not one link could be measured.
    #[error("no link could be measured")]
    Driver(#[source] DriverError),
}

/// Why a file gave no calibration, or took none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file could not be read, or it or its folder not be written.
    #[error("{} could not be read or written", path.display())]
    Io {
        /// Which.
        path: Box<Path>,
        /// Why.
        source: io::Error,
    },
    /// It holds no calibration.
    #[error("{} holds no calibration: remove it", path.display())]
    Malformed {
        /// Which.
        path: Box<Path>,
        /// What is wrong, if it is in the form rather than in the values.
        #[source]
        source: Option<Box<serde_json::Error>>,
    },
    /// It is of another version of the library.
    #[error("a calibration of version {0}: measure again")]
    Version(u32),
    /// It is of another machine.
    #[error("a calibration of machine {}: measure this one", .0)]
    Foreign(Box<TopologyKey>),
}

const _: () = assert!(size_of::<CalibrateError>() <= 32);
const _: () = assert!(size_of::<StoreError>() <= 32);
