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

use glake_core::units::{DeviceId, EventId, StreamId};

use crate::thread::{self, ThreadToken};

mod device;
mod ends;
mod epochs;
mod host;

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

    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    #[inline]
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
    /// No stream, but the host: it waits itself, and has no work.
    Host,
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
    #[inline]
    pub(crate) fn of(stream: StreamId) -> Self {
        // 0 is the legacy default stream, as 1 is.
        let stream = stream.max(StreamId::LEGACY);
        let is_threads = stream == StreamId::PER_THREAD;
        Self { stream, thread: if is_threads { thread::token() } else { ThreadToken::ANY } }
    }

    /// Whether calls of this thread reach the stream.
    #[inline]
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
    #[inline]
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
    /// What stands for the host, once it was asked for.
    host: Option<StreamIndex>,
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
            host: None,
            is_all_used: false,
            has_context_events: true,
        };
        let everything = Key { stream: EVERYTHING, thread: ThreadToken::ANY };
        order.add(everything, State::Live);
        order
    }

    /// The stream's index; a stream that was not seen before gets one. `None` if there are too many.
    #[inline]
    pub(crate) fn index_of(&mut self, stream: StreamId) -> Option<StreamIndex> {
        self.index_of_key(Key::of(stream))
    }

    /// As [`index_of`](Self::index_of).
    #[inline]
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
    #[inline]
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
    #[inline]
    pub(crate) fn tag(&self, stream: StreamIndex) -> Tag {
        Tag { stream, epoch: self.streams[stream.index()].open }
    }

    /// Whether the device is known to be done with `tag`, as far as was asked.
    #[inline]
    pub(crate) fn is_done(&self, tag: Tag) -> bool {
        self.streams.get(tag.stream.index()).is_none_or(|s| tag.epoch < s.done_below)
    }

    /// What stands between bytes of `tag` and `taker`.
    #[inline]
    pub(crate) fn readiness(&self, taker: Taker, tag: Tag) -> Readiness {
        if self.is_ready(taker.stream, tag) {
            return Readiness::Ready;
        }
        let to = &self.streams[taker.stream.index()];
        let from = &self.streams[tag.stream.index()];
        let is_open = from.covering(tag.epoch).is_none();
        let takes_events = from.state != State::Captured && (!is_open || self.can_close(from));
        let can_wait = matches!(to.state, State::Live | State::Host);
        if taker.waiting == Waiting::Allowed && can_wait && takes_events {
            Readiness::Behind { is_open, epoch: tag.epoch }
        } else {
            Readiness::Never
        }
    }

    /// Whether `stream` may have bytes of `tag` as they are.
    #[inline]
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
}
