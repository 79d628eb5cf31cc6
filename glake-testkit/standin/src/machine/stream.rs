//! Streams: queues of work, and what each item waits for.

use std::collections::VecDeque;

use super::Machine;
use super::config::Completion;
use super::work::Op;
use crate::call;
use crate::code::{Code, Result};

/// What the device's clock goes on by with each item of work.
const WORK_NS: u64 = 1_000;

/// A place in a stream's order: behind so many items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stream: u64,
    pub(crate) n: u64,
}

/// How a stream bears on the legacy stream of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// One item of work.
#[derive(Debug)]
pub(crate) struct Work {
    op: Op,
    after: Vec<Ticket>,
    /// How often its stream had been worked with when it was enqueued.
    asked: u64,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: u64,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    pub(crate) completion: Completion,
    /// The capture that its work goes into.
    pub(crate) capture: Option<u64>,
    queue: VecDeque<Work>,
    n_enqueued: u64,
    n_done: u64,
    /// How often it was worked with, or an event of it asked for.
    n_asked: u64,
    is_destroyed: bool,
}

impl Stream {
    /// How many items are pending.
    pub(crate) fn n_pending(&self) -> usize {
        self.queue.len()
    }
}

/// The handles of the default streams.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

impl Machine {
    /// How work completes on streams that the calling thread makes.
    fn completion(&self) -> Completion {
        self.completion.get(&call::thread_id()).copied().unwrap_or(self.config.completion)
    }

    /// Makes a stream in a context.
    pub(crate) fn new_stream(&mut self, context: u64, kind: Kind, priority: i32) -> u64 {
        let (id, completion) = (self.id(), self.completion());
        let stream = Stream {
            context,
            kind,
            priority,
            completion,
            capture: None,
            queue: VecDeque::new(),
            n_enqueued: 0,
            n_done: 0,
            n_asked: 0,
            is_destroyed: false,
        };
        self.streams.insert(id, stream);
        id
    }

    /// The stream behind a handle: the default ones are those of the current context, and of the
    /// calling thread.
    pub(crate) fn stream(&mut self, handle: u64) -> Result<u64> {
        if handle > PER_THREAD {
            let stream = self.streams.get(&handle).filter(|stream| !stream.is_destroyed);
            let context = stream.ok_or(Code::INVALID_HANDLE)?.context;
            self.check_lost(context)?;
            return Ok(handle);
        }
        let context = self.current()?;
        let (thread, kind) =
            if handle == PER_THREAD { (call::thread_id(), Kind::Blocking) } else { (0, Kind::Legacy) };
        if let Some(id) = self.default_streams.get(&(context, thread)) {
            return Ok(*id);
        }
        let id = self.new_stream(context, kind, 0);
        self.default_streams.insert((context, thread), id);
        Ok(id)
    }

    /// The legacy stream of the current context.
    pub(crate) fn legacy(&mut self) -> Result<u64> {
        self.stream(LEGACY)
    }

    /// Destroys a stream; its work still runs.
    pub(crate) fn destroy_stream(&mut self, handle: u64) -> Result {
        if handle <= PER_THREAD {
            return Err(Code::INVALID_HANDLE);
        }
        let id = self.stream(handle)?;
        let Some(stream) = self.streams.get_mut(&id) else { return Err(Code::INVALID_HANDLE) };
        if let Some(capture) = stream.capture {
            self.invalidate(capture);
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        stream.is_destroyed = true;
        if stream.queue.is_empty() {
            self.streams.remove(&id);
        }
        Ok(())
    }

    /// The streams of a context, by handle.
    pub(crate) fn streams_of(&self, context: u64) -> Vec<u64> {
        self.streams.iter().filter(|(_, stream)| stream.context == context).map(|(id, _)| *id).collect()
    }

    /// Enqueues work behind all that is on the stream, or notes it for the graph that the stream is
    /// captured into.
    pub(crate) fn enqueue(&mut self, stream: u64, op: Op, mut after: Vec<Ticket>) -> Result {
        self.check_implicit(stream)?;
        let Some(this) = self.streams.get(&stream) else { return Err(Code::INVALID_HANDLE) };
        if let Some(capture) = this.capture {
            return self.capture_work(capture, stream, op);
        }
        after.extend(self.implied(this));
        self.retain_op(&op);
        if let Some(this) = self.streams.get_mut(&stream) {
            this.n_asked += 1;
            this.queue.push_back(Work { op, after, asked: this.n_asked });
            this.n_enqueued += 1;
            self.busy.insert(stream);
        }
        self.pump();
        Ok(())
    }

    /// What work on a stream waits for because of the legacy stream.
    fn implied(&self, this: &Stream) -> Vec<Ticket> {
        let others = |kind| {
            let of_kind = move |stream: &Stream| stream.context == this.context && stream.kind == kind;
            let streams = self.streams.iter().filter(move |(_, stream)| of_kind(stream));
            streams.filter_map(|(id, _)| self.last(*id)).collect()
        };
        match this.kind {
            Kind::Legacy => others(Kind::Blocking),
            Kind::Blocking => others(Kind::Legacy),
            Kind::NonBlocking => Vec::new(),
        }
    }

    /// The place behind all work of a stream, if any of it is pending.
    pub(crate) fn last(&self, stream: u64) -> Option<Ticket> {
        let this = self.streams.get(&stream)?;
        (this.n_done < this.n_enqueued).then_some(Ticket { stream, n: this.n_enqueued })
    }

    /// Whether all work before a place is done.
    pub(crate) fn is_done(&self, ticket: Ticket) -> bool {
        self.streams.get(&ticket.stream).is_none_or(|stream| stream.n_done >= ticket.n)
    }

    /// What the first item of a stream still waits for.
    fn blocker(&self, stream: u64) -> Option<Ticket> {
        let first = self.streams.get(&stream)?.queue.front()?;
        first.after.iter().copied().find(|ticket| !self.is_done(*ticket))
    }

    /// Runs the first item of a stream, which waits for nothing.
    fn step(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(work) = stream.queue.pop_front() else { return };
        let context = stream.context;
        self.now_ns += WORK_NS;
        let done = self.execute(context, &work.op);
        self.release_op(&work.op);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.n_done += 1;
            if stream.queue.is_empty() {
                self.busy.remove(&id);
                if stream.is_destroyed {
                    self.streams.remove(&id);
                }
            }
        }
        if let Err(code) = done {
            self.lose(context, code);
        }
    }

    /// Runs work until a place is reached: of the stream, and of others where it waits for them.
    pub(crate) fn run_to(&mut self, goal: Ticket) {
        let mut goals = vec![goal];
        while let Some(goal) = goals.last().copied() {
            if self.is_done(goal) {
                goals.pop();
                continue;
            }
            match self.blocker(goal.stream) {
                Some(ticket) => goals.push(ticket),
                None => self.step(goal.stream),
            }
        }
    }

    /// Runs all work of a stream.
    pub(crate) fn run_all_of(&mut self, stream: u64) {
        if let Some(last) = self.last(stream) {
            self.run_to(last);
        }
    }

    /// Runs at most `n` items of a stream, as far as they wait for nothing; returns how many.
    pub(crate) fn run_some_of(&mut self, stream: u64, n: u64) -> u64 {
        let mut ran = 0;
        while ran < n && self.last(stream).is_some() && self.blocker(stream).is_none() {
            self.step(stream);
            ran += 1;
        }
        ran
    }

    /// Runs all work of a context; an error if it died of it.
    pub(crate) fn run_context(&mut self, context: u64) -> Result {
        for stream in self.streams_of(context) {
            self.run_all_of(stream);
        }
        self.check_lost(context)
    }

    /// Somebody asks whether work is done, without waiting: what lags comes nearer.
    pub(crate) fn ask(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            if let Some(stream) = self.streams.get_mut(&ticket.stream) {
                stream.n_asked += 1;
            }
        }
        self.pump();
    }

    /// Runs what is due without anybody waiting for it.
    pub(crate) fn pump(&mut self) {
        while let Some(stream) = self.busy.iter().copied().find(|stream| self.is_due(*stream)) {
            self.step(stream);
        }
    }

    fn is_due(&self, id: u64) -> bool {
        let Some(stream) = self.streams.get(&id) else { return false };
        let Some(first) = stream.queue.front() else { return false };
        let is_due = match stream.completion {
            Completion::Immediate => true,
            Completion::Manual => false,
            Completion::Lag(n) => stream.n_asked >= first.asked + n,
        };
        is_due && self.blocker(id).is_none()
    }

    /// Drops what is pending in a context: nothing runs there any more.
    pub(crate) fn drop_work(&mut self, context: u64) {
        for id in self.streams_of(context) {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.n_done = stream.n_enqueued;
            self.busy.remove(&id);
            for work in std::mem::take(&mut stream.queue) {
                self.release_op(&work.op);
            }
        }
        self.streams.retain(|_, stream| !(stream.is_destroyed && stream.queue.is_empty()));
    }
}
