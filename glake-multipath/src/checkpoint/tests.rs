//! Checkpoints in files, on the simulated driver.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::Driver;
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::stats::Stats;
use glake_core::units::{DeviceId, DevicePtr, PAGE_BYTES, StreamId};
use glake_testkit::rng::Rng;
use glake_vmm::StitchPool;
use safetensors::tensor::{TensorView, serialize};
use tempfile::TempDir;

use super::{Checkpoint, Dtype, LoadError, Loaded, Loader};
use crate::topology::Topology;
use crate::{Config, Engine};

mod faults;
mod files;
mod headers;
mod loads;
mod places;
mod reports;

const GPU: DeviceId = DeviceId(0);
const STREAM: StreamId = StreamId::LEGACY;
const MIB: u64 = 1 << 20;
const SLOT_BYTES: u64 = 256 << 10;

/// A tensor to be written to a file.
#[derive(Clone, Debug)]
struct Made {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

/// A tensor of noise.
fn made(name: &str, dtype: Dtype, shape: &[usize]) -> Made {
    let bits = shape.iter().product::<usize>() * dtype.bitsize();
    assert!(bits.is_multiple_of(8), "{shape:?} of {dtype}");
    let mut rng = Rng::new(
        name.bytes().fold(bits as u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte))),
    );
    let mut data: Vec<u8> = (0..bits.div_ceil(64)).flat_map(|_| rng.next().to_le_bytes()).collect();
    data.truncate(bits / 8);
    Made { name: name.into(), dtype, shape: shape.into(), data }
}

/// Bytes under a name.
fn bytes(name: &str, n_bytes: u64) -> Made {
    made(name, Dtype::U8, &[usize::try_from(n_bytes).unwrap()])
}

/// The file that the format's own crate makes of tensors.
fn file_of(tensors: &[Made]) -> Vec<u8> {
    let views: Vec<_> = tensors
        .iter()
        .map(|made| (&made.name, TensorView::new(made.dtype, made.shape.clone(), &made.data).unwrap()))
        .collect();
    serialize(views, None).unwrap()
}

/// A folder of files.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Shards and an index over them.
    fn write_shards(&self, shards: &[Vec<Made>]) -> PathBuf {
        let mut weight_map = BTreeMap::new();
        for (at, shard) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", at + 1, shards.len());
            self.write(&name, file_of(shard));
            weight_map.extend(shard.iter().map(|made| (made.name.clone(), name.clone())));
        }
        let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": weight_map });
        self.write("model.safetensors.index.json", index.to_string())
    }
}

/// A pool that counts what it has lent, and refuses when it is told to.
#[derive(Debug)]
struct Counting {
    pool: StitchPool,
    live: BTreeSet<DevicePtr>,
    requests: Vec<Request>,
    refuse_at: Option<usize>,
}

impl Allocator for Counting {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        self.requests.push(request);
        if Some(self.requests.len() - 1) == self.refuse_at {
            return Err(AllocError::TooLarge { bytes: request.bytes });
        }
        let allocation = self.pool.allocate(request)?;
        assert!(self.live.insert(allocation.ptr));
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.pool.free(ptr, stream)?;
        assert!(self.live.remove(&ptr));
        Ok(())
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.pool.record_use(ptr, stream)
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.pool.trim(keep_bytes)
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }
}

/// An engine and a pool on simulated devices.
struct Rig {
    driver: Arc<SimDriver>,
    engine: Engine,
    pool: Counting,
}

/// Small chunks and slots, over all paths.
fn small() -> Config {
    Config::new().chunk_bytes(SLOT_BYTES).slot_bytes(SLOT_BYTES).relay_from_bytes(0).n_threads(2)
}

impl Rig {
    fn new(n_devices: u32) -> Self {
        Self::with(n_devices, small())
    }

    fn with(n_devices: u32, config: Config) -> Self {
        let driver = Arc::new(SimConfig::h200(n_devices).completion(Completion::Lag(1000)).build());
        Self::over(Arc::clone(&driver), driver, config)
    }

    /// An engine over `seen`, which is `driver` or stands in front of it.
    fn over(driver: Arc<SimDriver>, seen: Arc<dyn Driver>, config: Config) -> Self {
        let topology = Topology::of(&*driver).unwrap();
        let pool = StitchPool::new(Arc::clone(&seen), glake_vmm::Config::new(GPU)).unwrap();
        let pool = Counting { pool, live: BTreeSet::new(), requests: Vec::new(), refuse_at: None };
        Self { engine: Engine::with_topology(seen, config, topology), driver, pool }
    }

    /// Loads what is at `path`, in extents of at most `extent_bytes`.
    fn load(&mut self, path: &Path, extent_bytes: u64) -> Loaded {
        self.try_load(path, extent_bytes).unwrap()
    }

    fn try_load(&mut self, path: &Path, extent_bytes: u64) -> Result<Loaded, LoadError> {
        let checkpoint = Checkpoint::open(path).unwrap();
        let loader = Loader::new(&self.engine, GPU, STREAM).extent_bytes(extent_bytes);
        loader.load(&checkpoint, &mut self.pool)
    }

    fn read(&self, at: DevicePtr, n_bytes: usize) -> Vec<u8> {
        let mut found = vec![0; n_bytes];
        self.engine.on(GPU).read(at, &mut found).unwrap();
        found
    }

    /// Everything of `tensors`, and nothing else, is on the device.
    fn check(&self, loaded: &Loaded, tensors: &[Made]) {
        assert_eq!(loaded.tensors().len(), tensors.len());
        for made in tensors {
            let tensor = loaded.get(&made.name).unwrap();
            let shape: Vec<u64> = made.shape.iter().map(|length| *length as u64).collect();
            assert_eq!((tensor.dtype, &*tensor.shape), (made.dtype, &*shape), "{}", made.name);
            assert_eq!(tensor.bytes, made.data.len() as u64, "{}", made.name);
            if tensor.bytes == 0 {
                assert_eq!(tensor.ptr, DevicePtr::default());
                continue;
            }
            assert!(self.read(tensor.ptr, made.data.len()) == made.data, "{}", made.name);
            let align_bytes = if tensor.bytes >= PAGE_BYTES { PAGE_BYTES } else { 256 };
            assert!(tensor.ptr.is_aligned(align_bytes), "{} at {}", made.name, tensor.ptr);
        }
    }
}
