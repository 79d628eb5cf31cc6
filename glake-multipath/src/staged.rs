//! One transfer through pinned slots: several threads fill them and pass them to the lanes, or take them
//! from the lanes and empty them.
//!
//! Each thread has a few slots, so that one is copied while it works on another. A chunk goes to the lane
//! that would end it first, by what is under way on each and the pace at which it has moved so far.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use glake_core::driver::{Driver, DriverError, Held, HostBuffer};
use glake_core::units::{DeviceId, EventId, HostId};

use crate::chunk::{Chunk, Chunks};
use crate::config::Around;
use crate::control::{Control, Progress};
use crate::ends::Ends;
use crate::error::TransferError;
use crate::lane::{Direction, HostSide};
use crate::run::Worker;
use crate::slots::Slots;

/// The smallest chunk of a transfer that several threads work on.
const LEAST_BYTES: u64 = 256 << 10;
/// A chunk is at most this fraction of what is left for a thread.
const N_TURNS: u64 = 2;

/// Slots of one thread: one to work on while others are copied.
const SLOTS_PER_THREAD: usize = 3;

/// A transfer through slots.
#[derive(Debug)]
pub(crate) struct Staged<'a, 'm> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) control: &'a Control<'a>,
    pub(crate) direction: Direction,
    pub(crate) device: DeviceId,
    pub(crate) slots: &'a Slots,
    pub(crate) ends: Ends<'m>,
    n_threads: usize,
    state: Mutex<State>,
}

/// What the threads share.
#[derive(Debug)]
struct State {
    chunks: Chunks,
    lanes: Vec<StagedLane>,
    progress: Progress,
    /// Chunks that threads have and that are not done.
    n_under_way: usize,
    n_slots: usize,
    stop: Option<Stop>,
}

#[derive(Debug)]
struct StagedLane {
    worker: Worker,
    under_way_bytes: u64,
    has_failed: bool,
}

/// Why no thread goes on.
#[derive(Debug)]
enum Stop {
    Source(io::Error),
    NoSlot(DriverError),
}

/// A chunk that a thread has passed to a lane.
#[derive(Debug)]
struct UnderWay {
    chunk: Chunk,
    lane: usize,
    event: EventId,
    host: HostId,
}

/// What a thread does next.
enum Next {
    Move(Chunk),
    Wait,
    End,
}

impl<'a, 'm> Staged<'a, 'm> {
    pub(crate) fn new(
        driver: &'a dyn Driver,
        control: &'a Control<'a>,
        direction: Direction,
        (device, slots): (DeviceId, &'a Slots),
        ends: Ends<'m>,
        (chunks, workers): (Chunks, Vec<Worker>),
        n_threads: usize,
    ) -> Self {
        // More threads than chunks or slots would have nothing to do.
        let n_chunks = chunks.left_bytes().div_ceil(slots.slot_bytes().clamp(1, LEAST_BYTES));
        let n_threads =
            n_threads.min(usize::try_from(n_chunks).unwrap_or(usize::MAX)).min(slots.n_most()).max(1);
        let lane = |worker| StagedLane { worker, under_way_bytes: 0, has_failed: false };
        let state = State {
            progress: Progress { done_bytes: 0, total_bytes: chunks.left_bytes() },
            chunks,
            lanes: workers.into_iter().map(lane).collect(),
            n_under_way: 0,
            n_slots: 0,
            stop: None,
        };
        Self { driver, control, direction, device, slots, ends, n_threads, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves everything, the calling thread among those that do and the others inside of `around`. When it returns, nothing of it runs any more.
    ///
    /// # Errors
    /// [`TransferError`], with what did not arrive.
    pub(crate) fn drive(&self, around: Around) -> Result<(), TransferError> {
        thread::scope(|scope| {
            for _ in 1..self.n_threads {
                let thread = thread::Builder::new().name("glake-staging".into());
                // Fewer threads do as well.
                let _ = thread.spawn_scoped(scope, || around.run(|| self.work()));
            }
            self.work();
        });
        let mut state = self.lock();
        for lane in state.lanes.iter_mut().filter(|lane| lane.has_failed) {
            lane.worker.lane.quiesce();
        }
        let left = state.chunks.left_bytes();
        let missing = state.chunks.clone().into_left();
        match state.stop.take() {
            _ if left == 0 => Ok(()),
            Some(Stop::Source(source)) => Err(TransferError::Source { missing, source: Box::new(source) }),
            Some(Stop::NoSlot(source)) => Err(TransferError::NoPath { missing, source: Box::new(source) }),
            None => match state.last_error() {
                Some(source) => Err(TransferError::NoPath { missing, source: Box::new(source) }),
                None => Err(TransferError::Cancelled { missing }),
            },
        }
    }

    /// The lanes, those that failed last.
    pub(crate) fn into_lanes(self) -> (Vec<Worker>, Vec<Worker>) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (failed, well): (Vec<_>, Vec<_>) = state.lanes.into_iter().partition(|lane| lane.has_failed);
        let worker = |lane: StagedLane| lane.worker;
        (well.into_iter().map(worker).collect(), failed.into_iter().map(worker).collect())
    }

    /// One thread's part.
    fn work(&self) {
        let mut thread = Thread { staged: self, under_way: VecDeque::new(), free: Vec::new() };
        loop {
            thread.collect();
            let has_slot = !self.control.turn.must_wait() && thread.has_slot();
            match self.next(has_slot, thread.under_way.len()) {
                Next::Move(chunk) => thread.start(chunk),
                Next::Wait => {
                    // Who is waited for may wait for slots.
                    if self.control.turn.must_wait() {
                        thread.put_free();
                    }
                    thread.pause();
                }
                Next::End => break,
            }
        }
    }

    /// What a thread with `n_own` chunks under way does next. Where nothing is left it needs no slot for that.
    fn next(&self, has_slot: bool, n_own: usize) -> Next {
        let mut state = self.lock();
        let is_over = self.control.is_cancelled() || state.stop.is_some() || state.is_without_lane();
        if is_over {
            return if n_own == 0 { Next::End } else { Next::Wait };
        }
        if state.chunks.left_bytes() == 0 {
            // What others have under way may come back.
            return if state.n_under_way == 0 { Next::End } else { Next::Wait };
        }
        if !has_slot || self.control.turn.must_wait() {
            return Next::Wait;
        }
        let lanes = state.lanes.iter().filter(|lane| !lane.has_failed);
        let most_bytes = lanes.map(|lane| lane.worker.lane.most_bytes()).min().unwrap_or(u64::MAX);
        // Smaller ones towards the end, so that all threads end together and little is copied behind them.
        let share_bytes = state.chunks.left_bytes() / (N_TURNS * self.n_threads as u64);
        let most_bytes = most_bytes.min(share_bytes.max(LEAST_BYTES)).min(self.slots.slot_bytes());
        match state.chunks.next(most_bytes) {
            Some(chunk) => {
                state.n_under_way += 1;
                Next::Move(chunk)
            }
            None => Next::Wait,
        }
    }
}

impl State {
    fn is_without_lane(&self) -> bool {
        self.lanes.iter().all(|lane| lane.has_failed)
    }

    fn last_error(&self) -> Option<DriverError> {
        let last = self.lanes.iter().rev().find_map(|lane| lane.worker.report.error);
        last.filter(|_| self.is_without_lane())
    }

    /// The lane that would end a chunk of `bytes` first.
    fn best_lane(&self, bytes: u64) -> Option<usize> {
        let well = self.lanes.iter().enumerate().filter(|(_, lane)| !lane.has_failed);
        let end = |(_, lane): &(usize, &StagedLane)| {
            u128::from(lane.under_way_bytes + bytes) * 1_000_000 / u128::from(lane.worker.pace.rate())
        };
        well.min_by_key(end).map(|(at, _)| at)
    }

    /// A chunk that a thread had goes back.
    fn give_back(&mut self, chunk: Chunk) {
        self.n_under_way -= 1;
        self.chunks.give_back(chunk);
    }

    fn fail(&mut self, lane: usize, error: DriverError) {
        let others = self.lanes.iter().enumerate().filter(|(at, other)| *at != lane && !other.has_failed);
        let streams: Vec<_> = others.flat_map(|(_, other)| other.worker.lane.streams()).collect();
        let lane = &mut self.lanes[lane];
        lane.worker.lane.fail(error, streams);
        if !lane.has_failed {
            tracing::warn!(path = ?lane.worker.lane.path(), %error, "a lane failed; the others go on");
            (lane.has_failed, lane.worker.report.error) = (true, Some(error));
        }
    }
}

/// One thread with its slots.
struct Thread<'t, 'a, 'm> {
    staged: &'t Staged<'a, 'm>,
    under_way: VecDeque<UnderWay>,
    free: Vec<HostBuffer>,
}

impl Thread<'_, '_, '_> {
    /// Whether a slot is free, or can be had.
    fn has_slot(&mut self) -> bool {
        if !self.free.is_empty() {
            return true;
        }
        if self.under_way.len() >= SLOTS_PER_THREAD {
            return false;
        }
        let staged = self.staged;
        match staged.slots.take(staged.device) {
            Ok(Some(slot)) => {
                staged.lock().n_slots += 1;
                self.free.push(slot);
                true
            }
            Ok(None) => false,
            Err(error) => {
                let mut state = staged.lock();
                // Without any slot nobody can go on; with a few it is only slower.
                if state.n_slots == 0 {
                    state.stop.get_or_insert(Stop::NoSlot(error));
                }
                false
            }
        }
    }

    /// Fills a slot where the source is the host's, and passes it to a lane.
    fn start(&mut self, chunk: Chunk) {
        let staged = self.staged;
        let Some(mut slot) = self.free.pop() else {
            return staged.lock().give_back(chunk);
        };
        if let Err(error) = staged.ends.fill(&chunk, (*slot).as_mut()) {
            self.free.push(slot);
            let mut state = staged.lock();
            state.give_back(chunk);
            state.stop.get_or_insert(Stop::Source(error));
            return;
        }
        let host = staged.driver.hold(Held::Owned(slot));
        let mut state = staged.lock();
        let Some(at) = state.best_lane(chunk.bytes) else {
            state.give_back(chunk);
            drop(state);
            return self.recover(host);
        };
        let lane = &mut state.lanes[at];
        if lane.under_way_bytes == 0 {
            lane.worker.pace.begin(staged.driver.now_ns());
        }
        match lane.worker.lane.enqueue(staged.direction, HostSide::Packed(host), &chunk) {
            Ok(event) => {
                lane.under_way_bytes += chunk.bytes;
                drop(state);
                self.under_way.push_back(UnderWay { chunk, lane: at, event, host });
            }
            Err(error) => {
                state.fail(at, error);
                state.give_back(chunk);
                drop(state);
                self.recover(host);
            }
        }
    }

    /// Ends what is done.
    fn collect(&mut self) {
        while let Some(oldest) = self.under_way.front() {
            match self.staged.driver.query(oldest.event) {
                Ok(false) => return,
                Ok(true) => {
                    let Some(done) = self.under_way.pop_front() else { return };
                    self.end(done);
                }
                Err(error) => {
                    let Some(lost) = self.under_way.pop_front() else { return };
                    self.lose(lost, error);
                }
            }
        }
    }

    /// A chunk whose copies are done: empties its slot where the sink is the host's.
    fn end(&mut self, done: UnderWay) {
        let staged = self.staged;
        // Its last copy is done, and so the slot comes at once.
        let slot = loop {
            match staged.driver.take_back(done.host) {
                Ok(Some(slot)) => break slot,
                Ok(None) => thread::yield_now(),
                Err(error) => return self.lose(done, error),
            }
        };
        staged.driver.forget(done.event);
        staged.ends.empty(&done.chunk, (*slot).as_ref());
        self.free.push(slot);
        let now_ns = staged.driver.now_ns();
        let mut state = staged.lock();
        state.n_under_way -= 1;
        state.progress.done_bytes += done.chunk.bytes;
        let lane = &mut state.lanes[done.lane];
        lane.under_way_bytes -= done.chunk.bytes;
        lane.worker.pace.learn(done.chunk.bytes, now_ns);
        lane.worker.report.count(done.chunk.bytes);
        let progress = state.progress;
        drop(state);
        staged.control.tell(progress);
    }

    /// A chunk whose copies failed: it goes to other lanes.
    fn lose(&mut self, lost: UnderWay, error: DriverError) {
        let staged = self.staged;
        staged.driver.forget(lost.event);
        staged.driver.let_go(lost.host);
        staged.slots.forget();
        let mut state = staged.lock();
        state.n_slots -= 1;
        state.lanes[lost.lane].under_way_bytes -= lost.chunk.bytes;
        state.fail(lost.lane, error);
        state.give_back(lost.chunk);
    }

    /// Takes a slot back from which nothing, or not all, was enqueued.
    fn recover(&mut self, host: HostId) {
        if let Ok(Some(slot)) = self.staged.driver.take_back(host) {
            self.free.push(slot);
        } else {
            self.staged.driver.let_go(host);
            self.staged.slots.forget();
            self.staged.lock().n_slots -= 1;
        }
    }

    /// Puts the slots back that it does not use.
    fn put_free(&mut self) {
        let n_free = self.free.len();
        for slot in self.free.drain(..) {
            self.staged.slots.put(slot);
        }
        self.staged.lock().n_slots -= n_free;
    }

    /// Lets time pass: blocks until the own oldest chunk is done, or looks again.
    fn pause(&self) {
        match self.under_way.front() {
            // An error shows when the event is asked.
            Some(oldest) => drop(self.staged.driver.synchronize(oldest.event)),
            None => thread::yield_now(),
        }
    }
}

impl Drop for Thread<'_, '_, '_> {
    fn drop(&mut self) {
        self.put_free();
    }
}
