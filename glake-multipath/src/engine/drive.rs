//! How a transfer is moved that somebody waits for: over which lanes, by whom, and what becomes of the lanes.

use std::sync::Arc;

use glake_core::driver::{Driver, DriverError, Lent};
use glake_core::units::{DeviceId, DevicePtr};

use super::Transfer;
use crate::chunk::Chunks;
use crate::control::Control;
use crate::ends::Ends;
use crate::error::TransferError;
use crate::lane::{Direction, HostSide, Lane, Path};
use crate::mark::Mark;
use crate::report::{LaneReport, Report};
use crate::run::{Run, Worker};
use crate::staged::{Feeder, Staged, Staging};

/// What a transfer has to move.
pub(super) struct Errand<'a> {
    pub(super) direction: Direction,
    pub(super) chunks: Chunks,
    pub(super) host: Host<'a>,
    pub(super) after: Option<Arc<Mark>>,
    /// The devices whose links it uses.
    pub(super) devices: Vec<DeviceId>,
    /// What of the transfer was moved before.
    pub(super) before_bytes: u64,
}

/// The host's end of a transfer.
pub(super) enum Host<'a> {
    /// Copied from or to as it is.
    Lent(Lent<'a>),
    /// Copied through pinned slots.
    Staged(Ends<'a>),
    /// Not the host's: device memory from that address on.
    Device(DevicePtr),
    /// Memory of another device, copied through pinned slots.
    Fed(Box<Feeder>),
}

impl Transfer<'_> {
    pub(super) fn run(
        self,
        direction: Direction,
        chunks: Chunks,
        host: Host<'_>,
    ) -> Result<Report, TransferError> {
        let shared = &*self.engine.shared;
        let (start_ns, bytes) = (shared.driver.now_ns(), chunks.left_bytes());
        let after = self.mark()?;
        let lanes = shared.lanes_for(self.device, direction, &chunks, None)?;
        let (devices, mut reports) = (devices(self.device, &lanes), Vec::new());
        let errand = Errand { direction, chunks, host, after, devices, before_bytes: 0 };
        self.drive(errand, lanes, &mut reports)?;
        reports.sort_by_key(|lane| lane.path);
        Ok(Report { bytes, ns: shared.driver.now_ns() - start_ns, lanes: reports })
    }

    /// What it begins behind, from now on.
    pub(super) fn mark(&self) -> Result<Option<Arc<Mark>>, DriverError> {
        self.after.as_ref().map(|after| after.mark(&self.engine.shared.driver)).transpose()
    }

    /// Moves everything over `lanes`, which are the stock's again when it returns, and notes what each did.
    pub(super) fn drive(
        &self,
        errand: Errand<'_>,
        mut lanes: Vec<Lane>,
        reports: &mut Vec<LaneReport>,
    ) -> Result<(), TransferError> {
        let shared = &*self.engine.shared;
        let driver = &*shared.driver;
        let Errand { direction, chunks, host, after, devices, before_bytes } = errand;
        let (start_ns, bytes) = (driver.now_ns(), chunks.left_bytes());
        for lane in &mut lanes {
            lane.follow(after.clone());
        }
        let turn = shared.running.enter(&devices, self.priority);
        let on_progress = self.on_progress.or(self.shared_progress.as_deref());
        let control = Control::new(self.cancel.as_ref(), turn, on_progress).behind(before_bytes);
        let sizes = shared.config.sizes(lanes.len());
        let worker = |lane: Lane| {
            let rate = shared.rate(self.device, direction, lane.path());
            Worker::new(lane, rate, start_ns)
        };
        let workers: Vec<_> = lanes.into_iter().map(worker).collect();
        let staging = |n_threads| Staging {
            driver,
            control: &control,
            slots: &shared.slots,
            device: self.device,
            direction,
            threads: if n_threads > 1 { shared.threads() } else { None },
            n_threads,
        };
        let (outcome, well, failed) = match host {
            Host::Lent(lent) => {
                let mut run = Run::new(driver, &control, direction, sizes, chunks, workers);
                let outcome = lend(driver, lent, &mut run);
                (outcome, run.workers, run.failed)
            }
            Host::Device(src) => {
                let mut run = Run::new(driver, &control, direction, sizes, chunks, workers);
                let outcome = run.drive(HostSide::Device(src));
                (outcome, run.workers, run.failed)
            }
            Host::Staged(ends) => {
                let n_threads = shared.config.staging_threads(workers.len(), bytes);
                let mut staged = Staged::new(staging(n_threads), chunks, workers);
                let outcome = staged.drive(ends);
                let (well, failed) = staged.into_lanes();
                (outcome, well, failed)
            }
            Host::Fed(mut feeder) => {
                feeder.lane.follow(after);
                let mut staged = Staged::fed(staging(1), chunks, workers, feeder);
                let outcome = staged.drive(Ends::Memory(&[]));
                if let Some(feeder) = staged.feeder.take() {
                    shared.put_feeder(*feeder);
                }
                let (well, failed) = staged.into_lanes();
                (outcome, well, failed)
            }
        };
        reports.extend(well.iter().chain(&failed).map(|worker| worker.report));
        shared.put_all(self.device, well.into_iter().map(|worker| worker.lane).collect());
        for worker in failed {
            shared.lanes.drop_lane(&shared.config, self.device, worker.lane);
        }
        control.end();
        outcome
    }
}

/// Runs a transfer of memory that is lent to the driver meanwhile.
fn lend(driver: &dyn Driver, memory: Lent<'_>, run: &mut Run<'_>) -> Result<(), TransferError> {
    if run.is_at_once() {
        let became = driver.lend(memory, &mut |host| run.enqueue(HostSide::Whole(host)));
        return run.end(became);
    }
    let mut outcome = None;
    let lent = driver.lend(memory, &mut |host| {
        outcome = Some(run.drive(HostSide::Whole(host)));
        Ok(())
    });
    // Each chunk was seen done, so what else lending says is of lanes that failed.
    outcome.unwrap_or_else(|| lent.map_err(TransferError::from))
}

/// The devices whose links a transfer uses.
pub(super) fn devices(device: DeviceId, lanes: &[Lane]) -> Vec<DeviceId> {
    let relays = lanes.iter().filter_map(|lane| match lane.path() {
        Path::Direct | Path::Host => None,
        Path::Via(relay) => Some(relay),
    });
    std::iter::once(device).chain(relays).collect()
}
