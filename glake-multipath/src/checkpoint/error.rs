//! Why a checkpoint cannot be opened, or not loaded.

use std::io;
use std::path::Path;

use glake_core::alloc::AllocError;

use crate::error::TransferError;

/// Why a checkpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file, or a folder, cannot be opened or read.
    #[error("{} cannot be opened or read", path.display())]
    Open {
        /// Which.
        path: Box<Path>,
        /// Why.
        #[source]
        source: Box<io::Error>,
    },
    /// A file is no safetensors file, or a broken one.
    #[error("{} is not a whole safetensors file", path.display())]
    Header {
        /// Which.
        path: Box<Path>,
        /// Why.
        #[source]
        source: Box<HeaderError>,
    },
    /// An index is broken, or does not agree with the files that it names.
    #[error("{} is not the index of a checkpoint", path.display())]
    Index {
        /// Which.
        path: Box<Path>,
        /// Why.
        #[source]
        source: Box<IndexError>,
    },
    /// Two files have a tensor of the same name.
    #[error(
        "the tensor {tensor:?} is in {} and in {}: open the index, or only files of one checkpoint",
        paths[0].display(), paths[1].display()
    )]
    Duplicate {
        /// The tensor's name.
        tensor: Box<str>,
        /// The files.
        paths: Box<[Box<Path>; 2]>,
    },
    /// There is no safetensors file in the folder.
    #[error("there is neither a safetensors file nor an index in {}", .0.display())]
    NothingThere(Box<Path>),
    /// The folder has several safetensors files, and no index says which belong together.
    #[error("{} has several safetensors files and no index: name the files that belong together", .0.display())]
    Ambiguous(Box<Path>),
}

const _: () = assert!(size_of::<CheckpointError>() <= 32);

/// Why a file is not a whole safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file ends before its header does.
    #[error(
        "it has {file_bytes} bytes, and its header alone needs {needed_bytes}: get it anew, it was cut short"
    )]
    Truncated {
        /// How long the file is.
        file_bytes: u64,
        /// How long it would have to be at least.
        needed_bytes: u64,
    },
    /// The header is longer than the format allows.
    #[error("its header claims {header_bytes} bytes, more than the format allows")]
    TooLong {
        /// How long it would be.
        header_bytes: u64,
    },
    /// The header is not JSON of the format's shape.
    #[error("its header cannot be read")]
    Json(#[source] serde_json::Error),
    /// Two entries have the same name.
    #[error("its header has {tensor:?} twice")]
    Duplicate {
        /// The name.
        tensor: Box<str>,
    },
    /// The type of a tensor's elements is not known.
    #[error("the tensor {tensor:?} is of the type {dtype:?}, which is not known here")]
    UnknownDtype {
        /// The tensor's name.
        tensor: Box<str>,
        /// Its type.
        dtype: Box<str>,
    },
    /// Shape and type of a tensor do not make its bytes.
    #[error("shape and type of the tensor {tensor:?} do not make its bytes")]
    Shape {
        /// The tensor's name.
        tensor: Box<str>,
    },
    /// A tensor ends before it begins.
    #[error("the tensor {tensor:?} ends before it begins")]
    Backwards {
        /// The tensor's name.
        tensor: Box<str>,
    },
    /// A tensor ends behind the file.
    #[error(
        "the tensor {tensor:?} ends {missing_bytes} bytes behind the file: get it anew, it was cut short"
    )]
    Outside {
        /// The tensor's name.
        tensor: Box<str>,
        /// How far behind.
        missing_bytes: u64,
    },
    /// A tensor begins before the one in front of it ends.
    #[error("the tensor {tensor:?} overlaps the one in front of it")]
    Overlap {
        /// The tensor's name.
        tensor: Box<str>,
    },
    /// Bytes that belong to no tensor, which the format forbids.
    #[error("{bytes} bytes from {offset_bytes} of the data on belong to no tensor")]
    Hole {
        /// Where they begin, in bytes from the end of the header.
        offset_bytes: u64,
        /// How many they are.
        bytes: u64,
    },
}

/// Why an index is none, or does not agree with the files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is longer than any header may be.
    #[error("it is longer than the header of any file may be")]
    TooLong,
    /// It is not JSON with a `weight_map` from tensors to files.
    #[error("it cannot be read")]
    Json(#[source] serde_json::Error),
    /// It lists a tensor twice.
    #[error("it lists the tensor {0:?} twice")]
    Duplicate(Box<str>),
    /// It names a file that is not beside it, or in a folder there.
    #[error("it names {0:?}, which is not a path inside its folder")]
    Escapes(Box<str>),
    /// It names a file that is not there.
    #[error("it names the file {}, which is not there: get it, too", .0.display())]
    MissingFile(Box<Path>),
    /// It lists a tensor that the file does not have.
    #[error("it lists the tensor {tensor:?}, which is not in {}", file.display())]
    MissingTensor {
        /// The tensor's name.
        tensor: Box<str>,
        /// The file that it names.
        file: Box<Path>,
    },
}

/// Why a checkpoint could not be loaded. What was allocated for it is freed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no memory for it.
    #[error("no memory for the weights")]
    Memory(#[source] Box<AllocError>),
    /// The bytes of a file did not arrive.
    #[error("{} could not be loaded", path.display())]
    Transfer {
        /// The file.
        path: Box<Path>,
        /// Why.
        #[source]
        source: Box<TransferError>,
    },
}

const _: () = assert!(size_of::<LoadError>() <= 32);
