//! Streams that come and go, and frees whose stream nobody knows.

use glake_core::alloc::AllocError;
use glake_core::units::{DevicePtr, StreamId};

use crate::free::Last;
use crate::order::Epoch;
use crate::pool::StitchPool;

/// A moment in the work of all streams; see [`StitchPool::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a mark does nothing before `synchronized`"]
pub struct Mark(Epoch);

impl StitchPool {
    /// Frees the allocation at `ptr`, whose last use may have been enqueued on any stream of any
    /// thread. The memory is used again behind an event of the whole context; with a driver that has
    /// none (CUDA before 12.5), when the device was seen idle: by [`synchronized`](Self::synchronized),
    /// by a trim, or before a request fails for lack of memory.
    ///
    /// # Errors
    /// As [`free`](glake_core::alloc::Allocator::free).
    pub fn free_from_anywhere(&mut self, ptr: DevicePtr) -> Result<(), AllocError> {
        let at = self.check_free(ptr)?;
        self.freed(ptr, at, Last::Anywhere)
    }

    /// Tells that `stream` is about to be destroyed. What it used can be used again when its work is
    /// done, and a later stream of the same name is another one.
    ///
    /// A stream that vanishes without this is noticed when it refuses an event. But a new stream that
    /// gets its name before is taken for it, and would be given memory that the old one still uses.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if no event can be recorded; the pool notices later.
    pub fn stream_ends(&mut self, stream: StreamId) -> Result<(), AllocError> {
        Ok(self.order.end(stream, &*self.driver)?)
    }

    /// Marks what was enqueued so far, for [`synchronized`](Self::synchronized).
    pub fn mark(&mut self) -> Mark {
        Mark(self.order.mark())
    }

    /// Tells that the device was idle at some time after `mark`: somebody has synchronised it, as
    /// `cuCtxSynchronize` does. What was freed before the mark can be used again at once.
    pub fn synchronized(&mut self, mark: Mark) {
        self.order.pass_mark(mark.0, &*self.driver);
        self.release_held();
    }
}
