//! Who holds the memory.

use std::collections::{BTreeMap, HashMap};

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
    current: usize,
    /// Name and live bytes, in order of appearance; the first is the empty tag.
    tags: Vec<(String, u64)>,
    by_name: BTreeMap<String, usize>,
    live: HashMap<DevicePtr, (usize, u64)>,
}

impl<A: Allocator> Tagged<A> {
    /// `inner` with tags; the empty tag is current.
    pub fn new(inner: A) -> Self {
        let by_name = BTreeMap::from([(String::new(), 0)]);
        Self { inner, current: 0, tags: vec![(String::new(), 0)], by_name, live: HashMap::new() }
    }

    /// Makes `tag` current.
    pub fn set_tag(&mut self, tag: &str) {
        self.current = if let Some(&index) = self.by_name.get(tag) {
            index
        } else {
            self.tags.push((tag.to_owned(), 0));
            self.by_name.insert(tag.to_owned(), self.tags.len() - 1);
            self.tags.len() - 1
        };
    }

    /// The current tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tags[self.current].0
    }

    /// The live bytes of `tag` as asked for.
    #[must_use]
    pub fn live_bytes(&self, tag: &str) -> u64 {
        self.by_name.get(tag).map_or(0, |&index| self.tags[index].1)
    }

    /// Up to `n` tags with live bytes, the largest first, equal ones by name.
    #[must_use]
    pub fn top_tags(&self, n: usize) -> Vec<(String, u64)> {
        let mut tags: Vec<_> = self.tags.iter().filter(|tag| tag.1 > 0).collect();
        tags.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        tags.into_iter().take(n).cloned().collect()
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
                self.tags[self.current].1 += request.bytes;
                self.live.insert(allocation.ptr, (self.current, request.bytes));
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
        if let Some((tag, bytes)) = self.live.remove(&ptr) {
            self.tags[tag].1 -= bytes;
        }
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
