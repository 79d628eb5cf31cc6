//! Pinned host memory, kept for the next request: the driver takes about 0.4 ms for each MiB.
//!
//! Memory that was freed may still be read or written by copies that go on. It is used again when events of
//! all devices in use, recorded at the free, have passed. It belongs to the context that was current, and ends with
//! it; so only that of primary contexts is kept, which never end.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use glake_core::driver::StreamOrder;
use glake_core::units::EventId;
use glake_cuda::CudaDriver;

use crate::hook::{Hook, lock};
use crate::real::{Code, OUT_OF_MEMORY, SUCCESS};

/// Smaller requests are rounded up to this.
const LEAST_BYTES: usize = 4 << 10;
/// Larger ones are not kept.
const MOST_BYTES: usize = 64 << 20;

/// What a block is: it serves requests of the same kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    bytes: usize,
    flags: c_uint,
}

#[derive(Debug)]
struct Block {
    address: usize,
    events: Vec<EventId>,
    /// Counts frees.
    freed: u64,
}

#[derive(Debug, Default)]
struct Blocks {
    live: HashMap<usize, Kind>,
    /// In the order of their frees.
    free: BTreeMap<Kind, VecDeque<Block>>,
    free_bytes: usize,
    n_frees: u64,
}

impl Blocks {
    /// The block of a kind that was freed first, if the devices are done with it.
    fn take(&mut self, kind: Kind, driver: &CudaDriver) -> Option<Block> {
        let blocks = self.free.get_mut(&kind)?;
        let is_ready = |block: &Block| block.events.iter().all(|event| driver.query(*event).unwrap_or(false));
        let block = blocks.pop_front_if(|block| is_ready(block))?;
        self.free_bytes -= kind.bytes;
        self.live.insert(block.address, kind);
        Some(block)
    }

    fn put(&mut self, address: usize, kind: Kind, events: Vec<EventId>) {
        self.n_frees += 1;
        let block = Block { address, events, freed: self.n_frees };
        self.free.entry(kind).or_default().push_back(block);
        self.free_bytes += kind.bytes;
    }

    /// The block that was freed first, if more than `keep_bytes` are kept.
    fn take_oldest(&mut self, keep_bytes: usize) -> Option<Block> {
        if self.free_bytes <= keep_bytes {
            return None;
        }
        let fronts = self.free.iter().filter_map(|(kind, blocks)| Some((blocks.front()?.freed, *kind)));
        let (_, kind) = fronts.min()?;
        let block = self.free.get_mut(&kind)?.pop_front()?;
        self.free_bytes -= kind.bytes;
        Some(block)
    }
}

/// Pinned memory of the program's.
#[derive(Debug)]
pub(crate) struct Pinned {
    blocks: Mutex<Blocks>,
    /// The most that is kept.
    limit_bytes: AtomicUsize,
}

impl Pinned {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { blocks: Mutex::default(), limit_bytes: AtomicUsize::new(saturated(limit_bytes)) }
    }
}

fn saturated(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Hook {
    /// Pinned memory, if requests of this size are kept.
    pub(crate) fn allocate_pinned(&self, bytes: usize, flags: c_uint) -> Option<Result<*mut c_void, Code>> {
        if bytes == 0 || bytes > MOST_BYTES || self.pinned.limit_bytes.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.device_of(self.current_context())?;
        let kind = Kind { bytes: bytes.max(LEAST_BYTES).next_power_of_two(), flags };
        let kept = lock(&self.pinned.blocks).take(kind, &self.driver);
        if let Some(Block { address, events, .. }) = kept {
            self.forget(events);
            return Some(Ok(ptr::with_exposed_provenance_mut(address)));
        }
        let mut made = ptr::null_mut();
        // SAFETY: writes an address.
        let mut make = || unsafe { (self.real.cuMemHostAlloc)(&raw mut made, kind.bytes, flags) };
        let mut code = make();
        if code == OUT_OF_MEMORY {
            self.free_idle_pinned(0);
            code = make();
        }
        if code != SUCCESS {
            return Some(Err(code));
        }
        lock(&self.pinned.blocks).live.insert(made.expose_provenance(), kind);
        Some(Ok(made))
    }

    /// Keeps pinned memory for later, if it is of a size that is kept.
    pub(crate) fn free_pinned(&self, ptr: *mut c_void) -> Option<Code> {
        let kind = lock(&self.pinned.blocks).live.remove(&ptr.addr())?;
        self.device_of(self.current_context())?;
        let Some(events) = self.events_of_all() else {
            // Nothing tells when the devices are done with it: the driver waits for them.
            // SAFETY: the program's pinned memory, which it gives up.
            return Some(unsafe { (self.real.cuMemFreeHost)(ptr) });
        };
        lock(&self.pinned.blocks).put(ptr.addr(), kind, events);
        self.free_idle_pinned(self.pinned.limit_bytes.load(Ordering::Relaxed));
        Some(SUCCESS)
    }

    /// Events behind all work of the devices in use, if there can be any now: they would break captures.
    fn events_of_all(&self) -> Option<Vec<EventId>> {
        let _none_begins = self.captures.hold_off()?;
        let mut events = Vec::new();
        for device in self.devices.iter().filter(|device| self.is_active(device)) {
            let Ok(event) = self.driver.record_all(device.id) else {
                self.forget(events);
                return None;
            };
            events.push(event);
        }
        Some(events)
    }

    /// Keeps at most `bytes` from now on.
    pub(crate) fn limit_pinned(&self, bytes: u64) {
        self.pinned.limit_bytes.store(saturated(bytes), Ordering::Relaxed);
        self.free_idle_pinned(saturated(bytes));
    }

    /// Frees kept memory, the oldest first, until at most `keep_bytes` are left.
    fn free_idle_pinned(&self, keep_bytes: usize) {
        let take = || lock(&self.pinned.blocks).take_oldest(keep_bytes);
        while let Some(Block { address, events, .. }) = take() {
            // SAFETY: pinned memory that the program gave up. The driver waits for work that uses it.
            let _ = unsafe { (self.real.cuMemFreeHost)(ptr::with_exposed_provenance_mut(address)) };
            self.forget(events);
        }
    }

    fn forget(&self, events: Vec<EventId>) {
        for event in events {
            self.driver.forget(event);
        }
    }
}
