//! What a program of candle can ask and say.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::{DType, Device, DeviceLocation, Shape, Tensor};
use glake_hook::checkpoint::Checkpoint;
use glake_hook::{Config, Defragmented, DeviceId, DevicePtr, OptionError, PassedOn, Recording, Stats, Tag};

use crate::error::{Error, InstallError};
use crate::tensors::{self, Element};
use crate::weights;

/// What cuBLAS takes for itself on Hopper and later, and so what it chooses its kernels for.
const CUBLAS_WORKSPACE_BYTES: u64 = 32 << 20;
/// Larger than what pools set aside for small objects.
const TEST_BYTES: usize = 1 << 20;

/// Puts glake's pool under candle: from now on, memory of CUDA devices comes from it.
///
/// To be called first thing in `main`, before a device is made.
///
/// # Errors
/// [`InstallError`], which says why glake is not active and what to do; candle then uses the driver's own
/// allocator, as if `install` had not been called.
pub fn install(config: Config) -> Result<Glake, InstallError> {
    if cfg!(feature = "cuda") { Ok(Glake(glake_hook::install(config)?)) } else { Err(InstallError::CpuBuild) }
}

/// glake under candle. Copies are the same pools, which serve until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Glake(glake_hook::Glake);

/// Memory of the pool that cuBLAS works in, on one device; made by [`Glake::cublas_workspace`].
///
/// When it is dropped, cuBLAS goes back to memory of its own and the pool gets this back. A device needs one:
/// the drop of either of two takes cuBLAS back. Graphs captured meanwhile work in this memory as well, and must not
/// be launched after it is dropped.
#[derive(Debug)]
#[must_use = "cuBLAS works in the pool's memory until this is dropped"]
pub struct Workspace {
    _memory: tensors::Workspace,
}

impl Glake {
    /// glake, if it is installed.
    #[must_use]
    pub fn installed() -> Option<Self> {
        glake_hook::Glake::installed().map(Self)
    }

    /// The hook itself, which speaks of device numbers and addresses.
    #[must_use]
    pub fn hook(self) -> glake_hook::Glake {
        self.0
    }

    /// Makes a tensor as any program does, and sees that it is in the pool.
    ///
    /// # Errors
    /// [`Error::NotCuda`]; [`Error::NotServed`], which says what to do; candle's own.
    pub fn self_test(self, device: &Device) -> Result<(), Error> {
        let id = device_id(device)?;
        let tensor = Tensor::zeros(TEST_BYTES, DType::U8, device)?;
        if self.owns(&tensor) { Ok(()) } else { Err(Error::NotServed(id)) }
    }

    /// Figures of a device's pool; all zero where nothing was allocated yet.
    ///
    /// # Errors
    /// [`Error::NotCuda`].
    pub fn memory_stats(self, device: &Device) -> Result<Stats, Error> {
        Ok(self.0.memory_stats(device_id(device)?))
    }

    /// The share of the free bytes of a device's pool that no request can get.
    ///
    /// # Errors
    /// [`Error::NotCuda`].
    pub fn fragmentation_ratio(self, device: &Device) -> Result<f64, Error> {
        Ok(self.0.fragmentation_ratio(device_id(device)?))
    }

    /// Gives memory back to the device until at most `keep_bytes` are reserved or nothing more is free, and
    /// returns how many bytes went back. Waits for the work enqueued so far.
    ///
    /// # Errors
    /// [`Error::NotCuda`]; [`Error::Alloc`], what was given back until then stays given back.
    pub fn trim(self, device: &Device, keep_bytes: u64) -> Result<u64, Error> {
        Ok(self.0.trim(device_id(device)?, keep_bytes)?)
    }

    /// Moves free memory into one run of addresses. Live tensors stay where they are. Waits for the work
    /// enqueued so far.
    ///
    /// # Errors
    /// [`Error::NotCuda`]; [`Error::Alloc`], what was done until then stays done.
    pub fn defragment(self, device: &Device) -> Result<Defragmented, Error> {
        Ok(self.0.defragment(device_id(device)?)?)
    }

    /// The most physical bytes that the pool of a device may hold from now on. What is free above it is
    /// given back, and its bytes are returned.
    ///
    /// # Errors
    /// [`Error::NotCuda`]; [`Error::Alloc`], the limit is set all the same.
    pub fn limit_bytes(self, device: &Device, limit_bytes: u64) -> Result<u64, Error> {
        Ok(self.0.limit_bytes(device_id(device)?, limit_bytes)?)
    }

    /// Whether a tensor's bytes are in a pool. Never on the CPU.
    #[must_use]
    pub fn owns(self, tensor: &Tensor) -> bool {
        self.address(tensor).is_some_and(|address| self.0.owns(address))
    }

    /// The address of a tensor's first element, `None` where it has none on a CUDA device. The tensor holds
    /// the memory, not what is returned.
    #[must_use]
    pub fn address(self, tensor: &Tensor) -> Option<DevicePtr> {
        tensors::address(tensor)
    }

    /// A tensor of zeros in memory that is asked of the pool itself. Dropping it gives that back to the pool.
    ///
    /// # Errors
    /// [`Error::NotCuda`], [`Error::NotServed`], [`Error::Alloc`], candle's own.
    pub fn zeros<T: Element>(self, shape: impl Into<Shape>, device: &Device) -> Result<Tensor, Error> {
        self.see_that_frees_come_back(device)?;
        tensors::zeros::<T>(self.0, device_id(device)?, shape.into(), device)
    }

    /// [`zeros`](Self::zeros) without the zeros: the tensor holds whatever the memory held before.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros).
    pub fn uninit<T: Element>(self, shape: impl Into<Shape>, device: &Device) -> Result<Tensor, Error> {
        self.see_that_frees_come_back(device)?;
        tensors::uninit::<T>(self.0, device_id(device)?, shape.into(), device)
    }

    /// Loads the safetensors file, index or folder at `path` to the pool; see [`load`](Self::load).
    ///
    /// # Errors
    /// As [`load`](Self::load); [`Error::Checkpoint`].
    pub fn load_safetensors(
        self,
        path: impl AsRef<Path>,
        device: &Device,
    ) -> Result<HashMap<String, Tensor>, Error> {
        self.load(&Checkpoint::open(path)?, device)
    }

    /// Loads a checkpoint to the pool, over every link of the machine, and returns its tensors by name. Blocks until
    /// they are there.
    ///
    /// Each tensor is an allocation of the pool, which gets it back when the last tensor with that storage is
    /// dropped; one of 2 MiB or more has pages of its own. Files are read by several threads, and not mapped.
    ///
    /// ```no_run
    /// # use candle_core::Device;
    /// use glake_candle::Checkpoint;
    ///
    /// let glake = glake_candle::install(glake_candle::Config::from_env()?)?;
    /// let device = Device::new_cuda(0)?;
    /// let files = Checkpoint::open("llama/")?.only(|tensor| tensor.name.starts_with("model.layers."));
    /// let tensors = glake.load(&files, &device)?;
    /// // let weights = candle_nn::VarBuilder::from_tensors(tensors, candle_core::DType::BF16, &device);
    /// # let _ = tensors;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotCuda`], [`Error::NotServed`], [`Error::Dtype`], [`Error::Load`], candle's own. Nothing stays
    /// allocated.
    pub fn load(self, checkpoint: &Checkpoint, device: &Device) -> Result<HashMap<String, Tensor>, Error> {
        let (id, weights) = (device_id(device)?, weights::of(checkpoint)?);
        self.see_that_frees_come_back(device)?;
        tensors::load(self.0, id, checkpoint, weights, device)
    }

    /// [`load`](Self::load), with tensors of floating-point numbers converted to `dtype` on the device, one by
    /// one, and freed as they were.
    ///
    /// # Errors
    /// As [`load`](Self::load); candle's, where it cannot convert.
    pub fn load_as(
        self,
        checkpoint: &Checkpoint,
        dtype: DType,
        device: &Device,
    ) -> Result<HashMap<String, Tensor>, Error> {
        let mut tensors: Vec<_> = self.load(checkpoint, device)?.into_iter().collect();
        // The same addresses in each run.
        tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
        let convert = |(name, tensor)| Ok((name, weights::converted(tensor, dtype)?));
        tensors.into_iter().map(convert).collect()
    }

    /// candle frees a tensor through its own cudarc, whose calls have to come to the hook. Seen once, it holds.
    fn see_that_frees_come_back(self, device: &Device) -> Result<(), Error> {
        static SEEN: AtomicBool = AtomicBool::new(false);
        if !SEEN.load(Ordering::Relaxed) {
            self.self_test(device)?;
            SEEN.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Lets cuBLAS, on the stream of `device`, work in 32 MiB of the pool instead of memory that it takes from
    /// the driver. To be kept as long as the device.
    ///
    /// # Errors
    /// [`Error::NotCuda`], [`Error::Alloc`], [`Error::Cublas`]; cuBLAS works where it did before.
    pub fn cublas_workspace(self, device: &Device) -> Result<Workspace, Error> {
        let memory = tensors::Workspace::new(self.0, device_id(device)?, CUBLAS_WORKSPACE_BYTES, device)?;
        Ok(Workspace { _memory: memory })
    }

    /// Allocations of this thread belong to `name` until what is returned is dropped. An out-of-memory
    /// report names the tags that hold most.
    #[must_use = "the tag holds until this is dropped"]
    pub fn tag(self, name: &str) -> Tag {
        self.0.tag(name)
    }

    /// Live bytes by tag, as asked for. What was allocated outside of any tag is not counted.
    #[must_use]
    pub fn tagged_bytes(self) -> BTreeMap<String, u64> {
        self.0.tagged_bytes()
    }

    /// Writes what is allocated and freed on a device to a trace at `path`, gzip if that ends in `.gz`, until
    /// what is returned is finished or dropped. `cargo run --release --example replay` reads it.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where the device is not CUDA's, [`io::ErrorKind::AlreadyExists`] where a
    /// recording goes on; those of the file system.
    pub fn record(self, device: &Device, path: impl AsRef<Path>) -> io::Result<Recording> {
        let id = device_id(device).map_err(|error| io::Error::new(io::ErrorKind::Unsupported, error))?;
        self.0.record(id, path)
    }

    /// Sets an option by its name in the environment, such as `GLAKE_POOL_LIMIT`, for all devices.
    ///
    /// # Errors
    /// [`OptionError`], which lists the names and says what was set.
    pub fn set_option(self, name: &str, value: &str) -> Result<(), OptionError> {
        self.0.set_option(name, value)
    }

    /// What went to the driver's own allocator since glake was installed.
    #[must_use]
    pub fn passed_on(self) -> PassedOn {
        self.0.passed_on()
    }
}

fn device_id(device: &Device) -> Result<DeviceId, Error> {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => Ok(DeviceId(u32::try_from(gpu_id).unwrap_or(u32::MAX))),
        location => Err(Error::NotCuda(location)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_has_no_pool() {
        assert!(matches!(device_id(&Device::Cpu), Err(Error::NotCuda(DeviceLocation::Cpu))));
        let tensor = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(tensors::address(&tensor), None);
    }

    #[test]
    fn a_file_that_is_none_is_named_with_the_reason() {
        let path = std::env::temp_dir().join(format!("glake-candle-{}-none.safetensors", std::process::id()));
        std::fs::write(&path, [0; 5]).unwrap();
        let error = Error::from(Checkpoint::open(&path).unwrap_err());
        std::fs::remove_file(&path).unwrap();
        let crossed = candle_core::Error::from(error).to_string();
        assert!(crossed.contains("none.safetensors") && crossed.contains("cut short"), "{crossed}");
    }

    #[test]
    fn errors_cross_to_candle_and_back() {
        let crossed: candle_core::Error = Error::NotServed(DeviceId(3)).into();
        assert!(crossed.to_string().contains("candle's memory on device 3"), "{crossed}");
        assert!(format!("{crossed:?}").contains("cargo tree -i cudarc"), "{crossed:?}");
        let own = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap().reshape(3).unwrap_err();
        let text = own.to_string();
        let again: candle_core::Error = Error::from(own).into();
        assert_eq!(again.to_string(), text);
    }
}
