//! What a program that has installed the hook can ask and say.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use glake_core::adapt::TagId;
use glake_core::alloc::{AllocError, Request};
use glake_core::driver::DriverError;
use glake_core::stats::Stats;
use glake_core::trace::{Recorder, Writer};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};
use glake_vmm::Defragmented;

use crate::config::{self, OptionError};
use crate::device::{Device, DevicePool, InContext};
use crate::hook::{self, Hook, exchange_tag, inside, lock};

pub(crate) const NO_POOL: DriverError = DriverError::NotSupported("a pool on this device");

/// The installed hook. Copies are the same hook, which serves until the process ends.
#[derive(Clone, Copy)]
pub struct Glake {
    pub(crate) hook: &'static Hook,
}

/// What went to the driver's own allocator since the hook was installed; see [`Glake::passed_on`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedOn {
    /// Allocations of device memory.
    pub n_allocations: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Frees of device memory.
    pub n_frees: usize,
}

/// What was copied over several links since the hook was installed; see [`Glake::copied`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Copies; of a checkpoint, one for each shard.
    pub n_copies: usize,
    /// Bytes that went from the host to a device.
    pub to_device_bytes: u64,
    /// Bytes that went from a device to the host.
    pub to_host_bytes: u64,
    /// Bytes of those that went over the link of another device.
    pub relayed_bytes: u64,
}

impl Glake {
    pub(crate) const fn of(hook: &'static Hook) -> Self {
        Self { hook }
    }

    /// The hook, if it is installed.
    #[must_use]
    pub fn installed() -> Option<Self> {
        hook::installed().map(Self::of)
    }

    pub(crate) fn device(self, device: DeviceId) -> Result<&'static Device, DriverError> {
        let index = usize::try_from(device.0).unwrap_or(usize::MAX);
        self.hook.devices.get(index).ok_or(DriverError::InvalidDevice(device))
    }

    fn pool_if_any(self, device: DeviceId) -> Option<&'static DevicePool> {
        self.device(device).ok()?.pool_if_any()
    }

    /// Does `work` with the pool of a device, inside its context. `default` where there is no pool yet.
    fn with_pool<T>(
        self,
        device: DeviceId,
        default: T,
        work: impl FnOnce(&DevicePool) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let device = self.device(device)?;
        let (Some(pool), Some(context)) = (device.pool_if_any(), device.context()) else {
            return Ok(default);
        };
        let done = inside(|| {
            let _in_context = InContext::enter(self.hook.real, context);
            work(pool)
        });
        done.unwrap_or(Err(AllocError::Poisoned))
    }

    /// How many devices the process sees.
    #[must_use]
    pub fn n_devices(self) -> usize {
        self.hook.devices.len()
    }

    /// Figures of a device's pool; all zero where nothing was allocated yet.
    #[must_use]
    pub fn memory_stats(self, device: DeviceId) -> Stats {
        self.pool_if_any(device).map(|pool| pool.pool.stats()).unwrap_or_default()
    }

    /// The share of the free bytes of a device's pool that no request can get.
    #[must_use]
    pub fn fragmentation_ratio(self, device: DeviceId) -> f64 {
        self.memory_stats(device).fragmentation_ratio()
    }

    /// Gives memory back to the device until at most `keep_bytes` are reserved or nothing more is free, and
    /// returns how many bytes went back. Waits for the work enqueued so far.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was given back until then stays given back.
    pub fn trim(self, device: DeviceId, keep_bytes: u64) -> Result<u64, AllocError> {
        self.with_pool(device, 0, |pool| pool.pool.trim(keep_bytes))
    }

    /// Moves free memory into one run of addresses. Live memory stays where it is. Waits for the work
    /// enqueued so far.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was done until then stays done.
    pub fn defragment(self, device: DeviceId) -> Result<Defragmented, AllocError> {
        self.with_pool(device, Defragmented::default(), |pool| pool.pool.defragment())
    }

    /// The most physical bytes that the pool of a device may hold from now on. What is free above it is
    /// given back, and its bytes are returned.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; the limit is set all the same.
    pub fn limit_bytes(self, device: DeviceId, limit_bytes: u64) -> Result<u64, AllocError> {
        let mut limit = lock(&self.device(device)?.limit_bytes);
        *limit = limit_bytes;
        self.with_pool(device, 0, |pool| pool.pool.set_limit_bytes(limit_bytes))
    }

    /// Whether an address of device memory is a pool's.
    #[must_use]
    pub fn owns(self, ptr: DevicePtr) -> bool {
        self.hook.owner(ptr.0).is_some()
    }

    /// The live allocation around an address.
    #[must_use]
    pub fn allocation_at(self, ptr: DevicePtr) -> Option<AddressRange> {
        self.hook.owner(ptr.0)?.1.pool.allocation_at(ptr)
    }

    /// Allocates `bytes` bytes for work on `stream` of `device`, as the program's own allocations are.
    ///
    /// # Errors
    /// Those of [`SharedPool::allocate`](glake_vmm::SharedPool::allocate);
    /// [`DriverError::NotSupported`] where the device has no pool; [`DriverError::UnknownStream`].
    pub fn allocate(self, device: DeviceId, bytes: u64, stream: StreamId) -> Result<DevicePtr, AllocError> {
        let device = self.device(device)?;
        let allocated = inside(|| {
            let context = self.hook.retain(device).ok_or(NO_POOL)?;
            let _in_context = InContext::enter(self.hook.real, context);
            let on = self.hook.device_of_stream(stream).filter(|on| on.id == device.id);
            on.ok_or(DriverError::UnknownStream(stream))?;
            self.hook.allocate_request(device, Request::new(bytes, stream)).unwrap_or(Err(NO_POOL.into()))
        });
        allocated.unwrap_or(Err(AllocError::Poisoned))
    }

    /// Frees what lies at `ptr`, behind the work of `stream`; a default stream is that of the memory's device.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`].
    pub fn free(self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let (device, _) = self.hook.owner(ptr.0).ok_or(AllocError::NotAllocated(ptr))?;
        let freed = inside(|| {
            let _in_context = device.context().map(|context| InContext::enter(self.hook.real, context));
            self.hook.free(ptr.0, stream)
        });
        match freed.flatten() {
            Some(crate::real::SUCCESS) => Ok(()),
            _ => Err(AllocError::NotAllocated(ptr)),
        }
    }

    /// Tells that work on `stream` uses the allocation at `ptr`, beside the stream that it was allocated on.
    ///
    /// # Errors
    /// [`AllocError::NotAllocated`]; [`DriverError::UnknownStream`]. The state is as before.
    pub fn record_use(self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let (device, pool) = self.hook.owner(ptr.0).ok_or(AllocError::NotAllocated(ptr))?;
        let recorded = inside(|| {
            let _in_context = device.context().map(|context| InContext::enter(self.hook.real, context));
            self.hook.device_of_stream(stream).ok_or(DriverError::UnknownStream(stream))?;
            let _ = self.hook.capturing(device, pool, stream);
            pool.pool.record_use(ptr, stream)
        });
        recorded.unwrap_or(Err(AllocError::Poisoned))
    }

    /// Allocations of this thread belong to `name` until what is returned is dropped. An out-of-memory
    /// report names the tags that hold most.
    #[must_use = "the tag holds until this is dropped"]
    pub fn tag(self, name: &str) -> Tag {
        let tag = lock(&self.hook.tags).id(name);
        self.hook.has_tags.store(true, Ordering::Relaxed);
        Tag { before: exchange_tag(Some(tag)), on_this_thread: PhantomData }
    }

    /// Live bytes by tag, as asked for. What was allocated outside of any tag is not counted.
    #[must_use]
    pub fn tagged_bytes(self) -> BTreeMap<String, u64> {
        lock(&self.hook.tags).top(usize::MAX).into_iter().collect()
    }

    /// Writes what is allocated and freed on a device to a trace at `path`, gzip if that ends in `.gz`,
    /// until what is returned is finished or dropped. `cargo run --release --example replay` reads it.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where a recording goes on, [`io::ErrorKind::NotFound`] where there is
    /// no such device; those of the file system.
    pub fn record(self, device: DeviceId, path: impl AsRef<Path>) -> io::Result<Recording> {
        let device = self.device(device).map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
        let path = path.as_ref();
        let make = || {
            let file = BufWriter::new(File::create(path)?);
            let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
            let writer = if is_gzip { Writer::gzip(file) } else { Writer::new(file) };
            #[allow(
                clippy::disallowed_methods,
                reason = "the trace tells the time; nothing is decided by it"
            )]
            let start = Instant::now();
            let clock = move || u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
            Ok(Recorder::new(writer, Box::new(clock)))
        };
        device.begin_recording(make)?;
        Ok(Recording { device: Some(device) })
    }

    /// Sets an option by its name in the environment: `GLAKE_POOL_LIMIT` or `GLAKE_PINNED_CACHE`, in bytes or
    /// with a unit such as `GiB`, for all devices; `GLAKE_MULTIPATH`, `on` or `off`.
    ///
    /// # Errors
    /// [`OptionError`]; nothing is set but where it says so.
    pub fn set_option(self, name: &str, value: &str) -> Result<(), OptionError> {
        let changed = self.hook.config.clone().with(name, value)?;
        match name {
            config::LIMIT => {
                for device in &self.hook.devices {
                    let set = self.limit_bytes(device.id, changed.limit_bytes);
                    set.map_err(|_| OptionError::NotTrimmed(device.id))?;
                }
                Ok(())
            }
            config::PINNED => {
                let _ = inside(|| self.hook.limit_pinned(changed.pinned_bytes));
                Ok(())
            }
            config::MULTIPATH => {
                self.hook.copies.switch(&changed);
                Ok(())
            }
            _ => {
                let known = config::NAMES.into_iter().find(|known| *known == name);
                Err(known.map_or(OptionError::Unknown, OptionError::TooLate))
            }
        }
    }

    /// What went to the driver's own allocator since the hook was installed, because the pool could not serve it:
    /// in another context than a device's primary one, from a memory pool that is shared, or in a capture that was
    /// broken. Libraries that find the driver by themselves are not seen.
    #[must_use]
    pub fn passed_on(self) -> PassedOn {
        let counters = &self.hook.passed_on;
        PassedOn {
            n_allocations: counters.n_allocations.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            n_frees: counters.n_frees.load(Ordering::Relaxed),
        }
    }

    /// What the engine copied since the hook was installed: large copies of the program, where
    /// [`Config::multipath`](crate::Config::multipath) is set, and what [`load`](Self::load) and [`fill`](Self::fill)
    /// were asked for. All other copies were the driver's.
    #[must_use]
    pub fn copied(self) -> Copied {
        let copies = &self.hook.copies;
        Copied {
            n_copies: copies.n.load(Ordering::Relaxed),
            to_device_bytes: copies.to_device_bytes.load(Ordering::Relaxed),
            to_host_bytes: copies.to_host_bytes.load(Ordering::Relaxed),
            relayed_bytes: copies.relayed_bytes.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Glake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Glake").field("n_devices", &self.n_devices()).finish_non_exhaustive()
    }
}

/// A scope in which what a thread allocates has a tag; made by [`Glake::tag`].
#[derive(Debug)]
pub struct Tag {
    before: Option<TagId>,
    on_this_thread: PhantomData<*const ()>,
}

impl Drop for Tag {
    fn drop(&mut self) {
        exchange_tag(self.before);
    }
}

/// A recording that goes on; made by [`Glake::record`]. Dropping it ends it, and errors are lost then.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    /// None once it has ended: the next is another's.
    device: Option<&'static Device>,
}

impl Recording {
    /// Ends the recording.
    ///
    /// # Errors
    /// Those of the file system: the trace is not whole then.
    pub fn finish(mut self) -> io::Result<()> {
        match self.end() {
            Some(recorder) => {
                recorder.finish()?.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
            }
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Option<Recorder<BufWriter<File>>> {
        self.device.take()?.end_recording()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(recorder) = self.end() {
            let _ = recorder.finish();
        }
    }
}
