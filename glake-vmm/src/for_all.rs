//! Memory for every stream, every thread and the host at once, as `cuMemAlloc` gives it.
//!
//! No stream can be made to wait for it: it must be memory that the device is done with. So it is served
//! as to a stream, for which the *host* stands; where a stream would be made to wait, the host waits.

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::units::StreamId;

use crate::order::StreamIndex;
use crate::pool::{Admitted, StitchPool, checked};

/// What stands in a request, and an allocation, that is of no stream.
pub(crate) const NO_STREAM: StreamId = StreamId::LEGACY;

impl StitchPool {
    /// Allocates memory that the device is done with: any stream, any thread and the host may use it at
    /// once. It is freed as any other, behind the work of the stream that the free names and of those that
    /// were told to use it; [`free_from_anywhere`](Self::free_from_anywhere) is behind all of the device's.
    ///
    /// Takes free memory whose work is done, then moves such memory or creates more, and only where there
    /// is none left waits for the device, for the oldest work that suffices. The allocation's `stream` is
    /// the legacy one, and means nothing.
    ///
    /// # Errors
    /// As [`Allocator::allocate`](glake_core::alloc::Allocator::allocate). The state is as before.
    pub fn allocate_for_all(&mut self, bytes: u64) -> Result<Allocation, AllocError> {
        let request = Request::new(bytes, NO_STREAM);
        let admitted = self.admit_for_all(request)?;
        let granted = self.grant_at_last(request, admitted);
        let at = granted.map_err(|error| self.failed(error, bytes))?;
        self.count(bytes, admitted.rounded);
        Ok(Allocation { ptr: self.arena.start + at, bytes, stream: NO_STREAM })
    }

    /// Checks a request for all.
    pub(crate) fn admit_for_all(&mut self, request: Request) -> Result<Admitted, AllocError> {
        self.check_sound()?;
        let rounded = checked(request, self.arena)?;
        Ok(Admitted { rounded, stream: self.host()? })
    }

    /// What stands for the host.
    pub(crate) fn host(&mut self) -> Result<StreamIndex, AllocError> {
        if let Some(index) = self.order.host() {
            return Ok(index);
        }
        self.find_ended_streams();
        self.order.host().ok_or(AllocError::TooManyStreams)
    }
}
