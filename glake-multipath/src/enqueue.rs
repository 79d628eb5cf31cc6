//! One transfer that a stream waits for: everything is enqueued at once, and nobody looks whether it arrived.

use std::sync::Arc;

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{EventId, StreamId};

use crate::chunk::{Chunk, Chunks};
use crate::lane::{Direction, HostSide, Lane, Path};
use crate::mark::Mark;
use crate::pace::Sizes;
use crate::report::LaneReport;
use crate::split::{Expected, Split};

/// How much later a direct lane is done than its bytes alone would take.
const DIRECT_NS: u64 = 3_000;
/// The same of a relay lane, whose last chunk is copied once more, over the link between the devices.
const RELAY_NS: u64 = 6_000;

/// What there is of the transfer on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Nothing,
    /// Something that no event is behind.
    Open,
    /// Everything before that event.
    Ended(EventId),
}

/// A lane, and what it was given.
#[derive(Debug)]
pub(crate) struct Giving {
    pub(crate) lane: Lane,
    /// What it did. With an error it is of no more use.
    pub(crate) report: LaneReport,
    given: Vec<Chunk>,
    state: State,
}

impl Giving {
    pub(crate) fn new(lane: Lane) -> Self {
        let report = LaneReport::new(lane.path());
        Self { lane, report, given: Vec::new(), state: State::Nothing }
    }

    /// What is expected of it; `rate` in bytes per millisecond.
    fn expected(&self, rate: u64) -> Expected {
        let latency_ns = if self.lane.path() == Path::Direct { DIRECT_NS } else { RELAY_NS };
        Expected { rate, latency_ns }
    }

    /// What it was given will not arrive, or nobody knows when.
    fn take_back(&mut self, chunks: &mut Chunks) {
        self.given.drain(..).for_each(|chunk| chunks.give_back(chunk));
        (self.report.bytes, self.report.n_chunks) = (0, 0);
    }
}

/// A transfer that is being enqueued.
#[derive(Debug)]
pub(crate) struct Enqueue<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) direction: Direction,
    pub(crate) side: HostSide,
    pub(crate) sizes: Sizes,
    /// What it comes behind.
    pub(crate) after: &'a [Arc<Mark>],
    pub(crate) lanes: Vec<Giving>,
    pub(crate) failed: Vec<Giving>,
}

impl Enqueue<'_> {
    /// Enqueues `chunks` on the lanes, of which those on a path are expected to move `rate` bytes per
    /// millisecond, and makes `stream` wait for them. What is left in `chunks` will not arrive: then no lane is left.
    pub(crate) fn run(&mut self, chunks: &mut Chunks, rate: impl Fn(Path) -> u64, stream: StreamId) {
        let expected = |giving: &Giving| giving.expected(rate(giving.lane.path()));
        let mut split = Split::new(self.lanes.iter().map(expected));
        while chunks.left_bytes() > 0 && !self.lanes.is_empty() {
            self.give(chunks, &mut split);
            self.end(chunks, &mut split);
        }
        self.order(chunks, stream);
    }

    /// Hands out chunks until none is left, or no lane.
    fn give(&mut self, chunks: &mut Chunks, split: &mut Split) {
        let n_lanes = u64::try_from(self.lanes.len()).unwrap_or(u64::MAX);
        // Any of the lanes may get it, or get it back from another.
        let most = self.lanes.iter().map(|giving| giving.lane.most_bytes()).min().unwrap_or(u64::MAX);
        while !self.lanes.is_empty() {
            let bytes = self.sizes.next(chunks.left_bytes(), 1, n_lanes).min(most);
            let Some(chunk) = chunks.next(bytes) else { return };
            let Some(at) = split.give(chunk.bytes) else { return chunks.give_back(chunk) };
            match self.queue(at, &chunk) {
                Ok(()) => {
                    self.lanes[at].report.count(chunk.bytes);
                    self.lanes[at].given.push(chunk);
                }
                Err(error) => {
                    chunks.give_back(chunk);
                    self.fail(at, error, chunks, split);
                }
            }
        }
    }

    fn queue(&mut self, at: usize, chunk: &Chunk) -> Result<(), DriverError> {
        let giving = &mut self.lanes[at];
        match std::mem::replace(&mut giving.state, State::Open) {
            State::Nothing => self.after.iter().try_for_each(|mark| giving.lane.wait(mark.event()))?,
            State::Ended(_) | State::Open => {}
        }
        giving.lane.queue(self.direction, self.side, chunk)
    }

    /// Has each lane end what it was given.
    fn end(&mut self, chunks: &mut Chunks, split: &mut Split) {
        let mut at = 0;
        while let Some(giving) = self.lanes.get_mut(at) {
            if giving.state != State::Open {
                at += 1;
                continue;
            }
            match giving.lane.end_queue() {
                Ok(end) => giving.state = State::Ended(end),
                Err(error) => self.fail(at, error, chunks, split),
            }
        }
    }

    /// Takes a lane out. What it had before arrives, unless its device is lost: then that is for the others, too.
    fn fail(&mut self, at: usize, error: DriverError, chunks: &mut Chunks, split: &mut Split) {
        split.remove(at);
        let mut giving = self.lanes.remove(at);
        tracing::warn!(path = ?giving.lane.path(), %error, "a lane failed; the others go on");
        giving.report.error = Some(error);
        if error == DriverError::DeviceLost {
            giving.take_back(chunks);
        }
        giving.lane.fail(error, self.lanes.iter().flat_map(|other| other.lane.streams()));
        self.failed.push(giving);
    }

    /// Makes `stream` wait for all lanes, those that failed included.
    fn order(&mut self, chunks: &mut Chunks, stream: StreamId) {
        for giving in self.lanes.iter_mut().chain(&mut self.failed) {
            let waited = match giving.state {
                State::Nothing => continue,
                State::Open => Err(None),
                State::Ended(end) => self.driver.wait(stream, end).map_err(Some),
            };
            if let Err(error) = waited
                && !giving.lane.precede(stream)
            {
                giving.report.error = giving.report.error.or(error);
                giving.take_back(chunks);
            }
        }
    }
}
