//! Large copies between the host and the pools, over all links of the machine, where that is switched on.
//!
//! A function returns `None` where the driver is to copy: what is not the pool's, what is small, what the
//! program wants to return at once, and everything after the engine has failed.
//!
//! The copy is done when the call returns, which no later work can tell from the driver's own. It begins when
//! what was enqueued before is done, for which the host waits: that may write the source (a host function does,
//! or a kernel that reaches host memory), and the engine reads memory that is not pinned before its stream is
//! asked. The driver, too, waits there where the function waits, and may where it does not.

use std::ffi::c_int;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use glake_core::driver::StreamOrder as _;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};
use glake_multipath::topology::TopologyError;
use glake_multipath::{Direction, Engine, Path, Report};

use crate::captures::BesideCaptures;
use crate::config::Config;
use crate::hook::Hook;
use crate::multipath::Multipath;
use crate::real::{Code, INVALID_VALUE, Ptr, SUCCESS};

/// Copies of pinned memory of fewer bytes are the driver's, which moves them at the rate of a link.
const PINNED_FROM_BYTES: usize = 16 << 20;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;
/// `CU_POINTER_ATTRIBUTE_IS_MANAGED`.
const IS_MANAGED: c_int = 8;
/// `CU_MEMORYTYPE_HOST`.
const ON_HOST: u64 = 1;

/// When the driver's function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returns {
    /// When the copy is done.
    Done,
    /// At once, where the memory is pinned.
    Enqueued,
}

/// Where and when a program wants something copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) stream: StreamId,
    pub(crate) returns: Returns,
}

/// A copy between a device and the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) direction: Direction,
    pub(crate) device: Ptr,
    pub(crate) host: *mut u8,
    pub(crate) bytes: usize,
}

/// What the driver knows of an address on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// Nothing: memory like any other.
    Plain,
    Pinned,
    /// It is no host's, or it moves.
    Other,
}

/// The engine, made for the first copy, and what it did.
#[derive(Debug)]
pub(crate) struct Copies {
    is_on: AtomicBool,
    config: Multipath,
    engine: OnceLock<Result<Engine, Arc<TopologyError>>>,
    pub(crate) n: AtomicUsize,
    pub(crate) to_device_bytes: AtomicU64,
    pub(crate) to_host_bytes: AtomicU64,
    pub(crate) relayed_bytes: AtomicU64,
}

impl Copies {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            is_on: AtomicBool::new(config.has_multipath),
            config: config.multipath,
            engine: OnceLock::new(),
            n: AtomicUsize::new(0),
            to_device_bytes: AtomicU64::new(0),
            to_host_bytes: AtomicU64::new(0),
            relayed_bytes: AtomicU64::new(0),
        }
    }

    /// Large copies are moved from now on as `config` says: by the hook, or by the driver.
    pub(crate) fn switch(&self, config: &Config) {
        self.is_on.store(config.has_multipath, Ordering::Relaxed);
    }

    /// Whether the hook looks at copies of so many bytes.
    #[inline]
    fn takes(&self, bytes: usize) -> bool {
        self.is_on.load(Ordering::Relaxed) && bytes > 0 && bytes as u64 >= self.config.from_bytes
    }

    #[cold]
    fn give_up(&self, error: &dyn std::error::Error) {
        tracing::warn!(%error, "the driver copies from now on");
        self.is_on.store(false, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, direction: Direction, report: &Report) {
        self.n.fetch_add(1, Ordering::Relaxed);
        let bytes = match direction {
            Direction::ToDevice => &self.to_device_bytes,
            Direction::ToHost => &self.to_host_bytes,
        };
        bytes.fetch_add(report.bytes, Ordering::Relaxed);
        let relayed = report.lanes.iter().filter(|lane| lane.path != Path::Direct);
        self.relayed_bytes.fetch_add(relayed.map(|lane| lane.bytes).sum(), Ordering::Relaxed);
    }
}

impl Hook {
    /// Copies as the program wants it, if the engine is to.
    ///
    /// # Safety
    /// The host memory can be read, or written where the copy goes to the host, until this returns, and nobody
    /// changes it meanwhile but work that the copy is ordered behind.
    pub(crate) unsafe fn copy(&'static self, copy: Copy, order: Order) -> Option<Code> {
        if !self.copies.takes(copy.bytes) || copy.host.is_null() {
            return None;
        }
        let device = self.device_to_copy(&copy, order)?;
        let engine = self.engine_for(&copy, order.returns, device)?;
        // Not before it is known that the driver is not to refuse the call.
        let _beside = BesideCaptures::enter(self.real);
        self.wait_for(order.stream)?;
        let (transfer, at) = (engine.on(device), DevicePtr(copy.device));
        let done = match copy.direction {
            Direction::ToDevice => {
                // SAFETY: the caller vouches for the memory, which is not null and, like the allocation that it
                // fits in, shorter than half of all addresses; what may still have written it is done.
                transfer.write(at, unsafe { slice::from_raw_parts(copy.host, copy.bytes) })
            }
            Direction::ToHost => {
                // SAFETY: as above, and nobody else uses it.
                transfer.read(at, unsafe { slice::from_raw_parts_mut(copy.host, copy.bytes) })
            }
        };
        // Where it failed half-way, the driver copies everything: the same bytes to the same places.
        let report = done.inspect_err(|error| self.copies.give_up(error)).ok()?;
        self.copies.count(copy.direction, &report);
        Some(SUCCESS)
    }

    /// Copies between two addresses of which one is the host's, if the engine is to.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), if one is.
    pub(crate) unsafe fn copy_anywhere(
        &'static self,
        (dst, src): (Ptr, Ptr),
        bytes: usize,
        order: Order,
    ) -> Option<Code> {
        if !self.copies.takes(bytes) {
            return None;
        }
        let host = |at| std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap_or_default());
        let copy = match (self.owner(dst), self.owner(src)) {
            (Some(_), None) => Copy { direction: Direction::ToDevice, device: dst, host: host(src), bytes },
            (None, Some(_)) => Copy { direction: Direction::ToHost, device: src, host: host(dst), bytes },
            _ => return None,
        };
        // SAFETY: the caller vouches for it.
        unsafe { self.copy(copy, order) }
    }

    /// The device, if all of its side of the copy lies in one of the pool's allocations, and the stream and the
    /// thread are on it.
    fn device_to_copy(&'static self, copy: &Copy, order: Order) -> Option<DeviceId> {
        let (device, pool) = self.owner(copy.device)?;
        let range = AddressRange::new(DevicePtr(copy.device), copy.bytes as u64);
        let allocation = pool.pool.allocation_at(range.start)?;
        let is_here = self.device_of(self.current_context())?.id == device.id
            && self.device_of_stream(order.stream)?.id == device.id;
        (is_here && allocation.contains(range)).then_some(device.id)
    }

    /// The engine, if it does such a copy better than the driver and the driver would not refuse it.
    fn engine_for(&'static self, copy: &Copy, returns: Returns, device: DeviceId) -> Option<&'static Engine> {
        if returns == Returns::Done && self.captures.are_going_on() {
            // They may be broken by a call that waits, which the driver says then.
            return None;
        }
        match (self.memory(copy), returns) {
            (Memory::Plain, _) => self.engine_or_give_up(),
            (Memory::Pinned, Returns::Done) if copy.bytes >= PINNED_FROM_BYTES => {
                let relays = |engine: &&Engine| !engine.topology().relays_for(device).is_empty();
                self.engine_or_give_up().filter(relays).filter(|_| self.copies.config.n_links > 1)
            }
            _ => None,
        }
    }

    fn engine_or_give_up(&self) -> Option<&Engine> {
        self.engine().inspect_err(|error| self.copies.give_up(error)).ok()
    }

    /// The process's engine, made at the first call, whether or not copies are its. The thread is inside of glake.
    pub(crate) fn engine(&self) -> Result<&Engine, &Arc<TopologyError>> {
        let make = || {
            let config = self.copies.config.engine();
            Engine::new(self.driver.clone(), config).map_err(Arc::new)
        };
        self.copies.engine.get_or_init(make).as_ref()
    }

    /// Waits for what was enqueued on a stream. None where it is captured, or its work has failed: the driver
    /// says so.
    fn wait_for(&self, stream: StreamId) -> Option<()> {
        let event = self.driver.record(stream).ok()?;
        let waited = self.driver.synchronize(event);
        self.driver.forget(event);
        waited.ok()
    }

    /// What the host's side of a copy is, from its first to its last byte.
    fn memory(&self, copy: &Copy) -> Memory {
        let first = copy.host.expose_provenance() as Ptr;
        let last = first.saturating_add(copy.bytes as u64 - 1);
        match (self.memory_at(first), self.memory_at(last)) {
            (one, other) if one == other => one,
            _ => Memory::Other,
        }
    }

    fn memory_at(&self, at: Ptr) -> Memory {
        match self.attribute(MEMORY_TYPE, at) {
            Err(INVALID_VALUE) | Ok(0) => Memory::Plain,
            Ok(ON_HOST) if self.attribute(IS_MANAGED, at) == Ok(0) => Memory::Pinned,
            _ => Memory::Other,
        }
    }

    /// An attribute of an address that is a number.
    fn attribute(&self, which: c_int, at: Ptr) -> Result<u64, Code> {
        let mut value = 0u64;
        // SAFETY: at most 8 bytes are written, the low ones first; the address is only looked up.
        let code = unsafe { (self.real.cuPointerGetAttribute)((&raw mut value).cast(), which, at) };
        if code == SUCCESS { Ok(value) } else { Err(code) }
    }
}
