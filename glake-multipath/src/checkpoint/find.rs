//! Which file a path stands for.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::CheckpointError;

const FILE: &str = ".safetensors";
const INDEX: &str = ".safetensors.index.json";

/// What a path stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// One safetensors file.
    File(PathBuf),
    /// An index, with the files that it names beside it.
    Index(PathBuf),
}

/// Looks for a checkpoint at `path`.
///
/// # Errors
/// The folder cannot be read, or has no checkpoint, or several.
pub(super) fn find(path: &Path) -> Result<Found, CheckpointError> {
    if !path.is_dir() {
        let is_index = path.extension().is_some_and(|extension| extension == "json");
        let found = if is_index { Found::Index } else { Found::File };
        return Ok(found(path.into()));
    }
    // In this order, as in transformers: a whole file beside an index holds all of it.
    let usual = [
        Found::File(path.join("model.safetensors")),
        Found::Index(path.join("model.safetensors.index.json")),
    ];
    for found in usual {
        let (Found::File(at) | Found::Index(at)) = &found;
        if at.is_file() {
            return Ok(found);
        }
    }
    let unread = |error| CheckpointError::Open { path: path.into(), source: Box::new(error) };
    let (mut files, mut indexes) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(path).map_err(unread)? {
        let at = entry.map_err(unread)?.path();
        let name = at.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(INDEX) {
            indexes.push(at);
        } else if name.ends_with(FILE) {
            files.push(at);
        }
    }
    match (indexes.len(), files.len()) {
        (1, _) => Ok(Found::Index(indexes.remove(0))),
        (0, 1) => Ok(Found::File(files.remove(0))),
        (0, 0) => Err(CheckpointError::NothingThere(path.into())),
        _ => Err(CheckpointError::Ambiguous(path.into())),
    }
}
