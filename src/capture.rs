//! Memory for graphs under capture.

use glake_core::alloc::AllocError;
use glake_core::units::StreamId;
use glake_vmm::GraphMemory;

use crate::pool::Pool;

/// A capture for which a [`Pool`] sets memory apart; made by [`Pool::capture`].
///
/// Dropping it ends the capture and gives up the graph: its memory goes back when the device is done
/// with the work enqueued until then.
#[derive(Debug)]
#[must_use = "the pool serves the capture until this is ended or dropped"]
pub struct Capture {
    /// Dropped first: the capture ends, and then its memory goes.
    streams: Captured,
    memory: GraphMemory,
}

impl Capture {
    pub(crate) fn begin(pool: &Pool, stream: StreamId) -> Result<Self, AllocError> {
        let memory = pool.shared().pool.begin_capture(stream)?;
        Ok(Self { streams: Captured { pool: pool.clone(), streams: vec![stream] }, memory })
    }

    /// Serves another stream that takes part in the capture. To be called before the first allocation
    /// there.
    ///
    /// # Errors
    /// [`AllocError::TooManyStreams`]; [`DriverError::Capturing`](crate::DriverError::Capturing) if the
    /// stream takes part in a capture already. The stream is served as before.
    pub fn join(&mut self, stream: StreamId) -> Result<(), AllocError> {
        self.streams.pool.shared().pool.join_capture(&mut self.memory, stream)?;
        self.streams.streams.push(stream);
        Ok(())
    }

    /// Ends the capture: from now on the streams are served as before. The graph may be launched for
    /// as long as what is returned is kept, and the pool or a buffer of it.
    pub fn end(self) -> GraphMemory {
        let Self { streams, memory } = self;
        drop(streams);
        memory
    }
}

/// The streams of a capture, which ends with this.
#[derive(Debug)]
struct Captured {
    pool: Pool,
    streams: Vec<StreamId>,
}

impl Drop for Captured {
    fn drop(&mut self) {
        for &stream in &self.streams {
            // Fails only where the pool is poisoned, and serves nobody.
            let _ = self.pool.shared().pool.end_capture(stream);
        }
    }
}
