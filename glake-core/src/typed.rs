//! Typed values in untyped device memory: what every typed buffer is made of.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::driver::{Copies, DriverError, Result};
use crate::units::{AddressRange, DevicePtr, StreamId};

/// Where `len` values of type `T` lie on a device. It owns nothing and is as good as its address:
/// the buffer around it knows how long that is.
///
/// ```
/// use glake_core::typed::Values;
/// assert_eq!(Values::<f32>::n_bytes(3), Some(12));
/// assert_eq!(Values::<f32>::n_bytes(usize::MAX), None);
/// ```
pub struct Values<T> {
    /// The address as a plain number, where a kernel launch can point at it.
    address: u64,
    len: usize,
    of: PhantomData<T>,
}

impl<T> Values<T> {
    /// `len` values from `ptr` on.
    #[must_use]
    pub const fn new(ptr: DevicePtr, len: usize) -> Self {
        Self { address: ptr.0, len, of: PhantomData }
    }

    /// The size of `len` values in bytes, or `None` if it does not fit in memory.
    #[must_use]
    pub fn n_bytes(len: usize) -> Option<u64> {
        len.checked_mul(size_of::<T>()).and_then(|bytes| u64::try_from(bytes).ok())
    }

    /// How many values there are.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "buffers are never empty")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// The address of the first value.
    #[must_use]
    pub const fn ptr(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    /// The address as a kernel takes it: a parameter of pointer type is a 64-bit number.
    #[must_use]
    pub const fn kernel_arg(&self) -> &u64 {
        &self.address
    }

    /// The addresses of the values.
    #[must_use]
    pub const fn range(&self) -> AddressRange {
        AddressRange::new(self.ptr(), self.len.saturating_mul(size_of::<T>()) as u64)
    }

    /// Whether `len` values are as many as there are.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if not.
    pub fn check_len(&self, len: usize) -> Result<()> {
        if len == self.len { Ok(()) } else { Err(DriverError::InvalidValue("the buffer has another length")) }
    }
}

impl<T: Pod> Values<T> {
    /// Copies `values`, as many as there are, to the device behind the work of `stream`, and
    /// blocks until done.
    ///
    /// # Errors
    /// [`DriverError::InvalidValue`] if the lengths differ, and as [`Copies::write`].
    pub fn write<C: Copies + ?Sized>(&self, driver: &C, values: &[T], stream: StreamId) -> Result<()> {
        self.check_len(values.len())?;
        driver.write(self.ptr(), bytemuck::cast_slice(values), stream)
    }

    /// Copies the values to the host behind the work of `stream`, and blocks until done.
    ///
    /// # Errors
    /// As [`Copies::read`].
    pub fn read<C: Copies + ?Sized>(&self, driver: &C, stream: StreamId) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.len];
        driver.read(self.ptr(), bytemuck::cast_slice_mut(&mut values), stream)?;
        Ok(values)
    }
}

impl<T> fmt::Debug for Values<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values of {} at {}", self.len, std::any::type_name::<T>(), self.ptr())
    }
}
