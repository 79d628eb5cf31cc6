//! One allocator for many threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::alloc::{AllocError, Allocation, Allocator, Request};
use crate::stats::Stats;
use crate::units::{DevicePtr, StreamId};

/// An allocator behind a mutex, for use from many threads.
///
/// Its methods take `&self`, and `&Locked<A>` and `Arc<Locked<A>>` are allocators themselves (an
/// `Arc` as allocator wants a `mut` handle of its own; `(*arc).allocate(..)` does not).
/// If a thread panicked inside, every later call is refused with [`AllocError::Poisoned`].
///
/// ```
/// use glake_core::adapt::Locked;
/// use glake_core::alloc::{AllocError, Allocator, Request};
/// use glake_core::units::StreamId;
///
/// fn two_threads<A: Allocator + Send>(pool: &Locked<A>) -> Result<(), AllocError> {
///     let first = pool.allocate(Request::new(4096, StreamId::LEGACY))?;
///     std::thread::scope(|scope| scope.spawn(|| pool.free(first.ptr, first.stream)).join())
///         .unwrap_or(Err(AllocError::Poisoned))
/// }
/// ```
#[derive(Debug, Default)]
pub struct Locked<A> {
    inner: Mutex<A>,
}

impl<A: Allocator> Locked<A> {
    /// Shares `inner`.
    pub const fn new(inner: A) -> Self {
        Self { inner: Mutex::new(inner) }
    }

    fn lock(&self) -> Result<MutexGuard<'_, A>, AllocError> {
        self.inner.lock().map_err(|_| AllocError::Poisoned)
    }

    /// Allocates memory.
    ///
    /// # Errors
    /// As [`Allocator::allocate`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn allocate(&self, request: Request) -> Result<Allocation, AllocError> {
        self.lock()?.allocate(request)
    }

    /// Frees the allocation at `ptr`.
    ///
    /// # Errors
    /// As [`Allocator::free`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn free(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.lock()?.free(ptr, stream)
    }

    /// Tells that work enqueued on `stream` uses the allocation at `ptr`.
    ///
    /// # Errors
    /// As [`Allocator::record_use`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn record_use(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.lock()?.record_use(ptr, stream)
    }

    /// Gives physical memory back to the device.
    ///
    /// # Errors
    /// As [`Allocator::trim`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.lock()?.trim(keep_bytes)
    }

    /// Figures of this moment, those of the last moment where a thread panicked inside.
    pub fn stats(&self) -> Stats {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).stats()
    }

    /// Runs `work` on the allocator inside, with no other thread between its calls.
    ///
    /// # Errors
    /// [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn with<T>(&self, work: impl FnOnce(&mut A) -> T) -> Result<T, AllocError> {
        Ok(work(&mut *self.lock()?))
    }

    /// The allocator inside.
    ///
    /// # Errors
    /// [`AllocError::Poisoned`] if a thread panicked inside; the allocator is dropped.
    pub fn into_inner(self) -> Result<A, AllocError> {
        self.inner.into_inner().map_err(|_| AllocError::Poisoned)
    }
}

macro_rules! share {
    ($($shared:ty),*) => {$(
        impl<A: Allocator> Allocator for $shared {
            fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
                Locked::allocate(self, request)
            }

            fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
                Locked::free(self, ptr, stream)
            }

            fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
                Locked::record_use(self, ptr, stream)
            }

            fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
                Locked::trim(self, keep_bytes)
            }

            fn stats(&self) -> Stats {
                Locked::stats(self)
            }
        }
    )*};
}

share!(Locked<A>, &Locked<A>);
