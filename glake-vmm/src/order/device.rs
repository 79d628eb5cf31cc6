//! The whole device: waited for, seen idle, left behind.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::EventId;

use super::{Epoch, Order, State, Stream, StreamIndex};

impl Order {
    /// Blocks until the device is done with all that was enqueued so far, but for captures.
    pub(crate) fn synchronize(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        for i in 0..self.streams.len() {
            if !self.is_used(i) {
                continue;
            }
            match self.close_epoch(StreamIndex::from_index(i), driver) {
                Ok(()) | Err(DriverError::Capturing(_)) => {}
                // It is another thread's or gone, and the driver is old.
                Err(DriverError::NotSupported(_)) => return self.synchronize_all(driver),
                Err(error) => return Err(error),
            }
        }
        for i in 0..self.streams.len() {
            while let Some(oldest) = self.streams[i].events.front() {
                driver.synchronize(oldest.event)?;
                self.pass_oldest(StreamIndex::from_index(i), driver);
            }
        }
        Ok(())
    }

    pub(super) fn synchronize_all(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
        self.spare_captures()?;
        let mark = self.mark();
        driver.synchronize_all(self.device)?;
        self.pass_mark(mark, driver);
        Ok(())
    }

    /// Ends the open epochs of all streams, without events.
    pub(crate) fn mark(&mut self) -> Epoch {
        let mark = self.next;
        self.next.0 += 1;
        for s in self.streams.iter_mut().filter(|s| s.state == State::Live) {
            s.open = mark;
        }
        mark
    }

    /// Notes that the device is done with everything that was enqueued before the mark.
    pub(crate) fn pass_mark(&mut self, mark: Epoch, driver: &dyn Driver) {
        let is_over = |s: &&mut Stream| s.state != State::Captured && s.launched_until <= mark;
        for s in self.streams.iter_mut().filter(is_over) {
            while s.events.front().is_some_and(|closed| closed.epoch < mark) {
                if let Some(closed) = s.events.pop_front() {
                    driver.forget(closed.event);
                }
            }
            s.done_below = s.done_below.max(mark);
        }
    }

    /// Events behind all work enqueued so far, for the pool's end.
    pub(crate) fn last_events(&mut self, driver: &dyn Driver) -> Result<Vec<EventId>, DriverError> {
        for event in self.streams.iter_mut().flat_map(|s| s.events.drain(..)) {
            driver.forget(event.event);
        }
        let mut last = Vec::new();
        for i in 0..self.streams.len() {
            if !self.is_used(i) {
                continue;
            }
            if let Err(error) = self.close_epoch(StreamIndex::from_index(i), driver) {
                for &event in &last {
                    driver.forget(event);
                }
                return Err(error);
            }
            last.extend(self.streams[i].events.drain(..).map(|closed| closed.event));
        }
        Ok(last)
    }

    /// Whether stream `i` may have work that matters to the pool and takes events.
    pub(super) fn is_used(&self, i: usize) -> bool {
        let s = &self.streams[i];
        let is_unused = i == StreamIndex::ALL.index() && !self.is_all_used;
        // Nothing came behind the last event of one that is gone.
        let has_ended = s.state == State::Gone && (s.done_below > s.open || s.covering(s.open).is_some());
        !is_unused && !has_ended && !matches!(s.state, State::Captured | State::Host | State::Vacant)
    }
}
