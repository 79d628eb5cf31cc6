//! One transfer, driven by the calling thread: lanes ask for chunks, and what a failed lane held goes to
//! the others.

use std::thread;

use glake_core::driver::{Driver, DriverError};

use crate::chunk::{Chunk, Chunks};
use crate::control::{Control, Progress};
use crate::error::TransferError;
use crate::lane::{Direction, HostSide, Lane, PushError, Route};
use crate::pace::{Pace, Sizes};
use crate::report::LaneReport;

/// A lane at work.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) lane: Lane,
    pub(crate) report: LaneReport,
    pub(crate) pace: Pace,
    /// Whether its first chunk was refused: nothing of the transfer was enqueued.
    is_refused: bool,
}

impl Worker {
    /// A lane that is expected to move `rate` bytes per millisecond.
    pub(crate) fn new(lane: Lane, rate: u64, now_ns: u64) -> Self {
        let report = LaneReport::new(lane.path());
        Self { lane, report, pace: Pace::new(rate, now_ns), is_refused: false }
    }
}

/// So few bytes are copied by one call of the driver, which nobody cancels meanwhile.
const AT_ONCE_BYTES: u64 = 16 << 20;

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    driver: &'a dyn Driver,
    control: &'a Control<'a>,
    direction: Direction,
    sizes: Sizes,
    chunks: Chunks,
    progress: Progress,
    /// What is waited for all at once.
    enqueued: Vec<Chunk>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) failed: Vec<Worker>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(
        driver: &'a dyn Driver,
        control: &'a Control<'a>,
        direction: Direction,
        sizes: Sizes,
        chunks: Chunks,
        workers: Vec<Worker>,
    ) -> Self {
        let progress = Progress { done_bytes: 0, total_bytes: chunks.left_bytes() };
        let (enqueued, failed) = (Vec::new(), Vec::new());
        Self { driver, control, direction, sizes, chunks, progress, enqueued, workers, failed }
    }

    /// Moves everything, from or to `side`. When it returns, nothing of it runs any more.
    ///
    /// # Errors
    /// [`TransferError::Cancelled`] and [`TransferError::NoPath`], with what did not arrive.
    pub(crate) fn drive(&mut self, side: HostSide) -> Result<(), TransferError> {
        let mut n_looks: u32 = 0;
        loop {
            let has_settled = self.settle();
            let is_cancelled = self.control.is_cancelled();
            let has_pushed = !is_cancelled && !self.control.turn.must_wait() && self.deal(side);
            let is_idle = self.workers.iter().all(|worker| worker.lane.is_idle());
            let ends = is_cancelled || self.workers.is_empty() || self.chunks.left_bytes() == 0;
            if is_idle && ends {
                break;
            }
            n_looks = if has_settled || has_pushed { 0 } else { n_looks.saturating_add(1) };
            if n_looks > 0 {
                self.pause(n_looks);
            }
        }
        for worker in self.failed.iter_mut().filter(|worker| !worker.is_refused) {
            worker.lane.quiesce();
        }
        self.outcome()
    }

    /// Whether it is so little, over the device's own link alone, that all of it is enqueued at once, and waited for
    /// by the end of the memory's loan.
    pub(crate) fn is_at_once(&self) -> bool {
        let [worker] = &*self.workers else { return false };
        worker.lane.route() == Route::Direct
            && self.chunks.left_bytes() <= AT_ONCE_BYTES
            && !self.control.is_cancelled()
            && !self.control.turn.must_wait()
    }

    /// Enqueues everything, from or to `side`.
    ///
    /// # Errors
    /// Those of the driver. Parts may have been enqueued.
    pub(crate) fn enqueue(&mut self, side: HostSide) -> Result<(), DriverError> {
        let [worker] = &mut *self.workers else { return Ok(()) };
        while let Some(chunk) = self.chunks.next(AT_ONCE_BYTES) {
            let enqueued = worker.lane.push_unmarked(self.direction, side, &chunk);
            self.enqueued.push(chunk);
            enqueued?;
        }
        Ok(())
    }

    /// Takes note of what became of everything that was enqueued. Nothing of it runs any more.
    ///
    /// # Errors
    /// [`TransferError::NoPath`], with all of it, if that was an error.
    pub(crate) fn end(&mut self, became: Result<(), DriverError>) -> Result<(), TransferError> {
        let enqueued = std::mem::take(&mut self.enqueued);
        match became {
            Ok(()) => {
                for chunk in enqueued {
                    self.progress.done_bytes += chunk.bytes;
                    self.workers.iter_mut().for_each(|worker| worker.report.count(chunk.bytes));
                }
                if self.progress.total_bytes > 0 {
                    self.control.tell(self.progress);
                }
            }
            Err(error) => {
                for chunk in enqueued {
                    self.chunks.give_back(chunk);
                }
                self.fail(0, error);
                for worker in &mut self.failed {
                    worker.lane.quiesce();
                }
            }
        }
        self.outcome()
    }

    fn outcome(&mut self) -> Result<(), TransferError> {
        if self.chunks.left_bytes() == 0 {
            return Ok(());
        }
        let missing = self.chunks.clone().into_left();
        match self.failed.last().and_then(|worker| worker.report.error) {
            Some(error) if self.workers.is_empty() => {
                Err(TransferError::NoPath { missing, source: Box::new(error) })
            }
            _ => Err(TransferError::Cancelled { missing }),
        }
    }

    /// Takes off what is done. Whether anything was.
    fn settle(&mut self) -> bool {
        let before = self.progress.done_bytes;
        let mut at = 0;
        while let Some(worker) = self.workers.get_mut(at) {
            match worker.lane.settle() {
                Ok(None) => at += 1,
                Ok(Some(chunk)) => {
                    worker.pace.learn(chunk.bytes, self.driver.now_ns());
                    worker.report.count(chunk.bytes);
                    self.progress.done_bytes += chunk.bytes;
                    self.control.tell(self.progress);
                }
                Err(error) => self.fail(at, error),
            }
        }
        self.progress.done_bytes > before
    }

    /// Gives chunks to the lanes in turns, until none has room. Whether any was given.
    fn deal(&mut self, side: HostSide) -> bool {
        let mut has_pushed = false;
        loop {
            let mut is_full = true;
            let mut at = 0;
            while at < self.workers.len() {
                let rates = self.workers.iter().map(|worker| worker.pace.rate()).fold(0, u64::saturating_add);
                let worker = &mut self.workers[at];
                at += 1;
                if !worker.lane.has_room() {
                    continue;
                }
                let bytes = self.sizes.next(self.chunks.left_bytes(), worker.pace.rate(), rates);
                let Some(chunk) = self.chunks.next(bytes.min(worker.lane.most_bytes())) else {
                    return has_pushed;
                };
                if worker.lane.is_idle() {
                    worker.pace.begin(self.driver.now_ns());
                }
                match worker.lane.push(self.direction, side, chunk) {
                    Ok(()) => (is_full, has_pushed) = (false, true),
                    Err(PushError { chunk, error }) => {
                        let is_first = worker.lane.is_idle() && worker.report.n_chunks == 0;
                        let is_refused = matches!(error, DriverError::NoAccess(_)) && chunk.pieces.len() == 1;
                        worker.is_refused = is_first && is_refused;
                        self.chunks.give_back(chunk);
                        at -= 1;
                        self.fail(at, error);
                    }
                }
            }
            if is_full {
                return has_pushed;
            }
        }
    }

    /// Takes a lane out; what it held is for the others.
    fn fail(&mut self, at: usize, error: DriverError) {
        let mut worker = self.workers.remove(at);
        let path = worker.lane.path();
        if worker.is_refused {
            tracing::debug!(?path, %error, "a lane may not go there");
        } else {
            tracing::warn!(?path, %error, "a lane failed; the others go on");
        }
        for chunk in worker.lane.take_all() {
            self.chunks.give_back(chunk);
        }
        worker.report.error = Some(error);
        worker.lane.fail(error, self.workers.iter().flat_map(|other| other.lane.streams()));
        self.failed.push(worker);
    }

    /// Lets time pass. Where several lanes are busy it looks again, to see which one ends first; where one
    /// is, and where nothing has ended for long, it blocks.
    fn pause(&self, n_looks: u32) {
        let mut busy = self.workers.iter().filter_map(|worker| worker.lane.oldest());
        match (busy.next(), busy.next()) {
            (Some(_), Some(_)) if n_looks < SPINS => std::hint::spin_loop(),
            (Some(_), Some(_)) if n_looks < MOST_LOOKS => thread::yield_now(),
            // An error shows when the lane is asked.
            (Some(event), _) => drop(self.driver.synchronize(event)),
            (None, _) => thread::yield_now(),
        }
    }
}

/// So many looks take less time than giving the processor away.
const SPINS: u32 = 200;
/// So many looks take longer than a chunk does.
const MOST_LOOKS: u32 = 2000;
