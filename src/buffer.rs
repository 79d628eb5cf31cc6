//! Typed memory of a pool.

use std::fmt;

use bytemuck::Pod;
use glake_core::alloc::{AllocError, Allocation};
use glake_core::driver::DriverError;
use glake_core::typed::Values;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId};

use crate::pool::Pool;

/// `len` values of type `T` in memory of a [`Pool`].
///
/// Dropping frees the memory behind the work that is enqueued on the buffer's stream by then, and on
/// those that the pool was told of by [`record_use`](Self::record_use). A drop never waits and never
/// fails.
///
/// A kernel launched with cudarc takes the buffer's address, which [`kernel_arg`](Self::kernel_arg)
/// points at: `builder.arg(buffer.kernel_arg())`.
pub struct Buffer<T> {
    values: Values<T>,
    allocation: Allocation,
    /// The stream of the last use.
    last: StreamId,
    pool: Pool,
}

impl<T: Pod> Buffer<T> {
    /// Copies `values`, as many as the buffer has, to the device behind the work of the buffer's
    /// stream, and blocks until done.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if the lengths differ; [`DriverError::DeviceLost`].
    pub fn copy_from_slice(&mut self, values: &[T]) -> Result<(), DriverError> {
        self.values.write(&**self.pool.driver(), values, self.stream())
    }

    /// Copies the values to the host behind the work of the buffer's stream, and blocks until done.
    ///
    /// # Errors
    /// [`DriverError::DeviceLost`].
    pub fn to_vec(&self) -> Result<Vec<T>, DriverError> {
        self.values.read(&**self.pool.driver(), self.stream())
    }
}

impl<T> Buffer<T> {
    pub(crate) fn new(pool: Pool, allocation: Allocation, len: usize) -> Self {
        Self { values: Values::new(allocation.ptr, len), last: allocation.stream, allocation, pool }
    }

    /// How many values there are; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// The address of the first value, at a multiple of 512 bytes.
    #[must_use]
    pub const fn ptr(&self) -> DevicePtr {
        self.values.ptr()
    }

    /// The address as a kernel takes it: a parameter of pointer type is a 64-bit number.
    #[must_use]
    pub const fn kernel_arg(&self) -> &u64 {
        self.values.kernel_arg()
    }

    /// The addresses of the values.
    #[must_use]
    pub const fn range(&self) -> AddressRange {
        self.values.range()
    }

    /// Tells that work enqueued on `stream` uses the memory: a drop frees it behind that work, too, as
    /// far as it is enqueued by then. That the work on `stream` runs behind what it needs of the buffer's
    /// own is up to the program.
    ///
    /// # Errors
    /// [`AllocError::TooManyStreams`]; [`AllocError::Poisoned`].
    pub fn record_use(&self, stream: StreamId) -> Result<(), AllocError> {
        self.pool.shared().pool.record_use(self.allocation.ptr, stream)
    }

    /// Frees the memory behind the work that is enqueued on `stream` by now, instead of the buffer's
    /// own: the program has handed the memory over, and `stream` runs behind all earlier work on it.
    pub fn free_on(mut self, stream: StreamId) {
        self.last = stream;
    }

    /// The stream that the memory was allocated on.
    #[must_use]
    pub const fn stream(&self) -> StreamId {
        self.allocation.stream
    }

    /// The device that the memory lies on.
    #[must_use]
    pub const fn device(&self) -> DeviceId {
        self.pool.device()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // Fails only where the pool is poisoned: then nothing can be freed but by dropping it.
        let _ = self.pool.shared().pool.free_soon(self.allocation.ptr, self.last);
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?} on device {})", self.values, self.device().0)
    }
}
