//! Takes memory for a checkpoint and fills it.

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::units::{DeviceId, DevicePtr, StreamId};

use super::error::LoadError;
use super::loaded::Loaded;
use super::placement::{EXTENT_BYTES, Placement};
use super::segments::segments;
use super::{Checkpoint, Shard, Tensor};
use crate::chunk::Segment;
use crate::control::{Cancel, OnProgress, Priority, Progress};
use crate::engine::{Engine, Transfer};
use crate::error::TransferError;
use crate::report::Report;

/// Loads checkpoints to one device. See the [module](super).
#[derive(Clone)]
#[must_use = "a loader does nothing until it is told what to load"]
pub struct Loader<'a> {
    engine: &'a Engine,
    device: DeviceId,
    stream: StreamId,
    extent_bytes: u64,
    priority: Priority,
    cancel: Option<&'a Cancel>,
    on_progress: Option<OnProgress<'a>>,
}

impl<'a> Loader<'a> {
    /// Loads to memory of `device` that is allocated on `stream`.
    pub fn new(engine: &'a Engine, device: DeviceId, stream: StreamId) -> Self {
        Self {
            engine,
            device,
            stream,
            extent_bytes: EXTENT_BYTES,
            priority: Priority::default(),
            cancel: None,
            on_progress: None,
        }
    }

    /// Allocates at most so many bytes at once, unless a tensor is longer: [`EXTENT_BYTES`] if not set. With 0, each
    /// tensor is an allocation of its own, which begins where the tensor does and can be freed without the others.
    pub fn extent_bytes(self, bytes: u64) -> Self {
        Self { extent_bytes: bytes, ..self }
    }

    /// Lets transfers of a higher priority go first.
    pub fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Stops when `cancel` says so.
    pub fn cancel(self, cancel: &'a Cancel) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    /// Calls `tell` now and then, with the bytes of all shards. The calling thread calls it.
    pub fn on_progress(self, tell: OnProgress<'a>) -> Self {
        Self { on_progress: Some(tell), ..self }
    }

    /// Loads the tensors of `checkpoint` to memory of `memory`, which is memory of the loader's device, and blocks until
    /// they are there.
    ///
    /// The bytes between tensors are whatever the memory held before.
    ///
    /// # Errors
    /// [`LoadError`]; what was allocated is freed.
    pub fn load(self, checkpoint: &Checkpoint, memory: &mut dyn Allocator) -> Result<Loaded, LoadError> {
        let placement = Placement::new(checkpoint.tensors(), self.extent_bytes);
        let mut extents = Extents { memory, stream: self.stream, made: Vec::new() };
        extents.make_all(&placement).map_err(|error| LoadError::Memory(Box::new(error)))?;
        let address = |place: &Option<super::Place>| match place {
            Some(place) => extents.made[place.extent].ptr + place.offset_bytes,
            None => DevicePtr::default(),
        };
        let addresses = placement.places().iter().map(address);
        let placed: Vec<_> = checkpoint.tensors().iter().zip(addresses).collect();
        let reports = self.fill_all(checkpoint, &placed)?;
        Ok(Loaded::new(placed.into_iter(), extents.keep(), reports))
    }

    /// Loads the tensors of `checkpoint` to memory that is there: each to where `place` says, which is asked in the
    /// order of the tensors, also for those without bytes. Blocks until they are there; they come behind what is
    /// enqueued on the loader's stream.
    ///
    /// # Errors
    /// [`LoadError::Transfer`]: also where places of a shard overlap. What had arrived by then stays.
    pub fn fill(
        self,
        checkpoint: &Checkpoint,
        mut place: impl FnMut(&Tensor) -> DevicePtr,
    ) -> Result<Vec<Report>, LoadError> {
        let placed: Vec<_> = checkpoint.tensors().iter().map(|tensor| (tensor, place(tensor))).collect();
        self.fill_all(checkpoint, &placed)
    }

    /// Copies all shards, one after the other: each keeps every link busy.
    fn fill_all(
        &self,
        checkpoint: &Checkpoint,
        placed: &[(&Tensor, DevicePtr)],
    ) -> Result<Vec<Report>, LoadError> {
        let (mut reports, mut done_bytes) = (Vec::new(), 0);
        for of_shard in placed.chunk_by(|(a, _), (b, _)| a.shard == b.shard) {
            let segments = segments(of_shard.iter().copied());
            let (Some((first, _)), false) = (of_shard.first(), segments.is_empty()) else { continue };
            let shard = &checkpoint.shards()[first.shard];
            let report = self.fill_from(shard, &segments, done_bytes, checkpoint.bytes());
            let report = report.map_err(|error| LoadError::Transfer {
                path: shard.path().into(),
                source: Box::new(error),
            })?;
            done_bytes += report.bytes;
            reports.push(report);
        }
        Ok(reports)
    }

    /// Copies from one shard, behind `before_bytes` of `total_bytes`.
    fn fill_from(
        &self,
        shard: &Shard,
        segments: &[Segment],
        before_bytes: u64,
        total_bytes: u64,
    ) -> Result<Report, TransferError> {
        let tell = |of_shard: Progress| {
            if let Some(tell) = self.on_progress {
                tell(Progress { done_bytes: before_bytes + of_shard.done_bytes, total_bytes });
            }
        };
        // The memory is valid behind what is enqueued on its stream.
        let transfer = self.engine.on(self.device).after(self.stream).priority(self.priority);
        let transfer = self.cancel.map_or(transfer.clone(), |cancel| transfer.cancel(cancel));
        Transfer::on_progress(transfer, &tell).write_file(segments, shard.file())
    }
}

impl std::fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("device", &self.device)
            .field("stream", &self.stream)
            .field("extent_bytes", &self.extent_bytes)
            .field("priority", &self.priority)
            .finish_non_exhaustive()
    }
}

/// Allocations that are freed again unless they are kept: where loading fails, or a callback panics.
struct Extents<'m> {
    memory: &'m mut dyn Allocator,
    stream: StreamId,
    made: Vec<Allocation>,
}

impl Extents<'_> {
    fn make_all(&mut self, placement: &Placement) -> Result<(), AllocError> {
        for extent in placement.extents() {
            let request = Request::new(extent.bytes, self.stream).aligned(extent.align_bytes);
            self.made.push(self.memory.allocate(request)?);
        }
        Ok(())
    }

    fn keep(mut self) -> Vec<Allocation> {
        std::mem::take(&mut self.made)
    }
}

impl Drop for Extents<'_> {
    fn drop(&mut self) {
        for extent in self.made.drain(..).rev() {
            if let Err(error) = self.memory.free(extent.ptr, self.stream) {
                tracing::warn!(%error, "memory of a failed load could not be freed");
            }
        }
    }
}
