//! A quota.

use std::collections::HashMap;

use crate::alloc::{AllocError, Allocation, Allocator, Request};
use crate::stats::Stats;
use crate::units::{DevicePtr, StreamId};

/// An allocator with a quota of requested bytes, exact to the byte.
///
/// The quota speaks of what was asked for, not of what rounding sets aside, so it means the same
/// over every pool.
#[derive(Debug)]
pub struct Limited<A> {
    inner: A,
    quota_bytes: u64,
    used_bytes: u64,
    live: HashMap<DevicePtr, u64>,
}

impl<A: Allocator> Limited<A> {
    /// `inner`, from which at most `quota_bytes` can be had at a time.
    pub fn new(inner: A, quota_bytes: u64) -> Self {
        Self { inner, quota_bytes, used_bytes: 0, live: HashMap::new() }
    }

    /// The quota in bytes.
    #[must_use]
    pub const fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// Changes the quota. What is live above a lower quota stays; nothing more is handed out until
    /// enough of it is freed.
    pub const fn set_quota_bytes(&mut self, quota_bytes: u64) {
        self.quota_bytes = quota_bytes;
    }

    /// What is left of the quota in bytes.
    #[must_use]
    pub const fn left_bytes(&self) -> u64 {
        self.quota_bytes.saturating_sub(self.used_bytes)
    }

    /// The allocator inside, with its live allocations.
    #[must_use]
    pub fn into_inner(self) -> A {
        self.inner
    }
}

impl<A: Allocator> Allocator for Limited<A> {
    /// # Errors
    /// [`AllocError::OverQuota`] if `request` exceeds what is left, and those of the allocator
    /// inside.
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let left_bytes = self.left_bytes();
        if request.bytes > left_bytes {
            return Err(AllocError::OverQuota { bytes: request.bytes, left_bytes });
        }
        let allocation = self.inner.allocate(request)?;
        self.used_bytes += request.bytes;
        self.live.insert(allocation.ptr, request.bytes);
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.inner.free(ptr, stream)?;
        self.used_bytes -= self.live.remove(&ptr).unwrap_or(0);
        Ok(())
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.inner.record_use(ptr, stream)
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.inner.trim(keep_bytes)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}
