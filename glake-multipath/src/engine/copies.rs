//! Copies from one device to another, or within one: by the driver's own copy, through slots on the source, or through
//! the host.

use glake_core::driver::DriverError;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};

use super::drive::{Errand, Host, devices};
use super::{Shared, Transfer};
use crate::busy::Behind;
use crate::chunk::{Chunks, Segment, Side};
use crate::error::TransferError;
use crate::lane::{Direction, HostSide, Lane, Route};
use crate::mark::Mark;
use crate::pending::Pending;
use crate::report::{LaneReport, Report};
use crate::staged::Feeder;

/// A way to a device from another, or from itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The target's copy engine reads the source.
    Direct,
    /// The source's copies to slots there, which the target reaches, and the target's from them.
    Slots,
    /// Through pinned memory, over two links.
    Host,
}

/// # From device to device
///
/// The device of [`Engine::on`](super::Engine::on) is copied to. Where it reaches the memory of the other one, and has
/// access to what is copied, its copy engine reads it. Where it has no access, as to memory that only its own device
/// uses, the source copies to slots that the engine keeps there, and the target on from them. Where it does not reach
/// the other device at all, or both ways fail, bytes go through pinned memory of the host. Each way takes over
/// what the one before could not move; [`Path`](crate::Path) in the report says which it was.
///
/// [`Segment::host_offset`] is an offset in the source's range, also in errors. Places that are written must not overlap
/// those that are read: the error is [`InvalidSegments`](crate::InvalidSegments). That is told by addresses, not by what
/// is mapped there.
///
/// ```
/// # use std::sync::Arc;
/// # use glake_core::driver::{Access, VirtualMemory};
/// # use glake_core::sim::SimDriver;
/// # use glake_core::units::{DeviceId, PAGE_BYTES};
/// # use glake_multipath::{Config, Engine};
/// # let driver = Arc::new(SimDriver::h200(2));
/// # let memory = |device| {
/// #     let range = driver.reserve(PAGE_BYTES, PAGE_BYTES)?;
/// #     driver.map(range.start, driver.create(device, range.bytes)?)?;
/// #     driver.set_access(range, &[device], Access::ReadWrite)?;
/// #     Ok::<_, glake_core::driver::DriverError>(range.start)
/// # };
/// let (one, other) = (DeviceId(0), DeviceId(1));
/// let (src, dst) = (memory(one)?, memory(other)?);
/// let engine = Engine::new(Arc::clone(&driver), Config::new())?;
/// engine.on(one).write(src, &[7; 1000])?;
/// engine.on(other).copy(dst, one, src, 1000)?;
/// let mut back = [0; 1000];
/// engine.on(other).read(dst, &mut back)?;
/// assert_eq!(back, [7; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Transfer<'_> {
    /// Copies `bytes` bytes from `source` at `src` to the device at `dst`.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive.
    pub fn copy(
        self,
        dst: DevicePtr,
        source: DeviceId,
        src: DevicePtr,
        bytes: u64,
    ) -> Result<Report, TransferError> {
        let segment = Segment { host_offset: 0, device: dst, bytes };
        self.copy_segments(&[segment], source, AddressRange::new(src, bytes))
    }

    /// Copies parts of `src`, which is memory of `source`, to places on the device, which overlap neither each other nor
    /// those parts.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that did not arrive.
    pub fn copy_segments(
        self,
        segments: &[Segment],
        source: DeviceId,
        src: AddressRange,
    ) -> Result<Report, TransferError> {
        let chunks = Chunks::between(segments, src)?;
        let bytes = chunks.left_bytes();
        if bytes == 0 {
            return Ok(Report::default());
        }
        // Once, before the first way: the others come behind the same.
        let after = self.mark()?;
        let go = |way, chunks: Chunks, reports: &mut Vec<LaneReport>| {
            let before_bytes = bytes - chunks.left_bytes();
            let missing = chunks.clone();
            let (lane, host) = match self.prepare(way, source, src.start) {
                Ok(prepared) => prepared,
                Err(error) => return Err(no_path(missing, error)),
            };
            let lanes = vec![lane];
            let mut devices = devices(self.device, &lanes);
            if !devices.contains(&source) {
                devices.push(source);
            }
            let direction = Direction::ToDevice;
            let errand = Errand { direction, chunks, host, after: after.clone(), devices, before_bytes };
            self.drive(errand, lanes, reports)?;
            // Nothing that was enqueued there says so.
            let is_well = way != Way::Direct || source == self.device;
            let told = if is_well { Ok(()) } else { self.engine.shared.is_well(source) };
            told.map_err(|error| no_path(missing, error))
        };
        self.over(ways(&self, source), chunks, src, go)
    }

    /// Enqueues a copy of `bytes` bytes from `source` at `src` to the device at `dst`, behind the work of `stream` and
    /// before what follows there. Never through the host: that is refused with
    /// [`DriverError::NoPeerAccess`], in [`TransferError::NoPath`].
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that will not arrive.
    pub fn enqueue_copy(
        self,
        dst: DevicePtr,
        source: DeviceId,
        src: DevicePtr,
        bytes: u64,
        stream: StreamId,
    ) -> Result<Report, TransferError> {
        let segment = Segment { host_offset: 0, device: dst, bytes };
        self.enqueue_copy_segments(&[segment], source, AddressRange::new(src, bytes), stream)
    }

    /// Enqueues copies of parts of `src`, as [`copy_segments`](Self::copy_segments) takes them. Otherwise as
    /// [`enqueue_copy`](Self::enqueue_copy).
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that will not arrive.
    pub fn enqueue_copy_segments(
        self,
        segments: &[Segment],
        source: DeviceId,
        src: AddressRange,
        stream: StreamId,
    ) -> Result<Report, TransferError> {
        let chunks = Chunks::between(segments, src)?;
        self.may_enqueue(&chunks, stream)?;
        if chunks.left_bytes() == 0 {
            return Ok(Report::default());
        }
        let shared = &*self.engine.shared;
        let give = |way, mut chunks: Chunks, reports: &mut Vec<LaneReport>| {
            let Some(route) = route(way, source) else {
                return Err(no_path(chunks, DriverError::NoPeerAccess(self.device)));
            };
            let lane = match shared.lane(self.device, route, Some(Behind::stream(stream))) {
                Ok(lane) => lane,
                Err(error) => return Err(no_path(chunks, error)),
            };
            let side = HostSide::Device(src.start);
            self.give(Direction::ToDevice, &mut chunks, side, vec![lane], stream, reports)
        };
        let ways = ways(&self, source);
        let ways = ways.strip_suffix(&[Way::Host]).filter(|ways| !ways.is_empty()).unwrap_or(ways);
        self.over(ways, chunks, src, give)
    }

    /// Goes one way after the other, each for what those before could not move.
    fn over(
        &self,
        ways: &[Way],
        chunks: Chunks,
        src: AddressRange,
        mut go: impl FnMut(Way, Chunks, &mut Vec<LaneReport>) -> Result<(), TransferError>,
    ) -> Result<Report, TransferError> {
        let driver = &*self.engine.shared.driver;
        let (start_ns, bytes) = (driver.now_ns(), chunks.left_bytes());
        let (mut left, mut reports) = (chunks, Vec::new());
        let mut outcome = Ok(());
        for way in ways {
            outcome = go(*way, left.clone(), &mut reports);
            let Err(TransferError::NoPath { missing, source }) = &outcome else { break };
            tracing::debug!(?way, error = %source, "a copy between devices goes another way");
            left = Chunks::new(missing, src.bytes, Side::Device)?;
        }
        outcome?;
        Ok(Report { bytes, ns: driver.now_ns() - start_ns, lanes: reports })
    }

    /// The lane of a way, and what it copies from.
    fn prepare(
        &self,
        way: Way,
        source: DeviceId,
        src: DevicePtr,
    ) -> Result<(Lane, Host<'static>), DriverError> {
        let shared = &*self.engine.shared;
        if let Some(route) = route(way, source) {
            return Ok((shared.lane(self.device, route, None)?, Host::Device(src)));
        }
        let lane = shared.lane(source, Route::Direct, None)?;
        let feeder = Feeder { device: source, lane, src, has_failed: false };
        match shared.lane(self.device, Route::Direct, None) {
            Ok(lane) => Ok((lane, Host::Fed(Box::new(feeder)))),
            Err(error) => {
                shared.put_feeder(feeder);
                Err(error)
            }
        }
    }
}

impl Transfer<'static> {
    /// Copies `bytes` bytes from `source` at `src` to the device at `dst`, in the background. The memory is the caller's
    /// to keep until that is over.
    pub fn submit_copy(
        self,
        dst: DevicePtr,
        source: DeviceId,
        src: DevicePtr,
        bytes: u64,
    ) -> Pending<Report> {
        let segment = Segment { host_offset: 0, device: dst, bytes };
        self.submit_copy_segments(vec![segment], source, AddressRange::new(src, bytes))
    }

    /// Copies parts of `src`, as [`copy_segments`](Self::copy_segments) takes them, in the background.
    pub fn submit_copy_segments(
        self,
        segments: Vec<Segment>,
        source: DeviceId,
        src: AddressRange,
    ) -> Pending<Report> {
        let copy = |transfer: Self, segments: &[Segment], from: &mut (DeviceId, AddressRange)| {
            transfer.copy_segments(segments, from.0, from.1)
        };
        self.submit(segments, (source, src), copy, |outcome, _| outcome)
    }
}

/// The ways from `source` to a transfer's device, the best one first.
fn ways(transfer: &Transfer<'_>, source: DeviceId) -> &'static [Way] {
    let place = transfer.engine.shared.topology.place(transfer.device);
    if source == transfer.device {
        &[Way::Direct]
    } else if place.is_some_and(|place| place.peers.contains(&source)) {
        &[Way::Direct, Way::Slots, Way::Host]
    } else {
        &[Way::Host]
    }
}

/// The route of the lane that goes a way alone.
fn route(way: Way, source: DeviceId) -> Option<Route> {
    match way {
        Way::Direct => Some(Route::Direct),
        Way::Slots => Some(Route::Via(source)),
        Way::Host => None,
    }
}

fn no_path(chunks: Chunks, error: DriverError) -> TransferError {
    TransferError::NoPath { missing: chunks.into_left(), source: Box::new(error) }
}

impl Shared {
    fn lane(&self, device: DeviceId, route: Route, behind: Option<Behind>) -> Result<Lane, DriverError> {
        self.take_lane(device, route, behind)?.ok_or(DriverError::OutOfMemory)
    }

    /// Takes the lane back that filled a transfer's slots.
    pub(super) fn put_feeder(&self, feeder: Feeder) {
        if feeder.has_failed {
            self.lanes.drop_lane(&self.config, feeder.device, feeder.lane);
        } else {
            self.lanes.put(feeder.device, feeder.lane);
        }
    }

    /// Whether a device that was read from is not lost: what it had then may be anything.
    fn is_well(&self, device: DeviceId) -> Result<(), DriverError> {
        let lane = self.lane(device, Route::Direct, None)?;
        let mut streams = lane.streams();
        let told = streams.try_for_each(|stream| {
            let mark = Mark::record(&self.driver, stream)?;
            self.driver.query(mark.event()).map(drop)
        });
        match told {
            Ok(()) => self.lanes.put(device, lane),
            Err(_) => self.lanes.drop_lane(&self.config, device, lane),
        }
        told
    }
}
