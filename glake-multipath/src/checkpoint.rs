//! A model's weights, from safetensors files to a device.
//!
//! A [`Checkpoint`] is what the headers of its files say: which tensor lies where. [`Loader`] says where each
//! goes on a device ([`Placement`]), takes memory for that, and has the engine carry them over
//! every link. Files are opened once and read from the open descriptors, straight into the engine's pinned slots: they
//! are not mapped, and what is pinned does not depend on how many tensors there are.
//!
//! Layers, each using only those above it: `header`, `index` and `placement` (pure: what a file's header
//! and an index say, where tensors go), `find` (which files a path stands for), this (checkpoints), `segments` (pure: what one shard's
//! transfer consists of), `load` (what acts) and `loaded` (what comes of it).
//!
//! ```
//! # use std::sync::Arc;
//! use glake_core::sim::SimDriver;
//! use glake_core::units::{DeviceId, StreamId};
//! use glake_multipath::checkpoint::{Checkpoint, Loader};
//! use glake_multipath::{Config, Engine};
//! use glake_vmm::StitchPool;
//! # use safetensors::tensor::{Dtype, TensorView, serialize};
//! # let folder = tempfile::tempdir()?;
//! # let weights = vec![7; 4 << 20];
//! # let view = TensorView::new(Dtype::F32, vec![1024, 1024], &weights).unwrap();
//! # std::fs::write(folder.path().join("model.safetensors"), serialize([("head", view)], None).unwrap())?;
//!
//! let (device, stream) = (DeviceId(0), StreamId::LEGACY);
//! let driver = Arc::new(SimDriver::h200(1));
//! let mut pool = StitchPool::new(driver.clone(), glake_vmm::Config::new(device))?;
//! let engine = Engine::new(driver, Config::new())?;
//!
//! let checkpoint = Checkpoint::open(folder.path())?;
//! let loaded = Loader::new(&engine, device, stream).load(&checkpoint, &mut pool)?;
//! let head = loaded.get("head").ok_or("no such tensor")?;
//! assert_eq!(&*head.shape, [1024, 1024]);
//! println!("{} bytes at {}", head.bytes, head.ptr);
//! loaded.free(&mut pool, stream)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

mod error;
mod find;
mod header;
mod index;
mod load;
mod loaded;
mod placement;
mod segments;
#[cfg(test)]
mod tests;

pub use error::{CheckpointError, HeaderError, IndexError, LoadError};
pub use load::Loader;
pub use loaded::{Loaded, LoadedTensor};
pub use placement::{EXTENT_BYTES, Extent, Place, Placement};
pub use safetensors::Dtype;

use find::Found;

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Its name.
    pub name: Box<str>,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, the outermost first; none for a single element.
    pub shape: Box<[u64]>,
    /// How many bytes it has.
    pub bytes: u64,
    /// Which of the [`shards`](Checkpoint::shards) it lies in.
    pub shard: usize,
    /// Where it lies in the shard's file, in bytes from its start.
    pub offset_bytes: u64,
}

/// One file of a checkpoint.
#[derive(Debug)]
pub struct Shard {
    path: Box<Path>,
    file: File,
}

impl Shard {
    /// Where the file was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// The tensors of one or several open safetensors files.
///
/// Clones, and parts ([`only`](Self::only)), share the open files.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    shards: Arc<[Shard]>,
    /// By shard and offset.
    tensors: Box<[Tensor]>,
    /// By name.
    names: Box<[usize]>,
    bytes: u64,
}

impl Checkpoint {
    /// What `path` stands for: a safetensors file, an index (a name that ends in `.json`), or a folder with
    /// `model.safetensors`, else `model.safetensors.index.json`, else a single file or index of
    /// another name.
    ///
    /// # Errors
    /// [`CheckpointError`]: there is none, or it is broken.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        match find::find(path.as_ref())? {
            Found::File(path) => Self::open_files(&[path]),
            Found::Index(path) => Self::open_index(&path),
        }
    }

    /// All tensors of several files, which are the shards.
    ///
    /// # Errors
    /// [`CheckpointError`]: a file is broken, or two have a tensor of the same name.
    pub fn open_files(paths: &[impl AsRef<Path>]) -> Result<Self, CheckpointError> {
        let mut shards = Vec::with_capacity(paths.len());
        let mut tensors = Vec::new();
        for path in paths {
            let (shard, of_shard) = open_shard(path.as_ref(), shards.len())?;
            shards.push(shard);
            tensors.extend(of_shard);
        }
        Self::new(shards.into(), tensors)
    }

    /// The tensors that an index lists (its `weight_map`), each from the file that it names, beside the
    /// index. The files are the shards, in the order of their names. What else is in them is left out: files
    /// may repeat tensors of others.
    ///
    /// # Errors
    /// [`CheckpointError`]: index or file are broken, or do not agree.
    pub fn open_index(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let broken = |error| CheckpointError::Index { path: path.into(), source: Box::new(error) };
        let files = index::parse(&read_index(path)?).map_err(broken)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut shards = Vec::with_capacity(files.len());
        let mut tensors = Vec::new();
        for (file, names) in files {
            let (shard, mut of_shard) =
                open_shard(&folder.join(&file), shards.len()).map_err(|error| match error {
                    CheckpointError::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                        broken(IndexError::MissingFile(file.clone().into()))
                    }
                    error => error,
                })?;
            of_shard.retain(|tensor| names.contains(&*tensor.name));
            if of_shard.len() < names.len() {
                return Err(broken(index::missing(names, &of_shard, &file)));
            }
            shards.push(shard);
            tensors.extend(of_shard);
        }
        Self::new(shards.into(), tensors)
    }

    fn new(shards: Arc<[Shard]>, tensors: Vec<Tensor>) -> Result<Self, CheckpointError> {
        let mut names: Box<[usize]> = (0..tensors.len()).collect();
        names.sort_by_key(|at| &*tensors[*at].name);
        for pair in names.windows(2) {
            let [a, b] = [&tensors[pair[0]], &tensors[pair[1]]];
            if a.name == b.name {
                let paths = Box::new([a, b].map(|tensor| shards[tensor.shard].path.clone()));
                return Err(CheckpointError::Duplicate { tensor: a.name.clone(), paths });
            }
        }
        let bytes = tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes));
        Ok(Self { shards, tensors: tensors.into(), names, bytes })
    }

    /// The part whose tensors `keep` says yes to: what one rank loads.
    #[must_use]
    pub fn only(&self, mut keep: impl FnMut(&Tensor) -> bool) -> Self {
        let (mut tensors, mut now_at) = (Vec::new(), vec![None; self.tensors.len()]);
        for (at, tensor) in self.tensors.iter().enumerate() {
            if keep(tensor) {
                now_at[at] = Some(tensors.len());
                tensors.push(tensor.clone());
            }
        }
        let names = self.names.iter().filter_map(|at| now_at[*at]).collect();
        let bytes = tensors.iter().fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes));
        Self { shards: Arc::clone(&self.shards), tensors: tensors.into(), names, bytes }
    }

    /// The files, also those of which no tensor is left.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The tensors, in the order of the shards and of their places in them.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors in the order of their names.
    #[must_use]
    pub fn by_name(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.names.iter().map(|at| &self.tensors[*at])
    }

    /// The tensor of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        let found = self.names.binary_search_by_key(&name, |at| &*self.tensors[*at].name).ok()?;
        Some(&self.tensors[self.names[found]])
    }

    /// The bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The longest header, and index, in bytes: the format's own limit.
const HEADER_BYTES: u64 = 100_000_000;

/// Opens a file and reads its header, never its data.
fn open_shard(path: &Path, shard: usize) -> Result<(Shard, Vec<Tensor>), CheckpointError> {
    let unread = |error| CheckpointError::Open { path: path.into(), source: Box::new(error) };
    let broken = |error| CheckpointError::Header { path: path.into(), source: Box::new(error) };
    let file = File::open(path).map_err(unread)?;
    let file_bytes = file.metadata().map_err(unread)?.len();
    let mut prefix = [0; 8];
    if file_bytes >= 8 {
        (&file).read_exact(&mut prefix).map_err(unread)?;
    }
    let header_bytes = header::header_bytes(prefix, file_bytes).map_err(broken)?;
    let mut text = Vec::new();
    (&file).take(header_bytes).read_to_end(&mut text).map_err(unread)?;
    let data = 8 + header_bytes..file_bytes;
    let mut tensors = header::parse(&text, data).map_err(broken)?;
    for tensor in &mut tensors {
        tensor.shard = shard;
    }
    Ok((Shard { path: path.into(), file }, tensors))
}

fn read_index(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let unread = |error| CheckpointError::Open { path: path.into(), source: Box::new(error) };
    let file = File::open(path).map_err(unread)?;
    let mut text = Vec::new();
    // One byte more than there may be shows that it is too long.
    file.take(HEADER_BYTES + 1).read_to_end(&mut text).map_err(unread)?;
    if text.len() as u64 > HEADER_BYTES {
        let source = Box::new(IndexError::TooLong);
        return Err(CheckpointError::Index { path: path.into(), source });
    }
    Ok(text)
}
