//! A model of `PyTorch`'s CUDA caching allocator, by its public rules.
//!
//! A peer to compare with, not a product. The rules (c10/cuda/CUDACachingAllocator.cpp, default
//! settings): sizes are rounded to 512 B; requests up to 1 MiB come from the *small* pool of
//! 2 MiB segments, others from the *large* pool, whose segments are 20 MiB for requests below
//! 10 MiB and the request rounded to 2 MiB above; each stream has a pool pair of its own; best fit
//! by (size, address); a block is split if at least 512 B (small) or more than 1 MiB (large)
//! remain; free neighbours in a segment coalesce; when the device is out of memory, all wholly
//! free segments are given back and the request is tried once more; a block that other streams were
//! told to use is free when events recorded there at its free have passed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, OutOfMemory, Request};
use glake_core::driver::{Driver, DriverError};
use glake_core::stats::Stats;
use glake_core::units::{DeviceId, DevicePtr, EventId, PAGE_BYTES, StreamId, round_up};

mod blocks;
mod segment;

use blocks::{BlockId, Blocks, Kind, Pool};
use segment::Segment;

const MIN_BLOCK_BYTES: u64 = 512;
const SMALL_BYTES: u64 = 1 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
const MIN_LARGE_BYTES: u64 = 10 << 20;

/// A model of `PyTorch`'s caching allocator over a driver; serves any number of streams.
pub struct Caching {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    limit_bytes: u64,
    blocks: Blocks,
    segments: HashMap<DevicePtr, Segment>,
    live: HashMap<DevicePtr, Live>,
    /// Oldest first.
    pending: Vec<Pending>,
    stats: Stats,
}

#[derive(Debug)]
struct Live {
    block: BlockId,
    bytes: u64,
    stream: StreamId,
    /// Other streams told to use it.
    used_on: Vec<StreamId>,
}

/// A freed block that other streams may still use.
#[derive(Debug)]
struct Pending {
    block: BlockId,
    events: Vec<EventId>,
}

impl Caching {
    /// An empty allocator on `device` that holds at most `limit_bytes` of physical memory.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, device: DeviceId, limit_bytes: u64) -> Self {
        Self {
            driver,
            device,
            limit_bytes,
            blocks: Blocks::default(),
            segments: HashMap::new(),
            live: HashMap::new(),
            pending: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// A new segment for `bytes`, as one free block.
    fn grow(&mut self, pool: Pool, bytes: u64) -> Result<BlockId, AllocError> {
        let bytes = match pool.kind {
            Kind::Small => SMALL_SEGMENT_BYTES,
            Kind::Large if bytes < MIN_LARGE_BYTES => LARGE_SEGMENT_BYTES,
            Kind::Large => round_up(bytes, PAGE_BYTES).ok_or(AllocError::TooLarge { bytes })?,
        };
        if self.limit_bytes - self.stats.reserved_bytes.min(self.limit_bytes) < bytes {
            return Err(DriverError::OutOfMemory.into());
        }
        let segment = Segment::create(&*self.driver, self.device, bytes)?;
        self.stats.reserved_bytes += bytes;
        self.stats.peak_reserved_bytes = self.stats.peak_reserved_bytes.max(self.stats.reserved_bytes);
        self.stats.n_misses += 1;
        self.segments.insert(segment.range.start, segment);
        Ok(self.blocks.add_segment(pool, segment.range))
    }

    /// A free block of `pool` with at least `bytes`, from a new segment if need be.
    fn find(&mut self, pool: Pool, bytes: u64) -> Result<BlockId, AllocError> {
        if let Some(block) = self.blocks.best_fit(pool, bytes) {
            return Ok(block);
        }
        match self.grow(pool, bytes) {
            Err(AllocError::Driver(DriverError::OutOfMemory)) => {
                self.release_cached(0)?;
                self.grow(pool, bytes)
            }
            other => other,
        }
    }

    /// Gives wholly free segments back, behind the work of their streams, until at most
    /// `keep_bytes` are reserved.
    fn release_cached(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.settle_pending()?;
        let mut released = 0;
        let mut synchronized: Vec<StreamId> = Vec::new();
        for (block, pool, range) in self.blocks.whole_free() {
            if self.stats.reserved_bytes <= keep_bytes {
                break;
            }
            if !synchronized.contains(&pool.stream) {
                let event = self.record(pool.stream)?;
                let waited = self.driver.synchronize(event);
                self.driver.forget(event);
                waited?;
                synchronized.push(pool.stream);
            }
            self.segments[&range.start].destroy(&*self.driver, self.device)?;
            self.segments.remove(&range.start);
            self.blocks.remove_segment(block);
            self.stats.reserved_bytes -= range.bytes;
            released += range.bytes;
        }
        Ok(released)
    }

    /// An event behind the work of a stream; where it was destroyed, behind all work of the device.
    fn record(&self, stream: StreamId) -> Result<EventId, DriverError> {
        match self.driver.record(stream) {
            Err(DriverError::UnknownStream(_)) => self.driver.record_all(self.device),
            recorded => recorded,
        }
    }

    /// An event on each stream.
    fn record_each(&self, streams: &[StreamId]) -> Result<Vec<EventId>, DriverError> {
        let mut events = Vec::new();
        for &stream in streams {
            match self.record(stream) {
                Ok(event) => events.push(event),
                Err(error) => {
                    self.forget(events);
                    return Err(error);
                }
            }
        }
        Ok(events)
    }

    fn forget(&self, events: Vec<EventId>) {
        for event in events {
            self.driver.forget(event);
        }
    }

    /// Frees the blocks that no stream uses any more.
    fn reap_pending(&mut self) -> Result<(), DriverError> {
        let mut at = 0;
        while let Some(pending) = self.pending.get_mut(at) {
            while let Some(&event) = pending.events.last()
                && self.driver.query(event)?
            {
                self.driver.forget(event);
                pending.events.pop();
            }
            if pending.events.is_empty() {
                self.blocks.give(self.pending.remove(at).block);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Waits for the streams that use freed blocks, and frees these.
    fn settle_pending(&mut self) -> Result<(), DriverError> {
        for pending in &self.pending {
            pending.events.iter().try_for_each(|&event| self.driver.synchronize(event))?;
        }
        self.reap_pending()
    }

    fn out_of_memory(&self, requested_bytes: u64) -> AllocError {
        let stats = self.stats();
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested_bytes,
            free_bytes: stats.free_bytes(),
            largest_free_bytes: stats.largest_free_bytes,
            stitchable_bytes: stats.stitchable_bytes,
            reserved_bytes: stats.reserved_bytes,
            limit_bytes: self.limit_bytes,
            device_free_bytes: self.driver.memory_info(self.device).map_or(0, |info| info.free_bytes),
            top_tags: Vec::new(),
        }))
    }

    fn take(&mut self, request: Request, block: BlockId, bytes: u64) -> Allocation {
        let taken = self.blocks.take(block, bytes);
        let start = taken.start.0.next_multiple_of(request.align_bytes);
        let ptr = DevicePtr(start);
        let live = Live { block, bytes: request.bytes, stream: request.stream, used_on: Vec::new() };
        self.live.insert(ptr, live);
        let stats = &mut self.stats;
        stats.requested_bytes += request.bytes;
        stats.allocated_bytes += taken.bytes;
        stats.peak_requested_bytes = stats.peak_requested_bytes.max(stats.requested_bytes);
        stats.peak_allocated_bytes = stats.peak_allocated_bytes.max(stats.allocated_bytes);
        stats.n_live += 1;
        stats.n_allocations += 1;
        Allocation { ptr, bytes: request.bytes, stream: request.stream }
    }
}

impl Allocator for Caching {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let Request { bytes, align_bytes, stream } = request;
        if bytes == 0 {
            return Err(AllocError::ZeroBytes);
        }
        if !align_bytes.is_power_of_two() || align_bytes > PAGE_BYTES {
            return Err(AllocError::BadAlignment { align_bytes });
        }
        let slack = align_bytes.saturating_sub(MIN_BLOCK_BYTES);
        let rounded = bytes.checked_add(slack).and_then(|bytes| round_up(bytes, MIN_BLOCK_BYTES));
        let rounded = rounded.filter(|&bytes| bytes < 1 << 48).ok_or(AllocError::TooLarge { bytes })?;
        self.reap_pending()?;
        let kind = if rounded <= SMALL_BYTES { Kind::Small } else { Kind::Large };
        match self.find(Pool { stream, kind }, rounded) {
            Ok(block) => Ok(self.take(request, block, rounded)),
            Err(AllocError::Driver(DriverError::OutOfMemory)) => {
                self.stats.n_failures += 1;
                Err(self.out_of_memory(bytes))
            }
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let live = self.live.get(&ptr).ok_or(AllocError::NotAllocated(ptr))?;
        let mut streams = live.used_on.clone();
        if stream != live.stream && !streams.contains(&stream) {
            streams.push(stream);
        }
        let events = self.record_each(&streams)?;
        let Some(live) = self.live.remove(&ptr) else { return Err(AllocError::NotAllocated(ptr)) };
        self.stats.allocated_bytes -= self.blocks.bytes(live.block);
        self.stats.requested_bytes -= live.bytes;
        self.stats.n_live -= 1;
        self.stats.n_frees += 1;
        if events.is_empty() {
            self.blocks.give(live.block);
        } else {
            self.pending.push(Pending { block: live.block, events });
        }
        Ok(())
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        let live = self.live.get_mut(&ptr).ok_or(AllocError::NotAllocated(ptr))?;
        if stream != live.stream && !live.used_on.contains(&stream) {
            live.used_on.push(stream);
        }
        Ok(())
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.release_cached(keep_bytes)
    }

    fn stats(&self) -> Stats {
        Stats {
            stitchable_bytes: self.blocks.whole_free().iter().map(|(_, _, range)| range.bytes).sum(),
            largest_free_bytes: self.blocks.largest_free_bytes(),
            ..self.stats
        }
    }
}

impl Drop for Caching {
    fn drop(&mut self) {
        for segment in self.segments.values() {
            let _ = segment.destroy(&*self.driver, self.device);
        }
    }
}

impl fmt::Debug for Caching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caching")
            .field("device", &self.device)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
