//! One pool for many threads, with a fast path for each stream.
//!
//! Requests below 256 KiB are served by *shards*: the small objects of one stream each, behind a lock
//! of their own. Everything else, and the units of the shards, comes from one central
//! [`StitchPool`] behind another lock.
//!
//! **Order of locks: the central one, then one shard's.** Who holds a shard's lock takes no other,
//! calls no driver and does bounded work. So an allocation or a free of a small object on its own
//! stream holds one lock, once, and waits for nobody who waits for the device. Units go to a shard
//! and come back while both locks are held: who holds the central lock sees every page in one place.
//!
//! A thread finds a stream's shard in what it remembers ([`lookup`]), and the shard of an address in
//! a table of pages ([`pages`]), without a lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::Driver;
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use crate::config::Config;
use crate::order::{Key, MAX_STREAMS, StreamIndex};
use crate::pool::{Admitted, StitchPool, checked};
use crate::small::SMALL_BYTES;
use crate::sync::{Mutex, MutexGuard};
use crate::units::{GRANULE_BYTES, page_of};

#[cfg(test)]
mod check;
mod find;
mod for_all;
mod free;
mod lookup;
mod pages;
mod shard;
#[cfg(test)]
mod tests;
mod units;
mod whole;

use lookup::PoolToken;
use pages::PageTable;
pub(crate) use shard::Figures;
use shard::{Shard, State};

/// A [`StitchPool`] for many threads.
///
/// Its methods take `&self`, and `&SharedPool` and `Arc<SharedPool>` are allocators themselves.
/// Small objects (below 256 KiB) that are allocated and freed on one stream take that stream's lock
/// only, and make no driver call; all other calls take one lock of the whole pool.
///
/// If a thread panicked inside, later calls that come upon what it left are refused with
/// [`AllocError::Poisoned`], and then all are.
///
/// ```
/// use std::sync::Arc;
/// use glake_core::alloc::Request;
/// use glake_core::driver::StreamOrder;
/// use glake_core::sim::SimDriver;
/// use glake_core::units::DeviceId;
/// use glake_vmm::{Config, SharedPool};
///
/// let driver = Arc::new(SimDriver::h200(1));
/// let streams = [driver.create_stream(DeviceId(0))?, driver.create_stream(DeviceId(0))?];
/// let pool = SharedPool::new(driver, Config::new(DeviceId(0)))?;
/// std::thread::scope(|scope| {
///     for stream in streams {
///         let pool = &pool;
///         scope.spawn(move || {
///             let a = pool.allocate(Request::new(4096, stream))?;
///             pool.free(a.ptr, stream)
///         });
///     }
/// });
/// assert_eq!(pool.stats().allocated_bytes, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SharedPool {
    central: Mutex<StitchPool>,
    /// Frees that would have had to wait.
    late: Mutex<Vec<Late>>,
    /// What stands for the host, once it was asked for.
    host: OnceLock<StreamIndex>,
    /// By stream.
    shards: Box<[OnceLock<Box<Shard>>]>,
    pages: PageTable,
    arena: AddressRange,
    token: PoolToken,
    /// See [`Order::names`](crate::order::Order::names).
    names: Arc<AtomicU64>,
    is_poisoned: AtomicBool,
}

/// A free that is still to be done.
#[derive(Clone, Copy, Debug)]
struct Late {
    ptr: DevicePtr,
    /// The stream of the last use.
    on: Key,
}

impl SharedPool {
    /// A pool without memory; reserves its addresses.
    ///
    /// # Errors
    /// As [`StitchPool::new`].
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Self, AllocError> {
        let pool = StitchPool::new(driver, config)?;
        let arena = pool.arena;
        Ok(Self {
            names: Arc::clone(pool.order.names()),
            central: Mutex::new(pool),
            late: Mutex::default(),
            host: OnceLock::new(),
            shards: (0..MAX_STREAMS).map(|_| OnceLock::new()).collect(),
            pages: PageTable::new(page_of(arena.bytes)),
            arena,
            token: PoolToken::fresh(),
            is_poisoned: AtomicBool::new(false),
        })
    }

    /// The addresses of the pool: all its memory lies there, and nobody else's.
    #[must_use]
    pub fn arena(&self) -> AddressRange {
        self.arena
    }

    /// Allocates memory.
    ///
    /// # Errors
    /// As [`Allocator::allocate`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn allocate(&self, request: Request) -> Result<Allocation, AllocError> {
        let Request { bytes, align_bytes, stream } = request;
        self.check_sound()?;
        checked(request, self.arena)?;
        let at = if bytes < SMALL_BYTES && align_bytes <= GRANULE_BYTES {
            let index = self.index_of(stream)?;
            let at = self.state(index)?.allocate(bytes);
            at.map_or_else(|| self.central(|pool| self.refill(pool, index, bytes)), Ok)
        } else {
            self.central(|pool| {
                let admitted = pool.admit(request)?;
                self.allocate_large(pool, request, admitted)
            })
        };
        Ok(Allocation { ptr: self.arena.start + at?, bytes, stream })
    }

    /// Serves a large request.
    fn allocate_large(
        &self,
        pool: &mut StitchPool,
        request: Request,
        admitted: Admitted,
    ) -> Result<u64, AllocError> {
        let at =
            self.under_pressure(pool, admitted.stream, request.bytes, |pool| pool.grant(request, admitted))?;
        pool.count(request.bytes, admitted.rounded);
        Ok(at)
    }

    /// What this thread remembers of `stream`.
    fn recall(&self, stream: StreamId) -> Option<StreamIndex> {
        lookup::recall(self.token, self.names.load(Ordering::Acquire), stream)
    }

    /// The index of `stream`, with the central lock only where this thread does not remember it.
    fn index_of(&self, stream: StreamId) -> Result<StreamIndex, AllocError> {
        if let Some(index) = self.recall(stream) {
            return Ok(index);
        }
        self.central(|pool| {
            let index = pool.index_of(stream)?;
            lookup::remember(self.token, self.names.load(Ordering::Acquire), stream, index);
            Ok(index)
        })
    }

    fn shard(&self, index: StreamIndex) -> &Shard {
        self.shards[index.index()].get_or_init(Box::default)
    }

    fn state(&self, index: StreamIndex) -> Result<MutexGuard<'_, State>, AllocError> {
        self.shard(index).state.lock().map_err(|_| self.poison())
    }

    /// The shards of streams that have any.
    fn shards(&self) -> impl Iterator<Item = (StreamIndex, &Shard)> {
        let all = self.shards.iter().enumerate();
        all.filter_map(|(i, shard)| Some((StreamIndex::from_index(i), &**shard.get()?)))
    }

    fn check_sound(&self) -> Result<(), AllocError> {
        if self.is_poisoned.load(Ordering::Relaxed) { Err(AllocError::Poisoned) } else { Ok(()) }
    }

    fn poison(&self) -> AllocError {
        self.is_poisoned.store(true, Ordering::Relaxed);
        AllocError::Poisoned
    }

    /// Does `work` with the central lock held.
    fn central<T>(
        &self,
        work: impl FnOnce(&mut StitchPool) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let mut pool = self.central.lock().map_err(|_| self.poison())?;
        self.run(&mut pool, work)
    }

    fn run<T>(
        &self,
        pool: &mut StitchPool,
        work: impl FnOnce(&mut StitchPool) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        self.check_sound()?;
        self.free_late(pool);
        let done = work(pool);
        if pool.is_poisoned {
            self.poison();
        }
        done
    }
}

/// Tells the central pool what a shard serves now.
fn report(pool: &mut StitchPool, state: &mut State) {
    pool.report(state.reported, state.figures);
    state.reported = state.figures;
}

/// Frees what was to be freed, so that the last events are behind its last uses.
impl Drop for SharedPool {
    fn drop(&mut self) {
        let _ = self.central(|_| Ok(()));
    }
}

macro_rules! share {
    ($($shared:ty),*) => {$(
        impl Allocator for $shared {
            fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
                SharedPool::allocate(self, request)
            }

            fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
                SharedPool::free(self, ptr, stream)
            }

            fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
                SharedPool::record_use(self, ptr, stream)
            }

            fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
                SharedPool::trim(self, keep_bytes)
            }

            fn stats(&self) -> Stats {
                SharedPool::stats(self)
            }
        }
    )*};
}

share!(SharedPool, &SharedPool);
