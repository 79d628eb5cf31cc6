//! What is ordered before what: a vector clock for each stream, one for the host.

use std::collections::HashMap;

use glake_core::units::{EventId, StreamId};

/// A moment in the order of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The stream.
    pub stream: StreamId,
    at: u64,
}

impl Moment {
    /// The beginning of `stream`.
    #[must_use]
    pub const fn before_all(stream: StreamId) -> Self {
        Self { stream, at: 0 }
    }
}

/// Up to which moment each stream's work is known to lie behind.
type Clock = HashMap<StreamId, u64>;

#[derive(Debug, Default)]
pub(super) struct Order {
    now: u64,
    streams: HashMap<StreamId, Clock>,
    events: HashMap<EventId, Clock>,
    host: Clock,
}

impl Order {
    pub(super) fn moment(&mut self, stream: StreamId) -> Moment {
        self.now += 1;
        Moment { stream, at: self.now }
    }

    pub(super) fn is_behind(&self, stream: StreamId, moment: Moment) -> bool {
        let passed = |clock: &Clock| clock.get(&moment.stream).is_some_and(|&at| at >= moment.at);
        stream == moment.stream || passed(&self.host) || self.streams.get(&stream).is_some_and(passed)
    }

    pub(super) fn record(&mut self, stream: StreamId, event: EventId) {
        let mut clock = self.streams.get(&stream).cloned().unwrap_or_default();
        clock.insert(stream, self.now);
        self.events.insert(event, clock);
    }

    pub(super) fn wait(&mut self, stream: StreamId, event: EventId) {
        if let Some(clock) = self.events.get(&event) {
            merge(self.streams.entry(stream).or_default(), clock);
        }
    }

    /// The host has seen `event` pass, so whatever it enqueues from now on runs behind it.
    pub(super) fn seen(&mut self, event: EventId) {
        if let Some(clock) = self.events.get(&event) {
            merge(&mut self.host, clock);
        }
    }

    pub(super) fn forget(&mut self, event: EventId) {
        self.events.remove(&event);
    }
}

fn merge(into: &mut Clock, from: &Clock) {
    for (&stream, &at) in from {
        let known = into.entry(stream).or_default();
        *known = at.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_transitive_and_directed() {
        let (a, b, c) = (StreamId(1), StreamId(2), StreamId(3));
        let mut order = Order::default();
        let freed = order.moment(a);
        assert!(order.is_behind(a, freed));
        assert!(!order.is_behind(b, freed));
        order.record(a, EventId(1));
        let later = order.moment(a);
        order.wait(b, EventId(1));
        order.record(b, EventId(2));
        order.wait(c, EventId(2));
        assert!(order.is_behind(b, freed) && order.is_behind(c, freed));
        assert!(!order.is_behind(b, later) && !order.is_behind(c, later));
    }

    #[test]
    fn what_the_host_has_seen_is_behind_every_stream() {
        let mut order = Order::default();
        let freed = order.moment(StreamId(1));
        order.record(StreamId(1), EventId(1));
        order.forget(EventId(2));
        order.seen(EventId(1));
        assert!(order.is_behind(StreamId(9), freed));
    }
}
