//! The queues of the streams: what is pending, and what runs next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::thread::ThreadId;

use super::capture::{Capture, Graph};
use super::config::Completion;
use super::slab::Slab;
use super::state::State;
use super::work::{Read, Work};
use crate::driver::{DriverError, Result};
use crate::units::{EventId, StreamId};

/// Number of the first stream made by [`Streams::create`]; lower ones are CUDA's own.
const FIRST_ID: u64 = 1 << 32;

#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) device: usize,
    /// Pending work, each with its number in the order of enqueueing.
    queue: VecDeque<(u64, Work)>,
    /// When everything enqueued so far is done, by the clock.
    pub(super) ready_ns: u64,
    destroyed: bool,
    /// Where work goes meanwhile instead of the queue.
    pub(super) capture: Option<Capture>,
}

/// Whose work an event stands behind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behind {
    Stream(usize),
    Device(usize),
}

/// A point in the order of work: behind what was enqueued before the `n_before`th piece of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    behind: Behind,
    n_before: u64,
    pub(super) ready_ns: u64,
}

/// All streams, events and asynchronous reads.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) all: Vec<Stream>,
    per_thread: HashMap<ThreadId, usize>,
    events: Slab<Event>,
    pub(super) reads: Slab<Read>,
    pub(super) graphs: Slab<Graph>,
    /// Under [`Completion::Lag`]: when each piece of pending work is done, its number in the order
    /// of enqueueing, and its stream. An event is always done before what waits for it.
    timeline: BinaryHeap<Reverse<(u64, u64, usize)>>,
    n_enqueued: u64,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            all: vec![Stream::default()],
            per_thread: HashMap::new(),
            events: Slab::default(),
            reads: Slab::default(),
            graphs: Slab::default(),
            timeline: BinaryHeap::new(),
            n_enqueued: 0,
        }
    }

    fn add(&mut self, device: usize) -> usize {
        self.all.push(Stream { device, ..Stream::default() });
        self.all.len() - 1
    }

    pub(super) fn create(&mut self, device: usize) -> StreamId {
        StreamId(FIRST_ID + self.add(device) as u64)
    }

    pub(super) fn destroy(&mut self, stream: StreamId) -> Result<()> {
        if stream.0 < FIRST_ID {
            return Err(DriverError::UnknownStream(stream));
        }
        let index = self.resolve(stream)?;
        self.all[index].destroyed = true;
        Ok(())
    }

    /// The index of a live stream. The default streams are on device 0.
    pub(super) fn resolve(&mut self, stream: StreamId) -> Result<usize> {
        if stream == StreamId::PER_THREAD {
            let thread = std::thread::current().id();
            if let Some(&index) = self.per_thread.get(&thread) {
                return Ok(index);
            }
            let index = self.add(0);
            self.per_thread.insert(thread, index);
            return Ok(index);
        }
        let index = match stream.0.checked_sub(FIRST_ID) {
            None if stream.0 <= StreamId::LEGACY.0 => 0,
            None | Some(0) => return Err(DriverError::UnknownStream(stream)),
            Some(index) => usize::try_from(index).unwrap_or(usize::MAX),
        };
        match self.all.get(index) {
            Some(found) if !found.destroyed => Ok(index),
            _ => Err(DriverError::UnknownStream(stream)),
        }
    }

    /// The captured streams of a device, with the ids of those that have one of their own.
    pub(super) fn captured(&self, device: usize) -> Vec<(usize, Option<StreamId>)> {
        let captured = |stream: &Stream| stream.device == device && stream.capture.is_some();
        let id = |index| {
            let has_id = !self.per_thread.values().any(|&own| own == index);
            has_id.then_some(StreamId(FIRST_ID + index as u64))
        };
        let all = self.all.iter().enumerate().filter(|(_, stream)| captured(stream));
        all.map(|(index, _)| (index, id(index))).collect()
    }

    pub(super) fn device(&self, stream: usize) -> usize {
        self.all[stream].device
    }

    /// The device of the work that an event stands behind.
    pub(super) fn device_of(&self, event: Event) -> usize {
        match event.behind {
            Behind::Stream(stream) => self.all[stream].device,
            Behind::Device(device) => device,
        }
    }

    /// A stream with work that is pending before `event`.
    fn pending_before(&self, event: Event) -> Option<usize> {
        let pends = |stream: &Stream| stream.queue.front().is_some_and(|work| work.0 < event.n_before);
        match event.behind {
            Behind::Stream(stream) => pends(&self.all[stream]).then_some(stream),
            Behind::Device(device) => self.all.iter().position(|one| one.device == device && pends(one)),
        }
    }

    /// Gives an event its id.
    pub(super) fn publish(&mut self, event: Event) -> EventId {
        EventId(self.events.insert(event))
    }

    /// The point behind everything enqueued on the stream so far.
    pub(super) fn end(&self, stream: usize) -> Event {
        let ready_ns = self.all[stream].ready_ns;
        Event { behind: Behind::Stream(stream), n_before: self.n_enqueued, ready_ns }
    }

    /// The point behind everything enqueued on the device so far, not before `ready_ns`.
    pub(super) fn end_of_device(&self, device: usize, ready_ns: u64) -> Event {
        let of_device = self.all.iter().filter(|stream| stream.device == device);
        let ready_ns = of_device.map(|stream| stream.ready_ns).fold(ready_ns, u64::max);
        Event { behind: Behind::Device(device), n_before: self.n_enqueued, ready_ns }
    }

    pub(super) fn event(&self, event: EventId) -> Result<Event> {
        self.events.get(event.0).copied().ok_or(DriverError::UnknownEvent(event))
    }

    pub(super) fn forget(&mut self, event: EventId) {
        self.events.remove(event.0);
    }

    pub(super) fn n_pending(&self, stream: usize) -> usize {
        self.all[stream].queue.len()
    }
}

impl State {
    /// Books the running call on the device of a stream; returns the stream's index.
    pub(super) fn on_stream(&mut self, stream: StreamId) -> Result<usize> {
        let index = self.streams.resolve(stream)?;
        self.on(self.streams.device(index))?;
        Ok(index)
    }

    /// Appends work to a stream and, where nothing is ever pending, runs it. While the stream is
    /// captured, the work goes into the graph.
    pub(super) fn enqueue(&mut self, stream: usize, work: Work) -> Result<()> {
        let queue = &mut self.streams.all[stream];
        if let Some(capture) = &mut queue.capture {
            return capture.add(work);
        }
        match self.config.completion {
            Completion::Immediate => {
                let device = queue.device;
                self.execute(device, work);
                return self.on(device);
            }
            Completion::Manual => {}
            Completion::Lag(lag_ns) => {
                let ready_ns = self.end_ns(stream, &work, lag_ns);
                self.streams.all[stream].ready_ns = ready_ns;
                self.streams.timeline.push(Reverse((ready_ns, self.streams.n_enqueued, stream)));
            }
        }
        self.streams.all[stream].queue.push_back((self.streams.n_enqueued, work));
        self.streams.n_enqueued += 1;
        Ok(())
    }

    /// The point behind everything enqueued on the device so far. By the clock it passes as late as
    /// work that is enqueued now.
    pub(super) fn end_of_device(&self, device: usize) -> Event {
        let lag_ns = if let Completion::Lag(ns) = self.config.completion { ns } else { 0 };
        self.streams.end_of_device(device, self.now_ns.saturating_add(lag_ns))
    }

    /// Whether an event has passed.
    pub(super) fn has_passed(&self, event: Event) -> bool {
        let is_due = match self.config.completion {
            Completion::Lag(_) => event.ready_ns <= self.now_ns,
            Completion::Immediate | Completion::Manual => true,
        };
        is_due && self.streams.pending_before(event).is_none()
    }

    /// Runs the oldest pending work of a stream, unless it waits for an event that has not passed.
    fn step(&mut self, stream: usize) -> Option<Step> {
        let queue = &self.streams.all[stream].queue;
        if let (_, Work::Wait(event)) = queue.front()?
            && !self.has_passed(*event)
        {
            return Some(Step::Blocked(*event));
        }
        let queue = &mut self.streams.all[stream];
        let (_, work) = queue.queue.pop_front()?;
        let device = queue.device;
        self.execute(device, work);
        Some(Step::Done)
    }

    /// Runs what is due by the clock.
    pub(super) fn run_due(&mut self) {
        while let Some(&Reverse((ready_ns, _, stream))) = self.streams.timeline.peek()
            && ready_ns <= self.now_ns
        {
            self.streams.timeline.pop();
            self.step(stream);
        }
    }

    /// Blocks the host until an event has passed: moves the clock there, or runs everything that has
    /// to run first.
    pub(super) fn finish(&mut self, event: Event) {
        if self.config.completion != Completion::Manual {
            self.now_ns = self.now_ns.max(event.ready_ns);
            self.run_due();
            return;
        }
        // An event was recorded before anything could wait for it: there are no cycles.
        let mut needed = vec![event];
        while let Some(&event) = needed.last() {
            let Some(stream) = self.streams.pending_before(event) else {
                needed.pop();
                continue;
            };
            if let Some(Step::Blocked(event)) = self.step(stream) {
                needed.push(event);
            }
        }
    }

    /// Blocks the host until all work of a stream is done.
    pub(super) fn drain(&mut self, stream: usize) -> Result<()> {
        self.finish(self.streams.end(stream));
        self.on(self.streams.device(stream))
    }

    /// Runs up to `n` pieces of pending work of a stream; stops at an event that has not passed.
    /// Where the clock says what runs, nothing does.
    pub(super) fn complete(&mut self, stream: usize, n: usize) -> usize {
        let n = if self.config.completion == Completion::Manual { n } else { 0 };
        (0..n).take_while(|_| matches!(self.step(stream), Some(Step::Done))).count()
    }

    /// Runs everything pending on all streams.
    pub(super) fn complete_all(&mut self) {
        for stream in 0..self.streams.all.len() {
            self.finish(self.streams.end(stream));
        }
    }
}

/// What came of running the oldest work of a stream.
enum Step {
    Done,
    Blocked(Event),
}
