//! The engine, and how transfers are asked for.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use glake_core::driver::{Driver, IntoDriver, Lent};
use glake_core::units::{DeviceId, DevicePtr, StreamId};
use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::busy::Busy;
use crate::calibrate::Calibration;
use crate::chunk::{Chunks, Segment, Side};
use crate::config::Config;
use crate::control::{Cancel, OnProgress, Priority, Running, SharedProgress};
use crate::ends::Ends;
use crate::error::TransferError;
use crate::jobs::Jobs;
use crate::lane::{Direction, Lane};
use crate::lanes::Lanes;
use crate::mark::After;
use crate::report::Report;
use crate::slots::Slots;
use crate::topology::{self, Topology, TopologyError};

mod background;
mod choice;
mod copies;
mod drive;
mod enqueued;

pub use background::{Done, FailedTransfer};
pub use enqueued::{EnqueuedRead, FailedRead};

use drive::Host;

/// From here on, many short places on the host are packed into slots instead of being copied one by one.
const PACK_FROM_BYTES: u64 = 256 << 10;

/// Moves bytes between the host and devices over all links of the machine.
///
/// Clones are cheap and share everything. An engine makes its streams and staging memory when a transfer
/// first needs them and keeps them; dropping the last clone gives them back.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    driver: Arc<dyn Driver>,
    config: Config,
    topology: Topology,
    calibration: Option<Calibration>,
    lanes: Lanes,
    slots: Slots,
    running: Running,
    busy: Busy,
    jobs: Jobs,
    /// Who fills and empties slots, from when it is first needed; `None` where no thread can be started.
    threads: OnceLock<Option<ThreadPool>>,
}

impl Engine {
    /// An engine over `driver`, on the machine that this is.
    ///
    /// # Errors
    /// [`TopologyError`] if the machine cannot be made out; [`with_topology`](Self::with_topology) says
    /// what it is.
    pub fn new(driver: impl IntoDriver, config: Config) -> Result<Self, TopologyError> {
        let driver = driver.into_driver();
        let topology = Topology::read(&*driver, std::path::Path::new(topology::SYSFS))?;
        Ok(Self::with_topology(driver, config, topology))
    }

    /// An engine over `driver` on a machine of that topology.
    #[must_use]
    pub fn with_topology(driver: impl IntoDriver, config: Config, topology: Topology) -> Self {
        Self::build(driver.into_driver(), config, topology, None)
    }

    /// An engine over `driver` on a machine of that topology which was measured. What `config` says itself holds, and
    /// measurements of another machine do not count.
    #[must_use]
    pub fn with_calibration(
        driver: impl IntoDriver,
        config: Config,
        topology: Topology,
        calibration: Calibration,
    ) -> Self {
        let is_own = calibration.topology == topology.key();
        if !is_own {
            tracing::warn!(machine = %calibration.topology, "a calibration of another machine is not used");
        }
        let chunk_bytes = config.chunk_bytes.or(calibration.chunk_bytes().filter(|_| is_own));
        let config = Config { chunk_bytes, ..config };
        Self::build(driver.into_driver(), config, topology, Some(calibration).filter(|_| is_own))
    }

    fn build(
        driver: Arc<dyn Driver>,
        config: Config,
        topology: Topology,
        calibration: Option<Calibration>,
    ) -> Self {
        let (lanes, running) = (Lanes::default(), Running::new(driver.n_devices()));
        let slots = Slots::new(Arc::clone(&driver), config.slot_bytes, config.pinned_bytes);
        let (busy, jobs) = (Busy::default(), Jobs::new(config.n_workers));
        Self {
            shared: Arc::new(Shared {
                driver,
                config,
                topology,
                calibration,
                lanes,
                slots,
                running,
                busy,
                jobs,
                threads: OnceLock::new(),
            }),
        }
    }

    /// The machine that the engine works on.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// A transfer between the host and `device`, or to `device` from another, to be described further.
    pub fn on(&self, device: DeviceId) -> Transfer<'static> {
        Transfer {
            engine: self.clone(),
            device,
            after: None,
            priority: Priority::default(),
            cancel: None,
            on_progress: None,
            shared_progress: None,
        }
    }
}

/// A transfer between the host and one device, or from a device to it. Its last word says what is copied, and who
/// waits for it:
///
/// | last word | waits | host memory |
/// |---|---|---|
/// | `write`, `read` | the caller | borrowed |
/// | `submit_write`, `submit_read` | who has the [`Pending`](crate::Pending) | owned |
/// | `enqueue_write`, `enqueue_read` | a stream | owned |
/// | `copy`, `submit_copy`, `enqueue_copy` | the same | none: from device to device |
///
/// ```
/// use glake_core::driver::{Access, VirtualMemory};
/// use glake_core::sim::SimDriver;
/// use glake_core::units::{DeviceId, PAGE_BYTES};
/// use glake_multipath::{Config, Engine, Priority};
/// # use std::sync::Arc;
///
/// let driver = Arc::new(SimDriver::h200(2));
/// let device = DeviceId(0);
/// # let range = driver.reserve(16 * PAGE_BYTES, PAGE_BYTES)?;
/// # driver.map(range.start, driver.create(device, range.bytes)?)?;
/// # driver.set_access(range, &[device], Access::ReadWrite)?;
/// let engine = Engine::new(Arc::clone(&driver), Config::new())?;
/// let weights = vec![7; 32 << 20];
/// let report = engine.on(device).priority(Priority::High).write(range.start, &weights)?;
/// assert_eq!(report.bytes, 32 << 20);
/// let mut back = vec![0; 32 << 20];
/// engine.on(device).read(range.start, &mut back)?;
/// assert_eq!(back, weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "a transfer does nothing until it is told what to copy"]
pub struct Transfer<'a> {
    engine: Engine,
    device: DeviceId,
    after: Option<After>,
    priority: Priority,
    cancel: Option<Cancel>,
    on_progress: Option<OnProgress<'a>>,
    shared_progress: Option<SharedProgress>,
}

impl<'a> Transfer<'a> {
    /// Begins it behind what is enqueued on `stream` so far. Without this it begins at once.
    pub fn after(self, stream: StreamId) -> Self {
        Self { after: Some(After::Stream(stream)), ..self }
    }

    /// Lets transfers of a higher priority go first.
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Stops it when `cancel` says so.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        Self { cancel: Some(cancel.clone()), ..self }
    }

    /// Calls `tell` after each chunk, and nobody else. A transfer that borrows it cannot be submitted.
    pub fn on_progress(self, tell: OnProgress<'a>) -> Self {
        Self { on_progress: Some(tell), shared_progress: None, ..self }
    }

    /// Calls `tell` after each chunk, and nobody else.
    pub fn share_progress(self, tell: SharedProgress) -> Self {
        Self { on_progress: None, shared_progress: Some(tell), ..self }
    }

    /// Copies `src` to the device at `dst`.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive.
    pub fn write(self, dst: DevicePtr, src: &[u8]) -> Result<Report, TransferError> {
        let bytes = src.len() as u64;
        self.write_segments(&[Segment { host_offset: 0, device: dst, bytes }], src)
    }

    /// Copies from the device at `src` until `dst` is full.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive.
    pub fn read(self, src: DevicePtr, dst: &mut [u8]) -> Result<Report, TransferError> {
        let bytes = dst.len() as u64;
        self.read_segments(&[Segment { host_offset: 0, device: src, bytes }], dst)
    }

    /// Copies parts of `src` to places on the device, which do not overlap.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive.
    pub fn write_segments(self, segments: &[Segment], src: &[u8]) -> Result<Report, TransferError> {
        let chunks = Chunks::new(segments, src.len() as u64, Side::Device)?;
        let shared = &*self.engine.shared;
        if shared.can_stage(self.device, src, &chunks) {
            return self.run(Direction::ToDevice, chunks, Host::Staged(Ends::Memory(src)));
        }
        self.run(Direction::ToDevice, chunks, Host::Lent(Lent::Source(src)))
    }

    /// Copies from places on the device to parts of `dst`, which do not overlap.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive.
    pub fn read_segments(self, segments: &[Segment], dst: &mut [u8]) -> Result<Report, TransferError> {
        let chunks = Chunks::new(segments, dst.len() as u64, Side::Host)?;
        if self.engine.shared.can_stage(self.device, dst, &chunks) {
            return self.run(Direction::ToHost, chunks, Host::Staged(Ends::sink(dst)));
        }
        self.run(Direction::ToHost, chunks, Host::Lent(Lent::Sink(dst)))
    }

    /// Copies parts of a file, at the segments' host offsets, to places on the device, which do not
    /// overlap. The file is read by several threads straight into pinned memory, not mapped.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive; `Source` where the file cannot be read or
    /// ends too early.
    pub fn write_file(self, segments: &[Segment], src: &File) -> Result<Report, TransferError> {
        let chunks = Chunks::new(segments, u64::MAX, Side::Device)?;
        self.run(Direction::ToDevice, chunks, Host::Staged(Ends::File(src)))
    }
}

impl std::fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("device", &self.device)
            .field("after", &self.after)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Whether memory goes through pinned slots: where it is not pinned, because the driver takes that a
    /// few KiB at a time and one copy after the other, and where it has many short places on the host.
    /// That does not pay for little, and needs a slot.
    fn can_stage(&self, device: DeviceId, memory: &[u8], chunks: &Chunks) -> bool {
        let bytes = chunks.left_bytes();
        let pays = if chunks.is_scattered_on_host() {
            bytes >= PACK_FROM_BYTES
        } else {
            bytes >= self.config.stage_from_bytes && !self.driver.is_pinned(memory)
        };
        pays && self.slots.prepare(device).is_ok()
    }

    fn threads(&self) -> Option<&ThreadPool> {
        let start = || {
            let n = self.config.staging_threads(self.driver.n_devices() as usize, u64::MAX);
            let threads =
                ThreadPoolBuilder::new().num_threads(n).thread_name(|n| format!("glake-staging-{n}"));
            threads
                .build()
                .inspect_err(|error| tracing::warn!(%error, "transfers are staged by one thread"))
                .ok()
        };
        self.threads.get_or_init(start).as_ref()
    }

    fn put_all(&self, device: DeviceId, lanes: Vec<Lane>) {
        for lane in lanes {
            self.lanes.put(device, lane);
        }
    }
}
