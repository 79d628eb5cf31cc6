//! Points in the work of a stream.

use std::sync::Arc;

use glake_core::driver::{Driver, Result};
use glake_core::units::{EventId, StreamId};

/// An event that is forgotten with its last owner.
#[derive(Debug)]
pub(crate) struct Mark {
    driver: Arc<dyn Driver>,
    event: EventId,
}

impl Mark {
    /// Behind what is enqueued on `stream` so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn record(driver: &Arc<dyn Driver>, stream: StreamId) -> Result<Self> {
        Ok(Self { event: driver.record(stream)?, driver: Arc::clone(driver) })
    }

    pub(crate) fn event(&self) -> EventId {
        self.event
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.driver.forget(self.event);
    }
}

/// What a transfer begins behind.
#[derive(Clone, Debug)]
pub(crate) enum After {
    /// What is enqueued on that stream when the transfer begins.
    Stream(StreamId),
    /// A point that was recorded before.
    Mark(Arc<Mark>),
}

impl After {
    /// The point, recorded now if it was not.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn mark(&self, driver: &Arc<dyn Driver>) -> Result<Arc<Mark>> {
        match self {
            Self::Stream(stream) => Mark::record(driver, *stream).map(Arc::new),
            Self::Mark(mark) => Ok(Arc::clone(mark)),
        }
    }
}
