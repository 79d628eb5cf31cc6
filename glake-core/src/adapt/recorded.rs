//! A record of what a program did.

use std::fmt;
use std::io::{self, Write};

use crate::alloc::{AllocError, Allocation, Allocator, Request};
use crate::stats::Stats;
use crate::trace::{Clock, Recorder, Writer};
use crate::units::{DevicePtr, StreamId};

/// An allocator that writes down every allocation and free as a [trace](crate::trace).
///
/// Only what succeeded is written. When the output fails, an allocation is refused before
/// anything happens; a free always takes place and its line waits in memory, so a full disk holds
/// no GPU memory hostage and the trace stays whole.
pub struct Recorded<A, W: Write> {
    inner: A,
    recorder: Recorder<W>,
}

impl<A: Allocator, W: Write> Recorded<A, W> {
    /// `inner`, recorded by `writer` with the time of `clock`.
    pub fn new(inner: A, writer: Writer<W>, clock: Clock) -> Self {
        Self { inner, recorder: Recorder::new(writer, clock) }
    }

    /// Ends the trace and returns the allocator inside and the output.
    ///
    /// # Errors
    /// That of the output; the allocator is dropped then.
    pub fn finish(self) -> io::Result<(A, W)> {
        let output = self.recorder.finish()?;
        Ok((self.inner, output))
    }
}

impl<A: Allocator, W: Write> Allocator for Recorded<A, W> {
    /// # Errors
    /// [`AllocError::Record`] if the output fails, and those of the allocator inside.
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        self.recorder.make_room().map_err(|error| AllocError::Record(error.kind()))?;
        let allocation = self.inner.allocate(request)?;
        self.recorder.allocated(allocation.ptr, request.bytes, request.stream);
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.inner.free(ptr, stream)?;
        self.recorder.freed(ptr);
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
        f.debug_struct("Recorded").field("inner", &self.inner).field("recorder", &self.recorder).finish()
    }
}
