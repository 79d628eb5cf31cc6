//! Transfers that a stream waits for: in order with its work, and no thread waits for them.

use std::fmt;
use std::sync::Arc;

use glake_core::driver::{Driver, DriverError, Held, HostBuffer, SharedBytes};
use glake_core::units::{DeviceId, DevicePtr, HostId, StreamId};

use super::{Shared, Transfer};
use crate::busy::Behind;
use crate::chunk::{Chunks, Segment, Side};
use crate::control::Cancel;
use crate::enqueue::{Enqueue, Giving};
use crate::error::TransferError;
use crate::lane::{Direction, HostSide, Lane};
use crate::mark::{After, Mark};
use crate::report::{LaneReport, Report};

/// A read that was enqueued, whose buffer the driver keeps until it is done.
///
/// Dropping it waits for nothing: the buffer is freed when the read is done. Forgetting it leaks the buffer.
#[must_use = "the buffer is freed with it"]
pub struct EnqueuedRead {
    driver: Arc<dyn Driver>,
    host: HostId,
    /// Behind the read on its stream; `None` if it could not be recorded.
    end: Option<Mark>,
    report: Report,
}

impl EnqueuedRead {
    /// What was enqueued on which lane; its time is the host's.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The buffer if the read is done, `None` while it is pending.
    ///
    /// # Errors
    /// [`DriverError::UnknownHost`] if it was taken already; [`DriverError::DeviceLost`] if a device that
    /// took part is lost, be it a relay without which the read was done: the buffer stays with the driver.
    pub fn try_take(&mut self) -> Result<Option<HostBuffer>, DriverError> {
        self.driver.take_back(self.host)
    }

    /// Blocks until the read is done.
    ///
    /// # Errors
    /// As [`try_take`](Self::try_take).
    pub fn wait(mut self) -> Result<HostBuffer, DriverError> {
        loop {
            if let Some(buffer) = self.try_take()? {
                return Ok(buffer);
            }
            match self.end.take() {
                Some(end) => self.driver.synchronize(end.event())?,
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for EnqueuedRead {
    fn drop(&mut self) {
        self.driver.let_go(self.host);
    }
}

impl fmt::Debug for EnqueuedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnqueuedRead").field("report", &self.report).finish_non_exhaustive()
    }
}

/// Why a read could not be enqueued, and the way to its buffer: parts of it may be enqueued.
#[derive(Debug, thiserror::Error)]
#[error("the read could not be enqueued, and gives its buffer back")]
#[non_exhaustive]
pub struct FailedRead {
    /// Why.
    #[source]
    pub error: TransferError,
    /// Where the buffer comes back, once what was enqueued of it is done.
    pub buffer: EnqueuedRead,
}

impl From<FailedRead> for TransferError {
    fn from(failed: FailedRead) -> Self {
        failed.error
    }
}

/// # Behind a stream's work, and before what follows
///
/// Everything is enqueued in the call, on lanes chosen by what they are expected to do; the call does not
/// wait, as long as the memory is pinned ([`HostMemory::pin`](glake_core::driver::HostMemory::pin)): of other
/// memory the driver may read or write parts before it returns. The transfer begins when the work of `stream` so far is done, and what is enqueued there later waits
/// for it. Priority and progress say nothing to it, and it is cancelled only before it is enqueued. Nobody looks
/// whether its copies run: a device that is lost later says so where it is next used.
///
/// A lane that fails while it is given chunks hands them to the others. If none is left, the error
/// names the ranges that will not arrive, and `stream` waits for what was enqueued all the same. Only where
/// the driver refuses that, too, does the call wait for the device instead. A stream that is captured is
/// refused with [`DriverError::Capturing`], and nothing was enqueued.
///
/// ```
/// # use std::sync::Arc;
/// # use glake_core::driver::{Access, Copies, StreamOrder, VirtualMemory};
/// # use glake_core::sim::SimDriver;
/// # use glake_core::units::{AddressRange, DeviceId, PAGE_BYTES};
/// # use glake_multipath::{Config, Engine};
/// # let driver = Arc::new(SimDriver::h200(2));
/// # let device = DeviceId(0);
/// # let range = driver.reserve(8 * PAGE_BYTES, PAGE_BYTES)?;
/// # driver.map(range.start, driver.create(device, range.bytes)?)?;
/// # driver.set_access(range, &[device], Access::ReadWrite)?;
/// let engine = Engine::new(Arc::clone(&driver), Config::new())?;
/// let stream = driver.create_stream(device)?;
/// engine.on(device).enqueue_write(range.start, Arc::new(vec![7; 16 << 20]), stream)?;
/// driver.fill(AddressRange::new(range.start, 1), 9, stream)?; // behind it
/// let read = engine.on(device).enqueue_read(range.start, Box::new(vec![0; 3]), stream)?;
/// assert_eq!((*read.wait()?).as_ref(), [9, 7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Transfer<'_> {
    /// Enqueues a copy of `src` to the device at `dst`. The bytes are kept until it is done. What is returned
    /// says what was enqueued on which lane; its time is the host's.
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that will not arrive.
    pub fn enqueue_write(
        self,
        dst: DevicePtr,
        src: SharedBytes,
        stream: StreamId,
    ) -> Result<Report, TransferError> {
        let bytes = (*src).as_ref().len() as u64;
        self.enqueue_write_segments(&[Segment { host_offset: 0, device: dst, bytes }], src, stream)
    }

    /// Enqueues copies of parts of `src` to places on the device, which do not overlap. Otherwise as
    /// [`enqueue_write`](Self::enqueue_write).
    ///
    /// # Errors
    /// [`TransferError`], with the ranges that will not arrive.
    pub fn enqueue_write_segments(
        self,
        segments: &[Segment],
        src: SharedBytes,
        stream: StreamId,
    ) -> Result<Report, TransferError> {
        let chunks = Chunks::new(segments, (*src).as_ref().len() as u64, Side::Device)?;
        let driver = &self.engine.shared.driver;
        let host = driver.hold(Held::Shared(src));
        let enqueued = self.enqueue(Direction::ToDevice, chunks, host, stream);
        driver.let_go(host);
        enqueued
    }

    /// Enqueues a copy from the device at `src` until `dst` is full.
    ///
    /// # Errors
    /// [`FailedRead`], with the ranges that will not arrive.
    pub fn enqueue_read(
        self,
        src: DevicePtr,
        dst: HostBuffer,
        stream: StreamId,
    ) -> Result<EnqueuedRead, FailedRead> {
        let bytes = (*dst).as_ref().len() as u64;
        self.enqueue_read_segments(&[Segment { host_offset: 0, device: src, bytes }], dst, stream)
    }

    /// Enqueues copies from places on the device to parts of `dst`, which do not overlap.
    ///
    /// # Errors
    /// [`FailedRead`], with the ranges that will not arrive.
    pub fn enqueue_read_segments(
        self,
        segments: &[Segment],
        dst: HostBuffer,
        stream: StreamId,
    ) -> Result<EnqueuedRead, FailedRead> {
        let chunks = Chunks::new(segments, (*dst).as_ref().len() as u64, Side::Host);
        let driver = Arc::clone(&self.engine.shared.driver);
        let host = driver.hold(Held::Owned(dst));
        let enqueued = match chunks {
            Ok(chunks) => self.enqueue(Direction::ToHost, chunks, host, stream),
            Err(error) => Err(error.into()),
        };
        // Without one, waiting asks for the buffer again and again.
        let end = Mark::record(&driver, stream).ok();
        let mut buffer = EnqueuedRead { driver, host, end, report: Report::default() };
        match enqueued {
            Ok(report) => {
                buffer.report = report;
                Ok(buffer)
            }
            Err(error) => Err(FailedRead { error, buffer }),
        }
    }

    fn enqueue(
        &self,
        direction: Direction,
        mut chunks: Chunks,
        host: HostId,
        stream: StreamId,
    ) -> Result<Report, TransferError> {
        let shared = &*self.engine.shared;
        let (start_ns, bytes) = (shared.driver.now_ns(), chunks.left_bytes());
        self.may_enqueue(&chunks, stream)?;
        if bytes == 0 {
            return Ok(Report::default());
        }
        let lanes = shared.lanes_for(self.device, direction, &chunks, Some(Behind::stream(stream)))?;
        let mut reports = Vec::new();
        self.give(direction, &mut chunks, HostSide::Whole(host), lanes, stream, &mut reports)?;
        reports.sort_by_key(|lane| lane.path);
        Ok(Report { bytes, ns: shared.driver.now_ns() - start_ns, lanes: reports })
    }

    /// Whether anything may be enqueued before `stream` goes on.
    pub(super) fn may_enqueue(&self, chunks: &Chunks, stream: StreamId) -> Result<(), TransferError> {
        if self.engine.shared.driver.is_capturing(stream)? {
            return Err(DriverError::Capturing(stream).into());
        }
        if self.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
            return Err(TransferError::Cancelled { missing: chunks.clone().into_left() });
        }
        Ok(())
    }

    /// Enqueues `chunks` on `lanes`, and notes what each was given.
    pub(super) fn give(
        &self,
        direction: Direction,
        chunks: &mut Chunks,
        side: HostSide,
        lanes: Vec<Lane>,
        stream: StreamId,
        reports: &mut Vec<LaneReport>,
    ) -> Result<(), TransferError> {
        let shared = &*self.engine.shared;
        let behind = Behind::stream(stream);
        // Behind taking the lanes: one that was busy behind the stream is done where the stream is then.
        let after = match self.marks(stream) {
            Ok(after) => after,
            Err(error) => {
                for lane in lanes {
                    shared.put_behind(behind, self.device, lane);
                }
                return Err(error.into());
            }
        };
        let mut enqueue = Enqueue {
            driver: &*shared.driver,
            direction,
            side,
            sizes: shared.config.sizes(lanes.len()),
            after: &after,
            lanes: lanes.into_iter().map(Giving::new).collect(),
            failed: Vec::new(),
        };
        enqueue.run(chunks, |path| shared.rate(self.device, direction, path), stream);
        let all = enqueue.lanes.into_iter().chain(enqueue.failed);
        let mut last_error = DriverError::NotSupported("no lane is left");
        for Giving { lane, report, .. } in all {
            reports.push(report);
            match report.error {
                None => shared.put_behind(behind, self.device, lane),
                Some(error) => {
                    last_error = error;
                    shared.lanes.drop_lane(&shared.config, self.device, lane);
                }
            }
        }
        if chunks.left_bytes() > 0 {
            let (missing, source) = (chunks.clone().into_left(), Box::new(last_error));
            return Err(TransferError::NoPath { missing, source });
        }
        Ok(())
    }

    /// What the transfer comes behind.
    fn marks(&self, stream: StreamId) -> Result<Vec<Arc<Mark>>, DriverError> {
        let own = Some(After::Stream(stream));
        own.iter().chain(&self.after).map(|after| after.mark(&self.engine.shared.driver)).collect()
    }
}

impl Shared {
    /// Puts a lane back: among the idle ones, or those that a stream waits for.
    fn put_behind(&self, behind: Behind, device: DeviceId, lane: Lane) {
        if lane.is_busy() {
            self.busy.put(behind, device, lane);
        } else {
            self.lanes.put(device, lane);
        }
    }
}
