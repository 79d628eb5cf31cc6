//! The order of the pool's stream: epochs, the events that close them, and which have passed.
//!
//! An *epoch* is a stretch of a stream's work that ends with an event of ours. Whatever must not
//! happen before the device is done with something is tagged with the epoch open at that time.

use std::collections::VecDeque;

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{EventId, StreamId};

/// A stretch of a stream's work. Later epochs are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Epoch(u64);

/// Epochs and events of one stream.
#[derive(Debug)]
pub(crate) struct Epochs {
    stream: StreamId,
    open: Epoch,
    passed: Option<Epoch>,
    events: VecDeque<(Epoch, EventId)>,
}

impl Epochs {
    pub(crate) fn new(stream: StreamId) -> Self {
        Self { stream, open: Epoch(0), passed: None, events: VecDeque::new() }
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// The epoch that work enqueued now belongs to.
    pub(crate) fn open(&self) -> Epoch {
        self.open
    }

    /// Ends the open epoch with an event behind all work enqueued so far, and returns it.
    pub(crate) fn close_epoch(&mut self, driver: &dyn Driver) -> Result<Epoch, DriverError> {
        let event = driver.record(self.stream)?;
        let closed = self.open;
        self.events.push_back((closed, event));
        self.open = Epoch(closed.0 + 1);
        Ok(closed)
    }

    /// Whether the device is done with `epoch`, asking the driver only where needed.
    pub(crate) fn has_passed(&mut self, epoch: Epoch, driver: &dyn Driver) -> Result<bool, DriverError> {
        while self.passed.is_none_or(|p| p < epoch) {
            let Some(&(oldest, event)) = self.events.front() else { return Ok(false) };
            if oldest > epoch || !driver.query(event)? {
                return Ok(false);
            }
            self.pass_oldest(driver);
        }
        Ok(true)
    }

    /// Blocks until the device is done with a closed `epoch`.
    pub(crate) fn wait_for(&mut self, epoch: Epoch, driver: &dyn Driver) -> Result<(), DriverError> {
        while self.passed.is_none_or(|p| p < epoch) {
            let Some(&(oldest, event)) = self.events.front() else { return Ok(()) };
            if oldest > epoch {
                return Ok(());
            }
            driver.synchronize(event)?;
            self.pass_oldest(driver);
        }
        Ok(())
    }

    /// The events that have not been seen to pass; the order forgets them.
    pub(crate) fn take_events(&mut self) -> impl Iterator<Item = EventId> + '_ {
        self.events.drain(..).map(|(_, event)| event)
    }

    fn pass_oldest(&mut self, driver: &dyn Driver) {
        if let Some((epoch, event)) = self.events.pop_front() {
            driver.forget(event);
            self.passed = Some(epoch);
        }
    }
}
