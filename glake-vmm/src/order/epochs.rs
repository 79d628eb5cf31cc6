//! Epochs: ended by events, waited for, seen to pass.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::EventId;

use super::{Closed, Epoch, Order, State, StreamIndex, Tag};

/// Bytes freed on a stream for one event. So an event is there long before another stream wants
/// the bytes, which then need not wait for work that came later.
const BYTES_PER_EVENT: u64 = 16 << 20;

impl Order {
    /// Ends the open epoch of `stream` with an event behind all work enqueued so far. Where the
    /// stream takes none, being another thread's or gone, one of the whole context does. What was
    /// captured has no end.
    pub(crate) fn close_epoch(
        &mut self,
        stream: StreamIndex,
        driver: &dyn Driver,
    ) -> Result<(), DriverError> {
        let s = &self.streams[stream.index()];
        let is_named = s.state == State::Live && stream != StreamIndex::ALL;
        let is_captured_now = is_named && self.by_key.get(&s.key) != Some(&stream);
        if s.state == State::Captured || is_captured_now {
            return Err(DriverError::Capturing(s.key.stream));
        }
        let is_direct = is_named && s.key.is_here();
        let recorded = if is_direct { driver.record(s.key.stream) } else { self.record_all(driver) };
        let event = match recorded {
            Err(DriverError::UnknownStream(_)) if is_direct => {
                self.lose(stream);
                self.record_all(driver)?
            }
            recorded => recorded?,
        };
        self.closed(stream, event);
        Ok(())
    }

    /// Notes the event that ends the open epoch. A stream that is gone has no other: nothing more is
    /// enqueued there.
    pub(super) fn closed(&mut self, stream: StreamIndex, event: EventId) {
        let s = &mut self.streams[stream.index()];
        s.freed_bytes = 0;
        s.events.push_back(Closed { epoch: s.open, event, clock: s.clock.as_slice().into() });
        if s.state != State::Gone {
            s.open = self.next;
            self.next.0 += 1;
        }
    }

    pub(super) fn record_all(&mut self, driver: &dyn Driver) -> Result<EventId, DriverError> {
        self.spare_captures()?;
        let recorded = driver.record_all(self.device);
        if let Err(DriverError::NotSupported(_)) = recorded {
            self.has_context_events = false;
        }
        recorded
    }

    /// Whether `tag` has passed or an event tells when it does.
    pub(crate) fn has_event(&self, tag: Tag) -> bool {
        self.is_done(tag) || self.streams[tag.stream.index()].covering(tag.epoch).is_some()
    }

    /// Records an event behind `tag` where there is none.
    pub(crate) fn ensure_event(&mut self, tag: Tag, driver: &dyn Driver) -> Result<(), DriverError> {
        if self.has_event(tag) { Ok(()) } else { self.close_epoch(tag.stream, driver) }
    }

    /// Counts bytes freed behind the work of `stream`, and ends its epoch where they are many and
    /// there is another stream to care. A failure leaves the epoch open.
    #[inline]
    pub(crate) fn note_freed(&mut self, stream: StreamIndex, bytes: u64, driver: &dyn Driver) {
        if self.is_single() && stream != StreamIndex::ALL {
            return;
        }
        let s = &mut self.streams[stream.index()];
        s.freed_bytes += bytes;
        if s.freed_bytes >= BYTES_PER_EVENT && s.state == State::Live {
            s.freed_bytes = 0;
            let _ = self.close_epoch(stream, driver);
            let _ = self.poll_stream(stream, driver);
        }
    }

    /// Makes later work of `stream` run behind `tag`, unless it does; for the host, blocks until that is
    /// done.
    pub(crate) fn wait(
        &mut self,
        stream: StreamIndex,
        tag: Tag,
        driver: &dyn Driver,
    ) -> Result<(), DriverError> {
        if self.is_ready(stream, tag) {
            return Ok(());
        }
        self.ensure_event(tag, driver)?;
        if self.is_host(stream) {
            return self.wait_on_host(tag, driver);
        }
        let to = self.streams[stream.index()].key.stream;
        let Some(closed) = self.streams[tag.stream.index()].covering(tag.epoch) else { return Ok(()) };
        driver.wait(to, closed.event)?;
        let (below, clock) = (Epoch(closed.epoch.0 + 1), closed.clock.clone());
        let to = &mut self.streams[stream.index()];
        to.catch_up(tag.stream, below);
        for (i, &below) in clock.iter().enumerate() {
            to.catch_up(StreamIndex::from_index(i), below);
        }
        Ok(())
    }

    /// Asks the driver how far every stream is.
    pub(crate) fn poll(&mut self, driver: &dyn Driver) {
        for i in 0..self.streams.len() {
            let _ = self.poll_stream(StreamIndex::from_index(i), driver);
        }
    }

    pub(super) fn poll_stream(
        &mut self,
        stream: StreamIndex,
        driver: &dyn Driver,
    ) -> Result<(), DriverError> {
        while let Some(oldest) = self.streams[stream.index()].events.front() {
            if !driver.query(oldest.event)? {
                return Ok(());
            }
            self.pass_oldest(stream, driver);
        }
        let s = &self.streams[stream.index()];
        if s.state == State::Gone && s.done_below > s.open {
            self.vacate(stream, driver);
        }
        Ok(())
    }

    /// Whether the device is done with `tag`, asking the driver only where needed.
    pub(crate) fn has_passed(&mut self, tag: Tag, driver: &dyn Driver) -> bool {
        if !self.is_done(tag) {
            let _ = self.poll_stream(tag.stream, driver);
        }
        self.is_done(tag)
    }

    pub(super) fn pass_oldest(&mut self, stream: StreamIndex, driver: &dyn Driver) {
        let s = &mut self.streams[stream.index()];
        if let Some(closed) = s.events.pop_front() {
            driver.forget(closed.event);
            s.done_below = Epoch(closed.epoch.0 + 1);
        }
    }
}
