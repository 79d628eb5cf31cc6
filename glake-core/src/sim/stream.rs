//! The queues of the streams: what is pending, and what runs next.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::thread::ThreadId;

use super::config::Completion;
use super::slab::Slab;
use super::state::State;
use super::work::{Read, Work};
use crate::driver::{DriverError, Result};
use crate::units::{EventId, StreamId};

/// Number of the first stream made by [`Streams::create`]; lower ones are CUDA's own.
const FIRST_ID: u64 = 1 << 32;

#[derive(Debug, Default)]
struct Stream {
    device: usize,
    queue: VecDeque<Work>,
    n_enqueued: u64,
    n_done: u64,
    /// When everything enqueued so far is done, by the clock.
    ready_ns: u64,
    destroyed: bool,
}

/// A point in the order of a stream: behind its first `position` pieces of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) stream: usize,
    pub(super) position: u64,
    pub(super) ready_ns: u64,
}

/// All streams, events and asynchronous reads.
#[derive(Debug)]
pub(super) struct Streams {
    all: Vec<Stream>,
    per_thread: HashMap<ThreadId, usize>,
    events: Slab<Event>,
    pub(super) reads: Slab<Read>,
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

    pub(super) fn device(&self, stream: usize) -> usize {
        self.all[stream].device
    }

    pub(super) fn is_done(&self, stream: usize, position: u64) -> bool {
        self.all[stream].n_done >= position
    }

    /// An event behind everything enqueued on the stream so far.
    pub(super) fn event_now(&mut self, stream: usize) -> EventId {
        let event = self.end(stream);
        EventId(self.events.insert(event))
    }

    /// The point behind everything enqueued on the stream so far.
    fn end(&self, stream: usize) -> Event {
        let Stream { n_enqueued, ready_ns, .. } = self.all[stream];
        Event { stream, position: n_enqueued, ready_ns }
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

    /// Appends work to a stream and, where nothing is ever pending, runs it.
    pub(super) fn enqueue(&mut self, stream: usize, work: Work) -> Result<()> {
        let queue = &mut self.streams.all[stream];
        queue.n_enqueued += 1;
        match self.config.completion {
            Completion::Immediate => {
                queue.n_done += 1;
                let device = queue.device;
                self.execute(device, work);
                return self.on(device);
            }
            Completion::Manual => {}
            Completion::Lag(lag_ns) => {
                let begin_ns = queue.ready_ns.max(self.now_ns.saturating_add(lag_ns));
                queue.ready_ns = match &work {
                    Work::Wait(event) => begin_ns.max(event.ready_ns),
                    Work::Delay(ns) => begin_ns.saturating_add(*ns),
                    _ => begin_ns,
                };
                self.streams.timeline.push(Reverse((queue.ready_ns, self.streams.n_enqueued, stream)));
                self.streams.n_enqueued += 1;
            }
        }
        queue.queue.push_back(work);
        Ok(())
    }

    /// Runs the oldest pending work of a stream, unless it waits for an event that has not passed.
    fn step(&mut self, stream: usize) -> Option<Step> {
        let queue = &self.streams.all[stream];
        if let Work::Wait(event) = queue.queue.front()?
            && !self.streams.is_done(event.stream, event.position)
        {
            return Some(Step::Blocked(*event));
        }
        let queue = &mut self.streams.all[stream];
        let work = queue.queue.pop_front()?;
        queue.n_done += 1;
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

    /// Blocks the host until a point in the order of a stream: moves the clock there, or runs
    /// everything that has to run first.
    pub(super) fn finish(&mut self, stream: usize, position: u64, ready_ns: u64) {
        if self.config.completion != Completion::Manual {
            self.now_ns = self.now_ns.max(ready_ns);
            self.run_due();
            return;
        }
        // An event was recorded before anything could wait for it: there are no cycles.
        let mut needed = vec![(stream, position)];
        while let Some(&(stream, position)) = needed.last() {
            if self.streams.is_done(stream, position) {
                needed.pop();
                continue;
            }
            match self.step(stream) {
                Some(Step::Done) => {}
                Some(Step::Blocked(event)) => needed.push((event.stream, event.position)),
                None => drop(needed.pop()),
            }
        }
    }

    /// Blocks the host until all work of a stream is done.
    pub(super) fn drain(&mut self, stream: usize) -> Result<()> {
        let Event { stream, position, ready_ns } = self.streams.end(stream);
        self.finish(stream, position, ready_ns);
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
            let Event { stream, position, ready_ns } = self.streams.end(stream);
            self.finish(stream, position, ready_ns);
        }
    }
}

/// What came of running the oldest work of a stream.
enum Step {
    Done,
    Blocked(Event),
}
