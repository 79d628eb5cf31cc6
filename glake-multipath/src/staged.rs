//! One transfer through pinned slots: threads fill them, or empty them, and the calling thread does all else. In a copy
//! from a device that the target cannot reach, that device fills them.
//!
//! Only one thread calls the driver. Calls of several threads wait for each other's locks there, which takes longer
//! than the calls. A chunk goes to the lane that would end it first, by what is under way on each and the pace at
//! which it has moved so far.

use std::collections::VecDeque;
use std::io;
use std::thread;
use std::time::Duration;

use glake_core::driver::{Driver, DriverError, HostBuffer};
use glake_core::units::{DeviceId, DevicePtr, EventId, HostId};
use rayon_core::ThreadPool;

use crate::chunk::{Chunk, Chunks};
use crate::control::{Control, Progress};
use crate::ends::Ends;
use crate::error::TransferError;
use crate::lane::{Direction, Lane, Path};
use crate::run::Worker;
use crate::slots::Slots;

mod copies;
mod desk;

use desk::{Desk, DoneJob, Job, Work};

/// The smallest chunk of a transfer that several threads work on.
const LEAST_BYTES: u64 = 256 << 10;
/// A chunk is at most this fraction of what is left for a thread.
const N_TURNS: u64 = 2;
/// Slots for each thread: one to work on, while others are copied or wait for it.
const SLOTS_PER_THREAD: usize = 3;

/// So many looks take less time than falling asleep.
const N_SPINS: u32 = 500;
/// How long to sleep between two looks.
const NAP: Duration = Duration::from_micros(100);

/// Why no chunk is begun any more.
#[derive(Debug)]
enum Stop {
    Source(io::Error),
    /// There is no slot, or none can be filled.
    Driver(DriverError),
}

/// The device that slots are filled from, where it is not threads that fill them.
#[derive(Debug)]
pub(crate) struct Feeder {
    pub(crate) device: DeviceId,
    /// Its own lane to the host.
    pub(crate) lane: Lane,
    /// Where the transfer's source begins there.
    pub(crate) src: DevicePtr,
    /// Whether a call failed on it.
    pub(crate) has_failed: bool,
}

/// A chunk that a lane has.
#[derive(Debug)]
struct UnderWay {
    chunk: Chunk,
    event: EventId,
    host: HostId,
}

#[derive(Debug)]
struct StagedLane {
    worker: Worker,
    under_way: VecDeque<UnderWay>,
    under_way_bytes: u64,
    has_failed: bool,
}

/// How a transfer is staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staging<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) control: &'a Control<'a>,
    pub(crate) slots: &'a Slots,
    /// The device that it is with.
    pub(crate) device: DeviceId,
    pub(crate) direction: Direction,
    /// The threads that fill or empty slots; without them the calling one does.
    pub(crate) threads: Option<&'a ThreadPool>,
    /// How many of them it uses.
    pub(crate) n_threads: usize,
}

/// A transfer through slots.
#[derive(Debug)]
pub(crate) struct Staged<'a> {
    staging: Staging<'a>,
    chunks: Chunks,
    lanes: Vec<StagedLane>,
    pub(crate) feeder: Option<Box<Feeder>>,
    progress: Progress,
    free: Vec<HostBuffer>,
    /// Slots that it has, wherever they are.
    n_slots: usize,
    /// Slots that threads have.
    n_out: usize,
    stop: Option<Stop>,
}

impl<'a> Staged<'a> {
    pub(crate) fn new(mut staging: Staging<'a>, chunks: Chunks, workers: Vec<Worker>) -> Self {
        // More threads than chunks or slots would have nothing to do.
        let n_chunks = chunks.left_bytes().div_ceil(staging.slots.slot_bytes().clamp(1, LEAST_BYTES));
        let n_chunks = usize::try_from(n_chunks).unwrap_or(usize::MAX);
        staging.n_threads = staging.n_threads.min(n_chunks).min(staging.slots.n_most()).max(1);
        let lane =
            |worker| StagedLane { worker, under_way: VecDeque::new(), under_way_bytes: 0, has_failed: false };
        Self {
            staging,
            progress: Progress { done_bytes: 0, total_bytes: chunks.left_bytes() },
            chunks,
            feeder: None,
            lanes: workers.into_iter().map(lane).collect(),
            free: Vec::new(),
            n_slots: 0,
            n_out: 0,
            stop: None,
        }
    }

    /// A transfer whose slots `feeder` fills.
    pub(crate) fn fed(
        staging: Staging<'a>,
        chunks: Chunks,
        mut workers: Vec<Worker>,
        feeder: Box<Feeder>,
    ) -> Self {
        for worker in &mut workers {
            worker.report.path = Path::Host;
        }
        Self { feeder: Some(feeder), ..Self::new(staging, chunks, workers) }
    }

    /// Moves everything. When it returns, nothing of it runs any more.
    ///
    /// # Errors
    /// [`TransferError`], with what did not arrive.
    pub(crate) fn drive(&mut self, ends: Ends<'_>) -> Result<(), TransferError> {
        let Staging { direction, threads, .. } = self.staging;
        let work = Work { direction, ends };
        // A pool's thread would do other work of that pool while it waits for the scope's end.
        let is_in_a_pool = rayon_core::current_thread_index().is_some();
        match threads.filter(|_| !is_in_a_pool) {
            Some(threads) => threads.in_place_scope(|scope| self.conduct(&Desk::new(&work, Some(scope)))),
            None => self.conduct(&Desk::new(&work, None)),
        }
        self.put_free();
        for lane in self.lanes.iter_mut().filter(|lane| lane.has_failed) {
            lane.worker.lane.quiesce();
        }
        if let Some(feeder) = self.feeder.as_mut().filter(|feeder| feeder.has_failed) {
            feeder.lane.quiesce();
        }
        self.outcome()
    }

    fn outcome(&mut self) -> Result<(), TransferError> {
        if self.chunks.left_bytes() == 0 {
            return Ok(());
        }
        let missing = self.chunks.clone().into_left();
        let no_path = |missing, source| TransferError::NoPath { missing, source: Box::new(source) };
        match self.stop.take() {
            Some(Stop::Source(source)) => Err(TransferError::Source { missing, source: Box::new(source) }),
            Some(Stop::Driver(source)) => Err(no_path(missing, source)),
            None => match self.last_error() {
                Some(source) => Err(no_path(missing, source)),
                None => Err(TransferError::Cancelled { missing }),
            },
        }
    }

    /// The lanes, those that failed last.
    pub(crate) fn into_lanes(self) -> (Vec<Worker>, Vec<Worker>) {
        let (failed, well): (Vec<_>, Vec<_>) = self.lanes.into_iter().partition(|lane| lane.has_failed);
        let worker = |lane: StagedLane| lane.worker;
        (well.into_iter().map(worker).collect(), failed.into_iter().map(worker).collect())
    }

    /// What the calling thread does until nothing is under way and nothing more can be begun.
    fn conduct(&mut self, desk: &Desk<'_, '_, '_>) {
        let mut n_looks: u32 = 0;
        loop {
            let mut has_moved = false;
            while let Some(done) = desk.take() {
                self.take(done);
                has_moved = true;
            }
            for at in 0..self.lanes.len() {
                has_moved |= self.collect(at, desk);
            }
            has_moved |= self.begin(desk);
            let n_copies: usize = self.lanes.iter().map(|lane| lane.under_way.len()).sum();
            if self.n_out == 0 && n_copies == 0 && (self.is_over() || self.chunks.left_bytes() == 0) {
                return;
            }
            n_looks = if has_moved { 0 } else { n_looks.saturating_add(1) };
            if n_looks > 0 {
                self.pause(desk, n_looks);
            }
        }
    }

    /// Whether nothing more is begun.
    fn is_over(&self) -> bool {
        self.staging.control.is_cancelled() || self.stop.is_some() || self.is_without_lane()
    }

    fn is_without_lane(&self) -> bool {
        self.lanes.iter().all(|lane| lane.has_failed)
    }

    fn last_error(&self) -> Option<DriverError> {
        let last = self.lanes.iter().rev().find_map(|lane| lane.worker.report.error);
        last.filter(|_| self.is_without_lane())
    }

    /// Begins chunks while there are slots for them, or one with a new slot, which takes a while to make. Whether it
    /// began any.
    fn begin(&mut self, desk: &Desk<'_, '_, '_>) -> bool {
        let mut has_begun = false;
        while self.chunks.left_bytes() > 0 && !self.is_over() {
            if self.staging.control.turn.must_wait() {
                // Who is waited for may wait for slots.
                self.put_free();
                break;
            }
            let is_new = self.free.is_empty();
            let Some(slot) = self.slot() else { break };
            let Some(chunk) = self.chunks.next(self.most_bytes()) else {
                self.free.push(slot);
                break;
            };
            match self.staging.direction {
                Direction::ToDevice if self.feeder.is_none() => self.leave(Job { chunk, slot }, desk),
                Direction::ToDevice | Direction::ToHost => self.enqueue(Job { chunk, slot }),
            }
            has_begun = true;
            if is_new {
                break;
            }
        }
        has_begun
    }

    /// The size of the next chunk: smaller ones towards the end, so that all threads end together and little is
    /// copied behind them.
    fn most_bytes(&self) -> u64 {
        let lanes = self.lanes.iter().filter(|lane| !lane.has_failed);
        let most_bytes = lanes.map(|lane| lane.worker.lane.most_bytes()).min().unwrap_or(u64::MAX);
        let share_bytes = self.chunks.left_bytes() / (N_TURNS * self.staging.n_threads as u64);
        most_bytes.min(share_bytes.max(LEAST_BYTES)).min(self.staging.slots.slot_bytes())
    }

    /// A free slot.
    fn slot(&mut self) -> Option<HostBuffer> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.n_slots >= SLOTS_PER_THREAD * self.staging.n_threads {
            return None;
        }
        match self.staging.slots.take(self.staging.device) {
            Ok(slot) => {
                self.n_slots += usize::from(slot.is_some());
                slot
            }
            Err(error) => {
                // Without any slot it cannot go on; with a few it is only slower.
                if self.n_slots == 0 {
                    self.stop.get_or_insert(Stop::Driver(error));
                }
                None
            }
        }
    }

    /// Has a slot filled or emptied.
    fn leave(&mut self, job: Job, desk: &Desk<'_, '_, '_>) {
        self.n_out += 1;
        desk.leave(job);
    }

    /// Takes a slot from the threads.
    fn take(&mut self, done: DoneJob) {
        self.n_out -= 1;
        let DoneJob { job, outcome } = done;
        match (outcome, self.staging.direction) {
            (Ok(()), Direction::ToDevice) => self.enqueue(job),
            (Ok(()), Direction::ToHost) => {
                self.free.push(job.slot);
                self.arrived(job.chunk.bytes);
            }
            (Err(error), _) => {
                self.free.push(job.slot);
                self.chunks.give_back(job.chunk);
                self.stop.get_or_insert(Stop::Source(error));
            }
        }
    }

    fn arrived(&mut self, bytes: u64) {
        self.progress.done_bytes += bytes;
        self.staging.control.tell(self.progress);
    }

    /// Puts the slots back that it does not use.
    fn put_free(&mut self) {
        self.n_slots -= self.free.len();
        for slot in self.free.drain(..) {
            self.staging.slots.put(slot);
        }
    }

    /// Lets time pass: waits for what comes first.
    fn pause(&mut self, desk: &Desk<'_, '_, '_>, n_looks: u32) {
        let mut busy = self.lanes.iter().filter_map(|lane| lane.under_way.front());
        match (self.n_out > 0, busy.next(), busy.next()) {
            // An error shows when the lane is asked.
            (false, Some(only), None) => drop(self.staging.driver.synchronize(only.event)),
            (_, Some(_), _) if n_looks < N_SPINS => std::hint::spin_loop(),
            (false, Some(one), Some(_)) => drop(self.staging.driver.synchronize(one.event)),
            (false, None, _) if n_looks < N_SPINS => thread::yield_now(),
            _ => {
                if let Some(done) = desk.wait(NAP) {
                    self.take(done);
                }
            }
        }
    }
}
