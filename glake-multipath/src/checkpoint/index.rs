//! What an index says: which tensors lie in which file.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::Tensor;
use super::error::IndexError;

/// The names of tensors, by the file that they lie in.
pub(super) type Files = BTreeMap<PathBuf, BTreeSet<Box<str>>>;

/// Which tensor lies in which file.
type Listed = (Box<str>, Box<str>);

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(deserialize_with = "entries")]
    weight_map: Vec<Listed>,
}

/// An object's entries in their order, those under the same name included.
fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Listed>, D::Error> {
    deserializer.deserialize_map(Entries)
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<Listed>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensors to files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(entries)
    }
}

/// The files of an index.
///
/// # Errors
/// It is not JSON of that shape, lists a tensor twice, or names a file that is not inside the folder.
pub(super) fn parse(text: &[u8]) -> Result<Files, IndexError> {
    let Index { weight_map } = serde_json::from_slice(text).map_err(IndexError::Json)?;
    let (mut files, mut seen) = (Files::new(), BTreeSet::new());
    for (tensor, file) in weight_map {
        if !seen.insert(tensor.clone()) {
            return Err(IndexError::Duplicate(tensor));
        }
        if !is_inside(Path::new(&*file)) {
            return Err(IndexError::Escapes(file));
        }
        files.entry(PathBuf::from(&*file)).or_default().insert(tensor);
    }
    Ok(files)
}

/// Whether a path stays in the folder that it starts from, by its words: links lead where their owner wants.
fn is_inside(path: &Path) -> bool {
    let mut parts = path.components();
    path.file_name().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Says which of `names` is not among the tensors of `file`.
pub(super) fn missing(names: BTreeSet<Box<str>>, tensors: &[Tensor], file: &Path) -> IndexError {
    let there: BTreeSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
    let tensor = names.into_iter().find(|name| !there.contains(&**name)).unwrap_or_default();
    IndexError::MissingTensor { tensor, file: file.into() }
}
