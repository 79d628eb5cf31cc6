//! The order of device work: streams, the epochs that their events close, and who is behind what.
//!
//! An *epoch* is a stretch of a stream's work that ends with an event of ours. Free bytes bear the
//! [`Tag`] of their last use: a stream and the epoch that was open there at the free. Bytes may go
//! to a stream if they were its own, if the device is done with their epoch, or if the stream has
//! waited for it, directly or through others: each stream has a *clock* that says up to which epoch
//! of every other one it is behind, and each event a copy of its stream's clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{DeviceId, EventId, StreamId};

use crate::thread::{self, ThreadToken};

/// Bytes freed on a stream for one event. So an event is there long before another stream wants
/// the bytes, which then need not wait for work that came later.
const BYTES_PER_EVENT: u64 = 16 << 20;

/// No stream's name: stands for all of them.
const EVERYTHING: StreamId = StreamId(u64::MAX);

/// Streams that a pool can tell apart at a time.
pub(crate) const MAX_STREAMS: usize = 1 << 12;

/// A stretch of a stream's work. Later epochs are greater, among all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Epoch(u64);

#[cfg(test)]
impl Epoch {
    pub(crate) const fn from_raw(epoch: u64) -> Self {
        Self(epoch)
    }
}

/// A stream as the pool knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StreamIndex(u16);

impl StreamIndex {
    /// Everything that runs on the device, whatever stream it is on.
    pub(crate) const ALL: Self = Self(0);
    /// No stream: memory that nobody has used.
    const NONE: Self = Self(u16::MAX);

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn from_index(i: usize) -> Self {
        u16::try_from(i).map_or(Self::NONE, Self)
    }
}

/// The last use of free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tag {
    pub(crate) stream: StreamIndex,
    pub(crate) epoch: Epoch,
}

impl Tag {
    /// Of memory that nobody has used.
    pub(crate) const UNUSED: Self = Self { stream: StreamIndex::NONE, epoch: Epoch(0) };
}

/// What stands between free bytes and a stream that would have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Readiness {
    /// Nothing.
    Ready,
    /// A wait for an event: of those that are recorded, the older the better.
    Behind {
        /// The event is not recorded yet.
        is_open: bool,
        /// The epoch to wait for.
        epoch: Epoch,
    },
    /// They cannot be had at the moment.
    Never,
}

/// Who would have bytes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    pub(crate) stream: StreamIndex,
    pub(crate) waiting: Waiting,
}

/// Whether a stream may be made to wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    Allowed,
    Refused,
}

/// What a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It takes events.
    Live,
    /// It was destroyed: what it did is known to be done by events of the whole context only.
    Gone,
    /// Work that a graph was captured from: done when the graph is, and not before.
    Captured,
    /// An entry to be used again.
    Vacant,
}

/// How a stream is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    stream: StreamId,
    /// The thread whose stream it is, for the default stream of each thread.
    thread: ThreadToken,
}

impl Key {
    /// What the calling thread means by `stream`.
    pub(crate) fn of(stream: StreamId) -> Self {
        // 0 is the legacy default stream, as 1 is.
        let stream = stream.max(StreamId::LEGACY);
        let is_threads = stream == StreamId::PER_THREAD;
        Self { stream, thread: if is_threads { thread::token() } else { ThreadToken::ANY } }
    }

    /// Whether calls of this thread reach the stream.
    fn is_here(self) -> bool {
        self.thread == ThreadToken::ANY || self.thread == thread::token()
    }
}

/// The end of an epoch.
#[derive(Debug)]
struct Closed {
    epoch: Epoch,
    event: EventId,
    /// The stream's clock at the event.
    clock: Box<[Epoch]>,
}

#[derive(Debug)]
struct Stream {
    key: Key,
    state: State,
    open: Epoch,
    /// The device is done with epochs below this one.
    done_below: Epoch,
    /// By epoch; those below `done_below` are forgotten.
    events: VecDeque<Closed>,
    /// For each stream, by index: later work here runs behind its epochs below this one.
    clock: Vec<Epoch>,
    /// Bytes freed since the last event.
    freed_bytes: u64,
    /// What the stream was before its capture, which is not over.
    under: Option<StreamIndex>,
    /// A mark from before this says nothing about its epochs: a graph was launched until then.
    launched_until: Epoch,
}

impl Stream {
    fn is_behind(&self, tag: Tag) -> bool {
        self.clock.get(tag.stream.index()).is_some_and(|&below| tag.epoch < below)
    }

    /// The earliest recorded event behind `epoch`.
    fn covering(&self, epoch: Epoch) -> Option<&Closed> {
        self.events.get(self.events.partition_point(|closed| closed.epoch < epoch))
    }

    fn catch_up(&mut self, stream: StreamIndex, below: Epoch) {
        let i = stream.index();
        if self.clock.len() <= i {
            self.clock.resize(i + 1, Epoch(0));
        }
        self.clock[i] = self.clock[i].max(below);
    }
}

/// Streams, epochs and events of a pool.
#[derive(Debug)]
pub(crate) struct Order {
    device: DeviceId,
    streams: Vec<Stream>,
    by_key: BTreeMap<Key, StreamIndex>,
    /// The stream of the latest look-up.
    latest: Option<(Key, StreamIndex)>,
    /// Rises when a key comes to mean another index, or none: what others remember is void then.
    names: Arc<AtomicU64>,
    next: Epoch,
    /// Whether bytes were freed that any stream may use.
    is_all_used: bool,
    /// Whether the driver has events behind all work of a context, as far as is known.
    has_context_events: bool,
}

impl Order {
    pub(crate) fn new(device: DeviceId) -> Self {
        let mut order = Self {
            device,
            streams: Vec::new(),
            by_key: BTreeMap::new(),
            latest: None,
            names: Arc::default(),
            next: Epoch(1),
            is_all_used: false,
            has_context_events: true,
        };
        let everything = Key { stream: EVERYTHING, thread: ThreadToken::ANY };
        order.add(everything, State::Live);
        order
    }

    /// The stream's index; a stream that was not seen before gets one. `None` if there are too many.
    pub(crate) fn index_of(&mut self, stream: StreamId) -> Option<StreamIndex> {
        self.index_of_key(Key::of(stream))
    }

    /// As [`index_of`](Self::index_of).
    pub(crate) fn index_of_key(&mut self, key: Key) -> Option<StreamIndex> {
        if let Some((latest, index)) = self.latest
            && latest == key
        {
            return Some(index);
        }
        let index = match self.by_key.get(&key) {
            Some(&index) => index,
            None => self.register(key)?,
        };
        self.latest = Some((key, index));
        Some(index)
    }

    /// A number that rises when a stream gets another index.
    pub(crate) fn names(&self) -> &Arc<AtomicU64> {
        &self.names
    }

    fn rename(&mut self) {
        self.latest = None;
        self.names.fetch_add(1, Ordering::Release);
    }

    fn register(&mut self, key: Key) -> Option<StreamIndex> {
        let index = self.add(key, State::Live)?;
        self.by_key.insert(key, index);
        Some(index)
    }

    fn add(&mut self, key: Key, state: State) -> Option<StreamIndex> {
        let vacant = self.streams.iter().position(|s| s.state == State::Vacant);
        let i = vacant.unwrap_or(self.streams.len());
        if i >= MAX_STREAMS {
            return None;
        }
        let open = self.next;
        self.next.0 += 1;
        let stream = Stream {
            key,
            state,
            open,
            // What an earlier stream of this index did is done.
            done_below: open,
            events: VecDeque::new(),
            clock: Vec::new(),
            freed_bytes: 0,
            under: None,
            launched_until: Epoch(0),
        };
        if vacant.is_some() {
            self.streams[i] = stream;
        } else {
            self.streams.push(stream);
        }
        Some(StreamIndex::from_index(i))
    }

    /// Whether there is but one stream, which owns everything.
    pub(crate) fn is_single(&self) -> bool {
        self.streams.len() <= 2 && !self.is_all_used
    }

    /// Streams that were seen and are not known to be gone.
    pub(crate) fn n_streams(&self) -> usize {
        self.by_key.len()
    }

    /// The tag of bytes that any work enqueued until now may have used.
    pub(crate) fn tag_of_all(&mut self) -> Tag {
        self.is_all_used = true;
        self.tag(StreamIndex::ALL)
    }

    /// The tag of bytes that work enqueued on `stream` until now used last.
    pub(crate) fn tag(&self, stream: StreamIndex) -> Tag {
        Tag { stream, epoch: self.streams[stream.index()].open }
    }

    /// Whether the device is known to be done with `tag`, as far as was asked.
    pub(crate) fn is_done(&self, tag: Tag) -> bool {
        self.streams.get(tag.stream.index()).is_none_or(|s| tag.epoch < s.done_below)
    }

    /// What stands between bytes of `tag` and `taker`.
    pub(crate) fn readiness(&self, taker: Taker, tag: Tag) -> Readiness {
        if self.is_ready(taker.stream, tag) {
            return Readiness::Ready;
        }
        let to = &self.streams[taker.stream.index()];
        let from = &self.streams[tag.stream.index()];
        let is_open = from.covering(tag.epoch).is_none();
        let takes_events = from.state != State::Captured && (!is_open || self.can_close(from));
        if taker.waiting == Waiting::Allowed && to.state == State::Live && takes_events {
            Readiness::Behind { is_open, epoch: tag.epoch }
        } else {
            Readiness::Never
        }
    }

    /// Whether `stream` may have bytes of `tag` as they are.
    pub(crate) fn is_ready(&self, stream: StreamIndex, tag: Tag) -> bool {
        tag.stream == stream || self.is_done(tag) || self.streams[stream.index()].is_behind(tag)
    }

    /// Whether calls of this thread can end an epoch of `s`.
    fn can_close(&self, s: &Stream) -> bool {
        self.has_context_events || (s.state == State::Live && s.key.is_here() && s.key.stream != EVERYTHING)
    }

    /// Whether a graph was captured from the stream's work.
    pub(crate) fn is_captured(&self, stream: StreamIndex) -> bool {
        self.streams[stream.index()].state == State::Captured
    }

    /// Whether a graph may use bytes of `tag` at their address.
    pub(crate) fn is_graphs(&self, tag: Tag) -> bool {
        self.streams.get(tag.stream.index()).is_some_and(|s| s.state == State::Captured)
    }

    /// Work of a stream that is gone and may not be done: of the launches of a graph, say.
    pub(crate) fn last_of_gone(&self, stream: StreamIndex) -> Option<Tag> {
        let is_gone = self.streams[stream.index()].state == State::Gone;
        Some(self.tag(stream)).filter(|&tag| is_gone && !self.is_done(tag))
    }

    /// Whether both have the same name but are not the same: the default streams of two threads, or
    /// one that ended and one that was made since.
    pub(crate) fn are_namesakes(&self, a: StreamIndex, b: StreamIndex) -> bool {
        let name = |index: StreamIndex| self.streams[index.index()].key.stream;
        a != b && name(a) == name(b)
    }

    /// Whether there may be bytes that `stream` cannot even wait for.
    pub(crate) fn has_unreachable(&self, stream: StreamIndex) -> bool {
        !self.has_context_events || self.is_captured(stream)
    }

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
    fn closed(&mut self, stream: StreamIndex, event: EventId) {
        let s = &mut self.streams[stream.index()];
        s.freed_bytes = 0;
        s.events.push_back(Closed { epoch: s.open, event, clock: s.clock.as_slice().into() });
        if s.state != State::Gone {
            s.open = self.next;
            self.next.0 += 1;
        }
    }

    /// Ends a stream that is about to be destroyed, behind a last event.
    pub(crate) fn end(&mut self, stream: StreamId, driver: &dyn Driver) -> Result<(), DriverError> {
        self.end_capture(stream);
        let Some(&index) = self.by_key.get(&Key::of(stream)) else { return Ok(()) };
        let event = driver.record(stream)?;
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
    fn leave_capture(&mut self, index: StreamIndex) {
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
    fn spare_captures(&self) -> Result<(), DriverError> {
        match self.streams.iter().find(|s| s.under.is_some()) {
            Some(s) => Err(DriverError::Capturing(s.key.stream)),
            None => Ok(()),
        }
    }

    fn record_all(&mut self, driver: &dyn Driver) -> Result<EventId, DriverError> {
        self.spare_captures()?;
        let recorded = driver.record_all(self.device);
        if let Err(DriverError::NotSupported(_)) = recorded {
            self.has_context_events = false;
        }
        recorded
    }

    /// Notes that a stream was destroyed.
    fn lose(&mut self, stream: StreamIndex) {
        let s = &mut self.streams[stream.index()];
        if s.state == State::Live {
            s.state = State::Gone;
            self.by_key.remove(&s.key);
            self.rename();
        }
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
    pub(crate) fn note_freed(&mut self, stream: StreamIndex, bytes: u64, driver: &dyn Driver) {
        if self.is_single() && stream != StreamIndex::ALL {
            return;
        }
        let s = &mut self.streams[stream.index()];
        s.freed_bytes += bytes;
        if s.freed_bytes >= BYTES_PER_EVENT && s.state != State::Captured {
            s.freed_bytes = 0;
            let _ = self.close_epoch(stream, driver);
            let _ = self.poll_stream(stream, driver);
        }
    }

    /// Makes later work of `stream` run behind `tag`, unless it does.
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

    fn poll_stream(&mut self, stream: StreamIndex, driver: &dyn Driver) -> Result<(), DriverError> {
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

    fn pass_oldest(&mut self, stream: StreamIndex, driver: &dyn Driver) {
        let s = &mut self.streams[stream.index()];
        if let Some(closed) = s.events.pop_front() {
            driver.forget(closed.event);
            s.done_below = Epoch(closed.epoch.0 + 1);
        }
    }

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

    fn synchronize_all(&mut self, driver: &dyn Driver) -> Result<(), DriverError> {
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
            match self.close_epoch(StreamIndex::from_index(i), driver) {
                Ok(()) => {}
                Err(error) => {
                    for &event in &last {
                        driver.forget(event);
                    }
                    return Err(error);
                }
            }
            last.extend(self.streams[i].events.drain(..).map(|closed| closed.event));
        }
        Ok(last)
    }

    /// Whether stream `i` may have work that matters to the pool and takes events.
    fn is_used(&self, i: usize) -> bool {
        let s = &self.streams[i];
        let is_unused = i == StreamIndex::ALL.index() && !self.is_all_used;
        // Nothing came behind the last event of one that is gone.
        let has_ended = s.state == State::Gone && (s.done_below > s.open || s.covering(s.open).is_some());
        !is_unused && !has_ended && !matches!(s.state, State::Captured | State::Vacant)
    }
}
