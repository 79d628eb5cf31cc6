//! Who holds the memory.

use super::tags::{TagId, Tags};
use crate::alloc::{AllocError, Allocation, Allocator, Request};
use crate::stats::Stats;
use crate::units::{DevicePtr, StreamId};

/// How many tags an out-of-memory report names.
const REPORTED_TAGS: usize = 5;

/// An allocator that knows how many live bytes each part of the program holds.
///
/// Every allocation belongs to the tag that is current when it is made. An
/// [`OutOfMemory`](crate::alloc::OutOfMemory) report names the tags that hold most.
#[derive(Debug)]
pub struct Tagged<A> {
    inner: A,
    current: TagId,
    tags: Tags,
}

impl<A: Allocator> Tagged<A> {
    /// `inner` with tags; the empty tag is current.
    pub fn new(inner: A) -> Self {
        Self { inner, current: TagId::default(), tags: Tags::default() }
    }

    /// Makes `tag` current.
    pub fn set_tag(&mut self, tag: &str) {
        self.current = self.tags.id(tag);
    }

    /// The current tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        self.tags.name(self.current)
    }

    /// The live bytes of `tag` as asked for.
    #[must_use]
    pub fn live_bytes(&self, tag: &str) -> u64 {
        self.tags.live_bytes(tag)
    }

    /// Up to `n` tags with live bytes, the largest first, equal ones by name.
    #[must_use]
    pub fn top_tags(&self, n: usize) -> Vec<(String, u64)> {
        self.tags.top(n)
    }

    /// The allocator inside, with its live allocations.
    #[must_use]
    pub fn into_inner(self) -> A {
        self.inner
    }
}

impl<A: Allocator> Allocator for Tagged<A> {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        match self.inner.allocate(request) {
            Ok(allocation) => {
                self.tags.note(allocation.ptr, self.current, request.bytes);
                Ok(allocation)
            }
            Err(AllocError::OutOfMemory(mut report)) => {
                report.top_tags = self.top_tags(REPORTED_TAGS);
                Err(AllocError::OutOfMemory(report))
            }
            Err(error) => Err(error),
        }
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.inner.free(ptr, stream)?;
        self.tags.forget(ptr);
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
