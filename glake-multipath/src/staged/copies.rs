//! The copies between slots and devices: what lanes are given, and what comes of it.

use std::thread;

use glake_core::driver::{Driver, DriverError, Held, HostBuffer};
use glake_core::units::HostId;

use super::desk::{Desk, Job};
use super::{Staged, StagedLane, Staging, Stop, UnderWay};
use crate::chunk::Chunk;
use crate::lane::{Direction, HostSide};

impl Staged<'_> {
    /// The lane that would end a chunk of `bytes` first.
    fn best_lane(&self, bytes: u64) -> Option<usize> {
        let well = self.lanes.iter().enumerate().filter(|(_, lane)| !lane.has_failed);
        let end = |(_, lane): &(usize, &StagedLane)| {
            u128::from(lane.under_way_bytes + bytes) * 1_000_000 / u128::from(lane.worker.pace.rate())
        };
        well.min_by_key(end).map(|(at, _)| at)
    }

    /// Passes a slot to a lane.
    pub(super) fn enqueue(&mut self, job: Job) {
        let Staging { driver, direction, .. } = self.staging;
        let Job { chunk, slot } = job;
        let Some(at) = self.best_lane(chunk.bytes) else {
            self.free.push(slot);
            return self.chunks.give_back(chunk);
        };
        let host = driver.hold(Held::Owned(slot));
        if let Err(error) = self.feed(at, host, &chunk) {
            self.stop.get_or_insert(Stop::Driver(error));
            self.chunks.give_back(chunk);
            return self.recover(host);
        }
        let lane = &mut self.lanes[at];
        if lane.under_way.is_empty() {
            lane.worker.pace.begin(driver.now_ns());
        }
        match lane.worker.lane.enqueue(direction, HostSide::Packed(host), &chunk) {
            Ok(event) => {
                lane.under_way_bytes += chunk.bytes;
                lane.under_way.push_back(UnderWay { chunk, event, host });
            }
            Err(error) => {
                self.fail(at, error);
                self.chunks.give_back(chunk);
                self.recover(host);
            }
        }
    }

    /// Has a slot filled from the device that feeds the transfer, if one does, before the lane goes on.
    fn feed(&mut self, at: usize, host: HostId, chunk: &Chunk) -> Result<(), DriverError> {
        let Some(feeder) = &mut self.feeder else { return Ok(()) };
        let (driver, lane) = (self.staging.driver, &self.lanes[at].worker.lane);
        let source = chunk.source(feeder.src);
        let fed =
            feeder.lane.enqueue(Direction::ToHost, HostSide::Packed(host), &source).and_then(|filled| {
                let waited = lane.wait(filled);
                driver.forget(filled);
                waited
            });
        feeder.has_failed |= fed.is_err();
        fed
    }

    /// Takes off what is done on a lane. Whether anything was.
    pub(super) fn collect(&mut self, at: usize, desk: &Desk<'_, '_, '_>) -> bool {
        let driver = self.staging.driver;
        let mut has_moved = false;
        while let Some(oldest) = self.lanes[at].under_way.front() {
            let became = driver.query(oldest.event);
            if became == Ok(false) {
                break;
            }
            has_moved = true;
            let Some(done) = self.lanes[at].under_way.pop_front() else { break };
            self.lanes[at].under_way_bytes -= done.chunk.bytes;
            driver.forget(done.event);
            let is_well = became.and_then(|_| self.lanes[at].worker.lane.relay_is_well());
            match is_well.and_then(|()| take_back(driver, done.host)) {
                Ok(slot) => self.copied(at, Job { chunk: done.chunk, slot }, desk),
                Err(error) => {
                    driver.let_go(done.host);
                    self.lose_slot();
                    self.fail(at, error);
                    self.chunks.give_back(done.chunk);
                }
            }
        }
        has_moved
    }

    /// A slot that a lane is done with.
    fn copied(&mut self, at: usize, job: Job, desk: &Desk<'_, '_, '_>) {
        let worker = &mut self.lanes[at].worker;
        worker.pace.learn(job.chunk.bytes, self.staging.driver.now_ns());
        worker.report.count(job.chunk.bytes);
        match self.staging.direction {
            Direction::ToDevice => {
                self.free.push(job.slot);
                self.arrived(job.chunk.bytes);
            }
            Direction::ToHost => self.leave(job, desk),
        }
    }

    fn fail(&mut self, at: usize, error: DriverError) {
        let others = self.lanes.iter().enumerate().filter(|(other, lane)| *other != at && !lane.has_failed);
        let streams: Vec<_> = others.flat_map(|(_, other)| other.worker.lane.streams()).collect();
        let lane = &mut self.lanes[at];
        lane.worker.lane.fail(error, streams);
        if !lane.has_failed {
            tracing::warn!(path = ?lane.worker.lane.path(), %error, "a lane failed; the others go on");
            (lane.has_failed, lane.worker.report.error) = (true, Some(error));
        }
    }

    /// Takes a slot back from which nothing, or not all, was enqueued.
    fn recover(&mut self, host: HostId) {
        if let Ok(Some(slot)) = self.staging.driver.take_back(host) {
            self.free.push(slot);
        } else {
            self.staging.driver.let_go(host);
            self.lose_slot();
        }
    }

    /// A slot does not come back.
    fn lose_slot(&mut self) {
        self.n_slots -= 1;
        self.staging.slots.forget();
    }
}

/// A slot whose last copy is done, and which therefore comes at once.
fn take_back(driver: &dyn Driver, host: HostId) -> Result<HostBuffer, DriverError> {
    loop {
        if let Some(slot) = driver.take_back(host)? {
            return Ok(slot);
        }
        thread::yield_now();
    }
}
