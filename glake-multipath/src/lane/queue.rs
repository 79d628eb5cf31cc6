//! Chunks that a stream waits for: all are enqueued at once, and only their end has an event of its own.

use glake_core::driver::{DriverError, Result};
use glake_core::units::{EventId, StreamId};

use super::{Direction, HostSide, Lane};
use crate::chunk::Chunk;

impl Lane {
    /// Enqueues a chunk behind those before, however many those are. On `Err` a part of it may have been enqueued,
    /// and the lane takes no more.
    pub(crate) fn queue(&mut self, direction: Direction, host: HostSide, chunk: &Chunk) -> Result<()> {
        let last = self.copy(direction, host, chunk).inspect_err(|_| self.has_failed = true)?;
        self.queued_on = Some(last);
        Ok(())
    }

    /// Ends what was queued with an event, and returns that. The lane keeps it until it is done.
    pub(crate) fn end_queue(&mut self) -> Result<EventId> {
        let last = self.queued_on.take().unwrap_or(self.stream);
        let end = self.driver.record(last).inspect_err(|_| self.has_failed = true)?;
        if let Some(before) = self.end.replace(end) {
            self.driver.forget(before);
        }
        Ok(end)
    }

    /// Whether a stream waits for what was queued, and nobody has seen that done.
    pub(crate) fn is_busy(&self) -> bool {
        self.end.is_some()
    }

    /// Whether what was queued is done: then the lane is as good as new.
    ///
    /// # Errors
    /// Those of the driver: the lane is of no more use.
    pub(crate) fn is_done(&mut self) -> Result<bool> {
        let Some(end) = self.end else { return Ok(true) };
        let is_done = self.driver.query(end).inspect_err(|_| self.has_failed = true)?;
        if is_done {
            self.driver.forget(end);
            self.end = None;
        }
        Ok(is_done)
    }

    /// Makes `stream` wait for everything that was enqueued here, of whatever became of it. Where even that
    /// fails, the host waits; whether it all comes before what follows.
    pub(crate) fn precede(&mut self, stream: StreamId) -> bool {
        let wait = |own| {
            let event = self.driver.record(own)?;
            let waited = self.driver.wait(stream, event);
            self.driver.forget(event);
            waited
        };
        // On a device that is lost nothing runs, be it before or behind.
        let waits = |own| match wait(own) {
            Err(DriverError::DeviceLost) => Ok(()),
            waited => waited,
        };
        if self.streams().try_for_each(waits).is_ok() {
            return true;
        }
        self.has_failed = true;
        self.quiesce();
        !self.has_failed
    }
}
