//! A checkpoint on a device.

use std::collections::BTreeMap;

use glake_core::alloc::{AllocError, Allocation, Allocator};
use glake_core::units::{DevicePtr, StreamId};
use safetensors::Dtype;

use super::Tensor;
use crate::report::Report;

/// A tensor on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadedTensor {
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions, the outermost first; none for a single element.
    pub shape: Box<[u64]>,
    /// Where it lies: a multiple of 256, or of a page (2 MiB) from that size on. Zero, if it has no bytes.
    pub ptr: DevicePtr,
    /// How many bytes it has.
    pub bytes: u64,
}

/// A checkpoint on a device: tensors by name, in memory that does not free itself.
#[derive(Clone, Debug, Default)]
#[must_use = "the memory does not free itself"]
pub struct Loaded {
    tensors: BTreeMap<Box<str>, LoadedTensor>,
    extents: Vec<Allocation>,
    reports: Vec<Report>,
}

impl Loaded {
    pub(super) fn new<'a>(
        tensors: impl Iterator<Item = (&'a Tensor, DevicePtr)>,
        extents: Vec<Allocation>,
        reports: Vec<Report>,
    ) -> Self {
        let loaded = |(tensor, ptr): (&'a Tensor, DevicePtr)| {
            let (dtype, shape, bytes) = (tensor.dtype, tensor.shape.clone(), tensor.bytes);
            (tensor.name.clone(), LoadedTensor { dtype, shape, ptr, bytes })
        };
        Self { tensors: tensors.map(loaded).collect(), extents, reports }
    }

    /// The tensor of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&LoadedTensor> {
        self.tensors.get(name)
    }

    /// The tensors in the order of their names.
    #[must_use]
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, &LoadedTensor)> {
        self.tensors.iter().map(|(name, tensor)| (&**name, tensor))
    }

    /// The memory that the tensors lie in.
    #[must_use]
    pub fn extents(&self) -> &[Allocation] {
        &self.extents
    }

    /// What the transfers did: one for each shard, in their order.
    #[must_use]
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }

    /// The bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.reports.iter().map(|report| report.bytes).sum()
    }

    /// How long the transfers took, in nanoseconds of the driver's clock.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.reports.iter().map(|report| report.ns).sum()
    }

    /// Frees the memory, whose last use was enqueued on `stream`.
    ///
    /// # Errors
    /// The first one of `memory`, where it did not take an extent; it was asked to free all of them.
    pub fn free(self, memory: &mut dyn Allocator, stream: StreamId) -> Result<(), AllocError> {
        let mut outcome = Ok(());
        for extent in self.extents {
            outcome = outcome.and(memory.free(extent.ptr, stream));
        }
        outcome
    }
}
