//! Plain memory, and the pools that count it.

use super::Machine;
use super::space::{Kind, Region};
use super::work::Op;
use crate::code::{Code, Result};
use crate::raw;

/// What the host maps at least.
const HOST_PAGE_BYTES: u64 = 4096;

/// A pool. It keeps what is freed up to its release threshold, and takes that first.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    used_bytes: u64,
    used_high_bytes: u64,
    /// Reserved, and not used.
    kept_bytes: u64,
    is_destroyed: bool,
    /// Attributes that are only remembered, by number.
    remembered: [u64; 5],
}

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, the last attribute that is only remembered.
const RELEASE_THRESHOLD: usize = 4;

impl Pool {
    pub(crate) fn on(device: usize) -> Self {
        Self {
            device,
            used_bytes: 0,
            used_high_bytes: 0,
            kept_bytes: 0,
            is_destroyed: false,
            remembered: [0, 1, 1, 1, 0],
        }
    }

    /// Whether an attribute has four bytes instead of eight.
    pub(crate) const fn is_short(attribute: usize) -> bool {
        attribute < RELEASE_THRESHOLD
    }

    pub(crate) fn attribute(&self, attribute: usize) -> Result<u64> {
        match attribute {
            1..=RELEASE_THRESHOLD => Ok(self.remembered[attribute]),
            5 => Ok(self.reserved_bytes()),
            6 => Ok(self.used_high_bytes.max(self.reserved_bytes())),
            7 => Ok(self.used_bytes),
            8 => Ok(self.used_high_bytes),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn reserved_bytes(&self) -> u64 {
        self.used_bytes + self.kept_bytes
    }

    /// Gives up what is kept above `bytes` reserved; returns how much that is.
    fn trim(&mut self, bytes: u64) -> u64 {
        let given = self.kept_bytes.min(self.reserved_bytes().saturating_sub(bytes));
        self.kept_bytes -= given;
        given
    }

    /// Sets an attribute; the highest marks only to 0, which makes them what is used now.
    pub(crate) fn set_attribute(&mut self, attribute: usize, value: u64) -> Result {
        match (attribute, value) {
            (1..=RELEASE_THRESHOLD, value) => self.remembered[attribute] = value,
            (6 | 8, 0) => self.used_high_bytes = self.used_bytes,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }
}

impl Machine {
    /// Plain memory of a context's device, of a pool or not.
    pub(crate) fn allocate(&mut self, context: u64, n_bytes: u64, pool: Option<u64>) -> Result<u64> {
        let device = match pool {
            Some(pool) => self.pool(pool)?.device,
            None => self.device_of(context),
        };
        let bytes = n_bytes.checked_next_multiple_of(HOST_PAGE_BYTES).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(Code::INVALID_VALUE)?;
        let of = pool.and_then(|pool| self.pools.get_mut(&pool));
        let kept = of.map_or(0, |pool| pool.kept_bytes.min(bytes));
        self.memory.take(device, bytes - kept)?;
        let Some(start) = raw::allocate(bytes) else {
            self.memory.give(device, bytes - kept);
            return Err(Code::OUT_OF_MEMORY);
        };
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.kept_bytes -= kept;
            pool.used_bytes += bytes;
            pool.used_high_bytes = pool.used_high_bytes.max(pool.used_bytes);
        }
        let kind = Kind::Allocated { device, context, pool };
        self.space.regions.insert(start, Region { bytes, kind });
        Ok(start)
    }

    /// Memory of a pool, the device's own or another, for a stream: of its graph, where it is captured.
    pub(crate) fn allocate_async(&mut self, bytes: u64, pool: Option<u64>, stream: u64) -> Result<u64> {
        let stream = self.stream(stream)?;
        let Some(on) = self.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
        let (context, capture) = (on.context, on.capture);
        let pool = pool.unwrap_or(self.device_pools[self.device_of(context)].1);
        let start = self.allocate(context, bytes, Some(pool))?;
        if let Some(capture) = capture {
            self.keep_memory(capture, start)?;
        }
        Ok(start)
    }

    /// Enqueues the free of plain memory.
    pub(crate) fn free_async(&mut self, start: u64, stream: u64) -> Result {
        let stream = self.stream(stream)?;
        let captured = self.streams.get(&stream).is_some_and(|stream| stream.capture.is_some());
        if captured {
            // Only what was allocated inside; it lives as long as the graph.
            return if self.is_kept(start) { Ok(()) } else { Err(Code::INVALID_VALUE) };
        }
        self.allocated(start)?;
        self.being_freed.insert(start);
        let enqueued = self.enqueue(stream, Op::Free { start }, Vec::new());
        if enqueued.is_err() {
            self.being_freed.remove(&start);
        }
        enqueued
    }

    /// A pool that was not destroyed.
    pub(crate) fn pool(&mut self, id: u64) -> Result<&mut Pool> {
        self.pools.get_mut(&id).filter(|pool| !pool.is_destroyed).ok_or(Code::INVALID_VALUE)
    }

    /// Destroys a pool; what was allocated from it stays until it is freed.
    pub(crate) fn destroy_pool(&mut self, id: u64) -> Result {
        if self.device_pools.iter().any(|(default, _)| *default == id) {
            return Err(Code::INVALID_VALUE);
        }
        let pool = self.pool(id)?;
        pool.is_destroyed = true;
        pool.remembered[RELEASE_THRESHOLD] = 0;
        self.trim_pool(id, 0);
        for (default, current) in &mut self.device_pools {
            if *current == id {
                *current = *default;
            }
        }
        self.drop_pool(id);
        Ok(())
    }

    /// Gives back what a pool keeps above `bytes` reserved.
    pub(crate) fn trim_pool(&mut self, id: u64, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&id) {
            let (device, given) = (pool.device, pool.trim(bytes));
            self.memory.give(device, given);
        }
    }

    /// Forgets a pool that was destroyed once nothing is left of it.
    fn drop_pool(&mut self, id: u64) {
        if self.pools.get(&id).is_some_and(|pool| pool.is_destroyed && pool.used_bytes == 0) {
            self.pools.remove(&id);
        }
    }

    /// Memory of a region went back: the accounts say so.
    pub(crate) fn freed(&mut self, start: u64, region: &Region) {
        self.being_freed.remove(&start);
        let Kind::Allocated { device, pool, .. } = region.kind else { return };
        let Some((id, pool)) = pool.and_then(|id| Some((id, self.pools.get_mut(&id)?))) else {
            return self.memory.give(device, region.bytes);
        };
        pool.used_bytes -= region.bytes;
        pool.kept_bytes += region.bytes;
        let threshold = pool.remembered[RELEASE_THRESHOLD];
        self.trim_pool(id, threshold);
        self.drop_pool(id);
    }

    /// Bytes of plain memory that are not free, of a device or of all; what is freed on a stream counts
    /// until that has run.
    pub(crate) fn allocated_bytes(&self, of: Option<usize>) -> u64 {
        let bytes = |region: &Region| match region.kind {
            Kind::Allocated { device, .. } if of.is_none_or(|of| of == device) => region.bytes,
            _ => 0,
        };
        self.space.regions.values().map(bytes).sum()
    }

    /// Bytes of pinned memory that was made here.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let is_ours = |region: &&Region| region.kind == Kind::Pinned { is_ours: true };
        self.space.regions.values().filter(is_ours).map(|region| region.bytes).sum()
    }

    /// Plain memory that begins at an address, and whose free is not enqueued.
    pub(crate) fn allocated(&self, start: u64) -> Result<Region> {
        let is_live = |region: &&Region| {
            matches!(region.kind, Kind::Allocated { .. }) && !self.being_freed.contains(&start)
        };
        match self.space.regions.get(&start).filter(is_live) {
            Some(region) => Ok(*region),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
