//! Transfers that are submitted: the blocking ones, run by a worker, with memory that it owns meanwhile.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use glake_core::driver::{HostBuffer, SharedBytes};
use glake_core::units::DevicePtr;

use super::Transfer;
use crate::chunk::Segment;
use crate::control::{Cancel, SharedProgress};
use crate::error::TransferError;
use crate::mark::After;
use crate::pending::{Pending, promise};
use crate::report::Report;

/// What a submitted transfer did, and its buffer.
#[non_exhaustive]
pub struct Done {
    /// What it did. Its time is that of the copying, not that in the queue.
    pub report: Report,
    /// The buffer that it was given.
    pub buffer: HostBuffer,
}

/// Why a submitted transfer failed, and its buffer. A read has filled all of it but what the error says is
/// missing, which is as before.
#[derive(thiserror::Error)]
#[error("the submitted transfer failed, and gives its buffer back")]
#[non_exhaustive]
pub struct FailedTransfer {
    /// Why it failed.
    #[source]
    pub error: TransferError,
    /// The buffer that it was given.
    pub buffer: HostBuffer,
}

// Not the bytes: they may be many.
impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done").field("report", &self.report).finish_non_exhaustive()
    }
}

impl fmt::Debug for FailedTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedTransfer").field("error", &self.error).finish_non_exhaustive()
    }
}

impl From<FailedTransfer> for TransferError {
    fn from(failed: FailedTransfer) -> Self {
        failed.error
    }
}

/// # In the background
///
/// A worker copies, by what is enqueued on the stream of [`after`](Transfer::after) when the transfer is
/// submitted. Which transfer is next goes by priority, then by age.
///
/// ```
/// # use std::sync::Arc;
/// # use glake_core::driver::{Access, VirtualMemory};
/// # use glake_core::sim::SimDriver;
/// # use glake_core::units::{DeviceId, PAGE_BYTES};
/// # use glake_multipath::{Config, Engine};
/// # let driver = Arc::new(SimDriver::h200(2));
/// # let device = DeviceId(0);
/// # let range = driver.reserve(PAGE_BYTES, PAGE_BYTES)?;
/// # driver.map(range.start, driver.create(device, range.bytes)?)?;
/// # driver.set_access(range, &[device], Access::ReadWrite)?;
/// let engine = Engine::new(driver, Config::new())?;
/// let weights = Arc::new(vec![7; 1 << 20]);
/// let pending = engine.on(device).submit_write(range.start, weights);
/// // ... other work; or `pending.await` ...
/// assert_eq!(pending.wait()?.bytes, 1 << 20);
/// let done = engine.on(device).submit_read(range.start, Box::new(vec![0; 3])).wait()?;
/// assert_eq!((*done.buffer).as_ref(), [7; 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Transfer<'static> {
    /// Copies `src` to the device at `dst` in the background. The bytes are kept until that is over.
    pub fn submit_write(self, dst: DevicePtr, src: SharedBytes) -> Pending<Report> {
        let bytes = (*src).as_ref().len() as u64;
        self.submit_write_segments(vec![Segment { host_offset: 0, device: dst, bytes }], src)
    }

    /// Copies parts of `src` to places on the device, which do not overlap, in the background.
    pub fn submit_write_segments(self, segments: Vec<Segment>, src: SharedBytes) -> Pending<Report> {
        let write = |transfer: Self, segments: &[Segment], src: &mut SharedBytes| {
            transfer.write_segments(segments, (**src).as_ref())
        };
        self.submit(segments, src, write, |outcome, src| {
            // Before anyone hears of it. What it owns may panic then.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(src)));
            outcome
        })
    }

    /// Copies `src` to the device at `dst` in the background, and gives it back.
    pub fn submit_write_buffer(self, dst: DevicePtr, src: HostBuffer) -> Pending<Done, FailedTransfer> {
        let bytes = (*src).as_ref().len() as u64;
        let write = |transfer: Self, segments: &[Segment], src: &mut HostBuffer| {
            transfer.write_segments(segments, (**src).as_ref())
        };
        self.submit(vec![Segment { host_offset: 0, device: dst, bytes }], src, write, with_buffer)
    }

    /// Copies from the device at `src` until `dst` is full, in the background, and gives it back.
    pub fn submit_read(self, src: DevicePtr, dst: HostBuffer) -> Pending<Done, FailedTransfer> {
        let bytes = (*dst).as_ref().len() as u64;
        self.submit_read_segments(vec![Segment { host_offset: 0, device: src, bytes }], dst)
    }

    /// Copies from places on the device to parts of `dst`, which do not overlap, in the background, and gives
    /// it back.
    pub fn submit_read_segments(
        self,
        segments: Vec<Segment>,
        dst: HostBuffer,
    ) -> Pending<Done, FailedTransfer> {
        let read = |transfer: Self, segments: &[Segment], dst: &mut HostBuffer| {
            transfer.read_segments(segments, (**dst).as_mut())
        };
        self.submit(segments, dst, read, with_buffer)
    }

    /// Lets a worker do `copy` on `host`; what `finish` makes of both is the outcome.
    pub(super) fn submit<H, T, E>(
        mut self,
        segments: Vec<Segment>,
        mut host: H,
        copy: fn(Self, &[Segment], &mut H) -> Result<Report, TransferError>,
        finish: fn(Result<Report, TransferError>, H) -> Result<T, E>,
    ) -> Pending<T, E>
    where
        H: Send + 'static,
        T: Send + 'static,
        E: Send + 'static,
    {
        let stop = Cancel::beneath(self.cancel.as_ref());
        let (promise, pending) = promise(stop.clone());
        // Now, in this thread: `after` means what is enqueued so far, and a stream may be the thread's own.
        if let Some(after) = self.after.take() {
            match after.mark(&self.engine.shared.driver) {
                Ok(mark) => self.after = Some(After::Mark(mark)),
                Err(error) => {
                    promise.keep(finish(Err(error.into()), host));
                    return pending;
                }
            }
        }
        let has_panicked = self.guard(&stop);
        self.cancel = Some(stop.clone());
        let (engine, priority) = (self.engine.clone(), self.priority);
        let job = Box::new(move |thread: std::io::Result<()>| {
            let outcome = match thread {
                Err(error) => Err(TransferError::NoThread(Box::new(error))),
                Ok(()) if stop.is_cancelled() => Err(TransferError::Cancelled { missing: all(&segments) }),
                Ok(()) => catch_unwind(AssertUnwindSafe(|| copy(self, &segments, &mut host)))
                    .unwrap_or_else(|_| Err(TransferError::Panicked { missing: all(&segments) })),
            };
            let outcome = match outcome {
                Ok(_) if has_panicked.load(Ordering::Relaxed) => {
                    Err(TransferError::Panicked { missing: Box::default() })
                }
                Err(TransferError::Cancelled { missing }) if has_panicked.load(Ordering::Relaxed) => {
                    Err(TransferError::Panicked { missing })
                }
                other => other,
            };
            promise.keep(finish(outcome, host));
        });
        engine.shared.jobs.submit(priority, job);
        pending
    }

    /// Makes a panic of the callback stop the transfer in good order; whether it has panicked.
    fn guard(&mut self, stop: &Cancel) -> Arc<AtomicBool> {
        let has_panicked = Arc::new(AtomicBool::new(false));
        let borrowed = self.on_progress.take().map(|tell| Arc::new(tell) as SharedProgress);
        if let Some(tell) = borrowed.or(self.shared_progress.take()) {
            let (stop, has_panicked) = (stop.clone(), Arc::clone(&has_panicked));
            self.shared_progress = Some(Arc::new(move |progress| {
                if has_panicked.load(Ordering::Relaxed) {
                    return;
                }
                if catch_unwind(AssertUnwindSafe(|| tell(progress))).is_err() {
                    has_panicked.store(true, Ordering::Relaxed);
                    stop.cancel();
                }
            }));
        }
        has_panicked
    }
}

fn with_buffer(outcome: Result<Report, TransferError>, buffer: HostBuffer) -> Result<Done, FailedTransfer> {
    match outcome {
        Ok(report) => Ok(Done { report, buffer }),
        Err(error) => Err(FailedTransfer { error, buffer }),
    }
}

/// All that there is to copy.
fn all(segments: &[Segment]) -> Box<[Segment]> {
    segments.iter().copied().filter(|segment| segment.bytes > 0).collect()
}
