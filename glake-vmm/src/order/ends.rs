//! Streams that end, and streams under capture.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::StreamId;

use super::{Epoch, Key, Order, State, StreamIndex};

impl Order {
    /// Ends a stream that is about to be destroyed, behind a last event.
    pub(crate) fn end(&mut self, stream: StreamId, driver: &dyn Driver) -> Result<(), DriverError> {
        if !self.by_key.contains_key(&Key::of(stream)) {
            return Ok(());
        }
        let event = driver.record(stream)?;
        self.end_capture(stream);
        let Some(&index) = self.by_key.get(&Key::of(stream)) else {
            driver.forget(event);
            return Ok(());
        };
        self.lose(index);
        self.closed(index, event);
        Ok(())
    }

    /// Gives a stream that is captured from now on another index, whose work never ends.
    pub(crate) fn begin_capture(&mut self, stream: StreamId) -> Option<StreamIndex> {
        let key = Key::of(stream);
        let under = self.index_of(stream)?;
        let index = self.add(key, State::Captured)?;
        self.streams[index.index()].under = Some(under);
        self.by_key.insert(key, index);
        self.rename();
        Some(index)
    }

    /// Gives a stream the index back that it had before its capture.
    pub(crate) fn end_capture(&mut self, stream: StreamId) {
        if let Some(&index) = self.by_key.get(&Key::of(stream)) {
            self.leave_capture(index);
        }
    }

    /// Ends the capture of a stream index behind all work of now: its graph will not be launched
    /// again.
    pub(crate) fn uncapture(&mut self, stream: StreamIndex, driver: &dyn Driver) {
        self.leave_capture(stream);
        let s = &mut self.streams[stream.index()];
        (s.state, s.launched_until) = (State::Gone, self.next);
        self.next.0 += 1;
        // Without an event it is done when the device is.
        let _ = self.close_epoch(stream, driver);
    }

    /// Makes an index whose work is done free for another stream.
    pub(crate) fn vacate(&mut self, stream: StreamIndex, driver: &dyn Driver) {
        self.leave_capture(stream);
        let s = &mut self.streams[stream.index()];
        for closed in s.events.drain(..) {
            driver.forget(closed.event);
        }
        s.state = State::Vacant;
        s.done_below = Epoch(u64::MAX);
    }

    /// Ends a capture, if it is not over.
    pub(super) fn leave_capture(&mut self, index: StreamIndex) {
        let key = self.streams[index.index()].key;
        let Some(under) = self.streams[index.index()].under.take() else { return };
        let before = &self.streams[under.index()];
        // It may have been destroyed meanwhile, and its index be another's.
        if before.key == key && before.state == State::Live {
            self.by_key.insert(key, under);
        } else {
            self.by_key.remove(&key);
        }
        self.rename();
    }

    /// Refuses what would break a capture: the driver cannot see one of the default stream of another
    /// thread, nor one that is about to begin.
    pub(super) fn spare_captures(&self) -> Result<(), DriverError> {
        match self.streams.iter().find(|s| s.under.is_some()) {
            Some(s) => Err(DriverError::Capturing(s.key.stream)),
            None => Ok(()),
        }
    }

    /// Looks which streams have ended unsaid, and makes room for others where the device is done with
    /// one: for when no index is left. Records an event on each stream that has none.
    pub(crate) fn find_ended(&mut self, driver: &dyn Driver) {
        self.poll(driver);
        for i in 0..self.streams.len() {
            let index = StreamIndex::from_index(i);
            if self.streams[i].key.thread.has_ended() {
                self.lose(index);
            }
            if self.streams[i].events.is_empty() && self.is_used(i) {
                // Without one it is looked at again.
                let _ = self.close_epoch(index, driver);
            }
        }
        self.poll(driver);
    }

    /// Notes that a stream was destroyed.
    pub(super) fn lose(&mut self, stream: StreamIndex) {
        let s = &mut self.streams[stream.index()];
        if s.state == State::Live {
            s.state = State::Gone;
            self.by_key.remove(&s.key);
            self.rename();
        }
    }
}
