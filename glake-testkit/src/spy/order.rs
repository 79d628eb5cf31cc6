//! What is ordered before what: a vector clock for each queue of work, one for the host.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use glake_core::units::{DeviceId, EventId, StreamId};

/// A queue of work. A stream that is made anew under an old id, each thread's default stream, and
/// each capture is a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Queue(u64);

/// A moment in the order of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    queue: Queue,
    at: u64,
}

impl Moment {
    /// Whether both are of one queue of work.
    pub(crate) fn is_with(self, other: Self) -> bool {
        self.queue == other.queue
    }
}

/// Up to which moment of each queue work is known to be done.
type Clock = HashMap<Queue, u64>;

/// What a queue was seen to wait for.
#[derive(Debug, Default)]
struct Seen {
    /// `None` for a capture: what it holds runs whenever the graph is launched.
    device: Option<DeviceId>,
    clock: Clock,
    /// When its stream was destroyed.
    end: Option<u64>,
}

/// The order of work, from the calls that make it.
#[derive(Debug, Default)]
pub(crate) struct Order {
    now: u64,
    /// The queue that a stream's id means now, for a thread where each has one.
    by_id: HashMap<(StreamId, Option<ThreadId>), Queue>,
    captures: HashMap<Queue, Queue>,
    /// The ends of destroyed streams.
    ends: HashMap<StreamId, Moment>,
    queues: Vec<Seen>,
    events: HashMap<EventId, Clock>,
    host: Clock,
}

impl Order {
    fn add(&mut self, device: Option<DeviceId>) -> Queue {
        self.queues.push(Seen { device, clock: Clock::new(), end: None });
        Queue(self.queues.len() as u64 - 1)
    }

    fn seen_by(&mut self, queue: Queue) -> &mut Clock {
        &mut self.queues[queue.0 as usize].clock
    }

    /// The queue of a stream, outside captures. A stream that was not seen made is of device 0.
    fn stream(&mut self, stream: StreamId) -> Queue {
        let id = StreamId(stream.0.max(StreamId::LEGACY.0));
        let thread = (id == StreamId::PER_THREAD).then(|| thread::current().id());
        if let Some(&queue) = self.by_id.get(&(id, thread)) {
            return queue;
        }
        let queue = self.add(Some(DeviceId(0)));
        self.by_id.insert((id, thread), queue);
        queue
    }

    /// Where work enqueued on a stream goes now.
    fn queue(&mut self, stream: StreamId) -> Queue {
        let queue = self.stream(stream);
        self.captures.get(&queue).copied().unwrap_or(queue)
    }

    pub(crate) fn create(&mut self, stream: StreamId, device: DeviceId) {
        let queue = self.add(Some(device));
        self.by_id.insert((stream, None), queue);
        self.ends.remove(&stream);
    }

    /// The id may come again, for another stream.
    pub(crate) fn destroy(&mut self, stream: StreamId) {
        // An event recorded right before is behind all of it.
        let end = Moment { queue: self.queue(stream), at: self.now };
        self.queues[end.queue.0 as usize].end = Some(end.at);
        self.ends.insert(stream, end);
        self.by_id.remove(&(stream, None));
    }

    pub(crate) fn begin_capture(&mut self, stream: StreamId) {
        let queue = self.stream(stream);
        let capture = self.add(None);
        self.captures.insert(queue, capture);
    }

    pub(crate) fn end_capture(&mut self, stream: StreamId) {
        let queue = self.stream(stream);
        self.captures.remove(&queue);
    }

    /// The graph of the capture of `moment` is not launched any more: what it did is done when the work
    /// enqueued on `device` so far is.
    pub(crate) fn graph_ends(&mut self, moment: Moment, device: DeviceId) {
        self.queues[moment.queue.0 as usize].device = Some(device);
    }

    /// Behind all that was enqueued on the stream so far.
    pub(crate) fn moment(&mut self, stream: StreamId) -> Moment {
        if let Some(&end) = self.ends.get(&stream) {
            return end;
        }
        self.now += 1;
        Moment { queue: self.queue(stream), at: self.now }
    }

    /// Behind all that was enqueued so far where `moment` was.
    pub(crate) fn later(&mut self, moment: Moment) -> Moment {
        self.now += 1;
        Moment { at: self.queues[moment.queue.0 as usize].end.unwrap_or(self.now), ..moment }
    }

    /// Whether the host has seen `moment` pass.
    pub(crate) fn is_done(&self, moment: Moment) -> bool {
        self.host.get(&moment.queue).is_some_and(|&at| at >= moment.at)
    }

    pub(crate) fn is_behind(&mut self, stream: StreamId, moment: Moment) -> bool {
        let queue = self.queue(stream);
        let has_waited = |seen: &Clock| seen.get(&moment.queue).is_some_and(|&at| at >= moment.at);
        queue == moment.queue || self.is_done(moment) || has_waited(self.seen_by(queue))
    }

    pub(crate) fn record(&mut self, stream: StreamId, event: EventId) {
        let (queue, now) = (self.queue(stream), self.now);
        let mut clock = self.seen_by(queue).clone();
        clock.insert(queue, now);
        self.events.insert(event, clock);
    }

    pub(crate) fn record_all(&mut self, device: DeviceId, event: EventId) {
        let clock = self.all(device);
        self.events.insert(event, clock);
    }

    /// Everything enqueued on the device so far.
    fn all(&self, device: DeviceId) -> Clock {
        let mut all = Clock::new();
        for (queue, seen) in (0..).map(Queue).zip(&self.queues) {
            if seen.device == Some(device) {
                merge(&mut all, &seen.clock);
                all.insert(queue, self.now);
            }
        }
        all
    }

    pub(crate) fn wait(&mut self, stream: StreamId, event: EventId) {
        let queue = self.queue(stream);
        if let (Some(clock), Some(seen)) = (self.events.get(&event), self.queues.get_mut(queue.0 as usize)) {
            merge(&mut seen.clock, clock);
        }
    }

    /// The host has seen `event` pass, so whatever it enqueues from now on runs behind it.
    pub(crate) fn seen(&mut self, event: EventId) {
        if let Some(clock) = self.events.get(&event) {
            merge(&mut self.host, clock);
        }
    }

    /// The host has seen everything enqueued on the device pass.
    pub(crate) fn seen_all(&mut self, device: DeviceId) {
        let clock = self.all(device);
        merge(&mut self.host, &clock);
    }

    pub(crate) fn forget(&mut self, event: EventId) {
        self.events.remove(&event);
    }
}

fn merge(into: &mut Clock, from: &Clock) {
    for (&queue, &at) in from {
        let known = into.entry(queue).or_default();
        *known = at.max(*known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(0);

    #[test]
    fn waits_are_transitive_and_directed() {
        let (a, b, c) = (StreamId(11), StreamId(12), StreamId(13));
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
        let freed = order.moment(StreamId(11));
        order.record(StreamId(11), EventId(1));
        order.forget(EventId(2));
        order.seen(EventId(1));
        assert!(order.is_behind(StreamId(19), freed) && order.is_done(freed));
        let later = order.moment(StreamId(11));
        assert!(!order.is_done(later));
    }

    #[test]
    fn an_event_of_a_device_is_behind_its_streams_and_no_others() {
        let (a, b, away) = (StreamId(11), StreamId(12), StreamId(13));
        let mut order = Order::default();
        order.create(a, DEVICE);
        order.create(b, DEVICE);
        order.create(away, DeviceId(1));
        let freed = [a, away].map(|stream| order.moment(stream));
        order.record_all(DEVICE, EventId(1));
        let later = order.moment(a);
        order.wait(b, EventId(1));
        assert_eq!(freed.map(|moment| order.is_behind(b, moment)), [true, false]);
        assert!(!order.is_behind(b, later));
        order.seen_all(DEVICE);
        assert!(order.is_behind(away, later) && !order.is_behind(b, freed[1]));
    }

    #[test]
    fn a_default_stream_is_ordered_on_its_own_thread_only() {
        let mut order = Order::default();
        let freed = order.moment(StreamId::PER_THREAD);
        assert!(order.is_behind(StreamId::PER_THREAD, freed));
        let elsewhere = thread::scope(|scope| {
            scope.spawn(|| order.is_behind(StreamId::PER_THREAD, freed)).join().unwrap()
        });
        assert!(!elsewhere);
    }

    #[test]
    fn a_stream_made_anew_under_an_old_id_is_another() {
        let mut order = Order::default();
        order.create(StreamId(11), DEVICE);
        let freed = order.moment(StreamId(11));
        order.destroy(StreamId(11));
        let end = order.moment(StreamId(11));
        order.create(StreamId(11), DEVICE);
        assert!(!order.is_behind(StreamId(11), freed));
        order.seen_all(DEVICE);
        assert!(order.is_behind(StreamId(11), freed) && order.is_behind(StreamId(11), end));
    }

    #[test]
    fn what_is_captured_is_ordered_in_its_capture_only() {
        let mut order = Order::default();
        let stream = StreamId(11);
        let before = order.moment(stream);
        order.begin_capture(stream);
        let captured = order.moment(stream);
        assert!(order.is_behind(stream, captured) && !order.is_behind(stream, before));
        order.end_capture(stream);
        order.seen_all(DEVICE);
        assert!(order.is_behind(stream, before) && !order.is_behind(stream, captured));
        order.graph_ends(captured, DEVICE);
        assert!(!order.is_behind(stream, captured));
        order.seen_all(DEVICE);
        assert!(order.is_behind(stream, captured));
    }
}
