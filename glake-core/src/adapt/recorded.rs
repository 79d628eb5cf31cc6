//! A record of what a program did.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use crate::alloc::{AllocError, Allocation, Allocator, Request};
use crate::stats::Stats;
use crate::trace::{Event, Op, Writer};
use crate::units::{DevicePtr, StreamId};

/// Tells microseconds since the start of a recording.
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// An allocator that writes down every allocation and free as a [trace](crate::trace).
///
/// Only what succeeded is written. When the output fails, an allocation is refused before
/// anything happens; a free always takes place and its line waits in memory, so a full disk holds
/// no GPU memory hostage and the trace stays whole.
pub struct Recorded<A, W: Write> {
    inner: A,
    writer: Writer<W>,
    clock: Clock,
    live: HashMap<DevicePtr, u64>,
    streams: HashMap<StreamId, u32>,
    next_id: u64,
}

impl<A: Allocator, W: Write> Recorded<A, W> {
    /// `inner`, recorded by `writer` with the time of `clock`.
    pub fn new(inner: A, writer: Writer<W>, clock: Clock) -> Self {
        Self { inner, writer, clock, live: HashMap::new(), streams: HashMap::new(), next_id: 0 }
    }

    /// Ends the trace and returns the allocator inside and the output.
    ///
    /// # Errors
    /// That of the output; the allocator is dropped then.
    pub fn finish(self) -> io::Result<(A, W)> {
        let output = self.writer.finish()?;
        Ok((self.inner, output))
    }

    fn push(&mut self, op: Op, id: u64) {
        let at_us = (self.clock)();
        self.writer.push(&Event { op, id, at_us });
    }
}

impl<A: Allocator, W: Write> Allocator for Recorded<A, W> {
    /// # Errors
    /// [`AllocError::Record`] if the output fails, and those of the allocator inside.
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        self.writer.make_room().map_err(|error| AllocError::Record(error.kind()))?;
        let new_stream = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let allocation = self.inner.allocate(request)?;
        let stream = *self.streams.entry(request.stream).or_insert(new_stream);
        let id = self.next_id;
        self.next_id += 1;
        self.live.insert(allocation.ptr, id);
        self.push(Op::Allocate { bytes: request.bytes, stream }, id);
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.inner.free(ptr, stream)?;
        if let Some(id) = self.live.remove(&ptr) {
            self.push(Op::Free, id);
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

impl<A: fmt::Debug, W: Write> fmt::Debug for Recorded<A, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("inner", &self.inner)
            .field("writer", &self.writer)
            .field("n_events_live", &self.live.len())
            .finish_non_exhaustive()
    }
}
