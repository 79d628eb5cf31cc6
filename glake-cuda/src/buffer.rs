//! Typed device memory.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{LaunchArgs, PushKernelArg};
use glake_core::driver::{Access, Copies, DriverError, ReadId, Result, SharedBytes, VirtualMemory};
use glake_core::typed::Values;
use glake_core::units::{AddressRange, DeviceId, DevicePtr, StreamId, round_up};

use crate::{CudaDriver, Mapping, PhysicalHandle, Reservation};

/// `len` values of type `T` in memory of a device.
///
/// The memory is whole pages of virtual memory of its own: a buffer of a few bytes takes 2 MiB.
/// Many small ones belong in a pool. Dropping never waits: the memory goes back to the device at a
/// later call of the driver, once all work enqueued until the drop is done; see [`Mapping`].
///
/// A reference to a buffer is a kernel argument of cudarc's launch builder; the kernel gets the
/// address:
/// ```no_run
/// # fn launch(
/// #     stream: &cudarc::driver::CudaStream,
/// #     kernel: &cudarc::driver::CudaFunction,
/// #     buffer: &mut glake_cuda::DeviceBuffer<f32>,
/// # ) -> Result<(), cudarc::driver::DriverError> {
/// use cudarc::driver::{LaunchConfig, PushKernelArg};
///
/// let n = buffer.len() as u64;
/// let config = LaunchConfig::for_num_elems(1 << 20);
/// // SAFETY: the kernel takes a pointer and a length, and stays inside.
/// unsafe { stream.launch_builder(kernel).arg(buffer).arg(&n).launch(config) }?;
/// # Ok(())
/// # }
/// ```
pub struct DeviceBuffer<T> {
    mapping: Mapping,
    values: Values<T>,
    device: DeviceId,
}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates `len` values on `device`, readable and writable there. What they are is not
    /// said.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] for no values, or more than can be addressed;
    /// [`DriverError::OutOfMemory`]; [`DriverError::InvalidDevice`]. Nothing is allocated then.
    pub fn new(driver: &CudaDriver, device: DeviceId, len: usize) -> Result<Self> {
        let granule = driver.granularity(device)?;
        let bytes = Values::<T>::n_bytes(len).filter(|bytes| *bytes > 0);
        let bytes = bytes.and_then(|bytes| round_up(bytes, granule));
        let bytes =
            bytes.ok_or(DriverError::InvalidValue("a buffer has at least one byte and fits in 64 bits"))?;
        let reservation = Reservation::new(driver, bytes, granule)?;
        let handle = PhysicalHandle::new(driver, device, bytes)?;
        let mapping = reservation.map(0, &handle)?;
        mapping.set_access(&[device], Access::ReadWrite)?;
        let values = Values::new(mapping.range().start, len);
        Ok(Self { mapping, values, device })
    }

    /// Copies `values`, as many as the buffer has, to the device behind the work of `stream`, and
    /// blocks until done.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if the lengths differ; [`DriverError::DeviceLost`].
    pub fn copy_from_slice(&mut self, values: &[T], stream: StreamId) -> Result<()> {
        self.values.write(self.driver(), values, stream)
    }

    /// Copies the values to the host behind the work of `stream`, and blocks until done.
    ///
    /// # Errors
    /// [`DriverError::DeviceLost`].
    pub fn to_vec(&self, stream: StreamId) -> Result<Vec<T>> {
        self.values.read(self.driver(), stream)
    }

    /// Enqueues a copy of `values` to the device on `stream`; they are kept until it is done.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if the lengths differ; [`DriverError::DeviceLost`].
    pub fn copy_from_vec_async(&mut self, values: Vec<T>, stream: StreamId) -> Result<()>
    where
        T: Send + Sync,
    {
        self.values.check_len(values.len())?;
        let bytes: SharedBytes = Arc::new(HostValues(values));
        self.driver().write_async(self.ptr(), bytes, stream)
    }

    /// Enqueues a copy of the values to the host on `stream`.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if the host has not enough memory to pin;
    /// [`DriverError::DeviceLost`].
    pub fn to_vec_async(&self, stream: StreamId) -> Result<PendingVec<T>> {
        let bytes = vec![0; self.len() * size_of::<T>()].into_boxed_slice();
        let read = self.driver().read_async(self.ptr(), bytes, stream)?;
        Ok(PendingVec { driver: self.driver().clone(), read, values: PhantomData })
    }
}

impl<T> DeviceBuffer<T> {
    /// How many values there are; never 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// The address of the first value.
    #[must_use]
    pub const fn ptr(&self) -> DevicePtr {
        self.values.ptr()
    }

    /// The addresses of the values.
    #[must_use]
    pub const fn range(&self) -> AddressRange {
        self.values.range()
    }

    /// The device that the memory lies on.
    #[must_use]
    pub const fn device(&self) -> DeviceId {
        self.device
    }

    /// The driver of the memory.
    #[must_use]
    pub fn driver(&self) -> &CudaDriver {
        self.mapping.driver()
    }
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({:?} on device {})", self.values, self.device.0)
    }
}

// SAFETY: pushes one pointer to the address, a live `u64` as long as the builder, which is what a
// kernel parameter of pointer type is made from.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b DeviceBuffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "cudarc asks for it, so that the reference is not moved")]
    fn arg(&mut self, buffer: &'b DeviceBuffer<T>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, buffer.values.kernel_arg())
    }
}

// SAFETY: as for a shared reference.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut DeviceBuffer<T>> for LaunchArgs<'a> {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "cudarc asks for it, so that the reference is not moved")]
    fn arg(&mut self, buffer: &'b mut DeviceBuffer<T>) -> &mut Self {
        PushKernelArg::<&'b u64>::arg(self, buffer.values.kernel_arg())
    }
}

/// Values on their way to the host; see [`DeviceBuffer::to_vec_async`].
#[derive(Debug)]
pub struct PendingVec<T> {
    driver: CudaDriver,
    read: ReadId,
    values: PhantomData<T>,
}

impl<T: Pod> PendingVec<T> {
    /// The values if they have arrived, `None` while they are on their way. Does not block.
    ///
    /// # Errors
    /// [`DriverError::UnknownRead`] if they were taken before; [`DriverError::DeviceLost`].
    pub fn take(&mut self) -> Result<Option<Vec<T>>> {
        let Some(bytes) = self.driver.take_read(self.read)? else { return Ok(None) };
        let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(&bytes);
        Ok(Some(values))
    }
}

/// A vector as host bytes.
struct HostValues<T>(Vec<T>);

impl<T: Pod> AsRef<[u8]> for HostValues<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
