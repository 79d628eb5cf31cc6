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
use std::sync::{Arc, OnceLock, PoisonError, TryLockError};

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::Driver;
use glake_core::stats::Stats;
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use crate::capture::GraphMemory;
use crate::config::Config;
use crate::order::{Key, MAX_STREAMS, StreamIndex};
use crate::pool::{Last, StitchPool, checked, offset_in};
use crate::small::SMALL_BYTES;
use crate::spare::UnitName;
use crate::streams::Mark;
use crate::sync::{Mutex, MutexGuard};
use crate::trim::Defragmented;
use crate::units::{GRANULE_BYTES, PAGE, page_of};

#[cfg(test)]
mod check;
mod lookup;
mod pages;
mod shard;
#[cfg(test)]
mod tests;
mod units;

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
    /// Frees that would have had to wait, and on which stream; on any without.
    late: Mutex<Vec<(DevicePtr, Option<Key>)>>,
    /// By stream.
    shards: Box<[OnceLock<Box<Shard>>]>,
    pages: PageTable,
    arena: AddressRange,
    token: PoolToken,
    /// See [`Order::names`](crate::order::Order::names).
    names: Arc<AtomicU64>,
    is_poisoned: AtomicBool,
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
            shards: (0..MAX_STREAMS).map(|_| OnceLock::new()).collect(),
            pages: PageTable::new(page_of(arena.bytes)),
            arena,
            token: PoolToken::fresh(),
            is_poisoned: AtomicBool::new(false),
        })
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
            self.central(|pool| self.allocate_large(pool, request))
        };
        Ok(Allocation { ptr: self.arena.start + at?, bytes, stream })
    }

    /// Frees the allocation at `ptr`, whose last use was enqueued on `stream`.
    ///
    /// # Errors
    /// As [`Allocator::free`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn free(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.check_sound()?;
        let at = offset_in(self.arena, ptr)?;
        if self.pages.get(page_of(at)).is_some() {
            let index = self.index_of(stream)?;
            if let Some(freed) = self.free_own(ptr, at, index) {
                return freed;
            }
        }
        self.central(|pool| {
            let stream = pool.order.index_of(stream).ok_or(AllocError::TooManyStreams)?;
            self.free_any(pool, ptr, Last::On(stream))
        })
    }

    /// Frees as [`free`](Self::free) does, without waiting for a thread that may wait for the device:
    /// where one is in the way, the next call that takes the pool's lock frees it first. An error that
    /// is found out then is nobody's.
    ///
    /// # Errors
    /// As [`free`](Self::free), as far as is known at once.
    pub fn free_soon(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.check_sound()?;
        let at = offset_in(self.arena, ptr)?;
        if self.pages.get(page_of(at)).is_some()
            && let Some(index) = self.recall(stream)
            && let Some(freed) = self.free_own(ptr, at, index)
        {
            return freed;
        }
        match self.central.try_lock() {
            Ok(mut pool) => self.run(&mut pool, |pool| {
                let stream = pool.order.index_of(stream).ok_or(AllocError::TooManyStreams)?;
                self.free_any(pool, ptr, Last::On(stream))
            }),
            Err(TryLockError::WouldBlock) => {
                self.late().push((ptr, Some(Key::of(stream))));
                Ok(())
            }
            Err(TryLockError::Poisoned(_)) => Err(self.poison()),
        }
    }

    /// As [`StitchPool::free_from_anywhere`].
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn free_from_anywhere(&self, ptr: DevicePtr) -> Result<(), AllocError> {
        self.central(|pool| self.free_any(pool, ptr, Last::Anywhere))
    }

    /// Tells that work enqueued on `stream` uses the allocation at `ptr`.
    ///
    /// # Errors
    /// As [`Allocator::record_use`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn record_use(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.check_sound()?;
        let at = offset_in(self.arena, ptr)?;
        if self.pages.get(page_of(at)).is_none() {
            return self.central(|pool| pool.record_use(ptr, stream));
        }
        let user = self.index_of(stream)?;
        let (name, mut state) = self.unit_at(at)?.ok_or(AllocError::NotAllocated(ptr))?;
        state.small.pool.find(name.unit, at % PAGE).ok_or(AllocError::NotAllocated(ptr))?;
        let users = if user == name.stream { return Ok(()) } else { state.users.entry(at).or_default() };
        if !users.contains(&user) {
            users.push(user);
        }
        Ok(())
    }

    /// Gives physical memory back to the device, free units of the shards included.
    ///
    /// # Errors
    /// As [`Allocator::trim`]; [`AllocError::Poisoned`] if a thread panicked inside.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.central(|pool| {
            self.collect_for(pool, keep_bytes)?;
            pool.trim_to(keep_bytes)
        })
    }

    /// As [`StitchPool::defragment`].
    ///
    /// # Errors
    /// As [`StitchPool::defragment`].
    pub fn defragment(&self) -> Result<Defragmented, AllocError> {
        self.central(|pool| {
            self.collect(pool)?;
            pool.defragment()
        })
    }

    /// As [`StitchPool::set_limit_bytes`].
    ///
    /// # Errors
    /// As [`StitchPool::set_limit_bytes`].
    pub fn set_limit_bytes(&self, limit_bytes: u64) -> Result<u64, AllocError> {
        self.central(|pool| {
            let collected = self.collect_for(pool, limit_bytes);
            let set = pool.set_limit_bytes(limit_bytes)?;
            collected.map(|()| set)
        })
    }

    /// Figures of this moment. The peaks of requested and allocated bytes count the small objects of a
    /// stream as they were when it last took or gave back a unit, or now.
    pub fn stats(&self) -> Stats {
        let mut pool = self.central.lock().unwrap_or_else(PoisonError::into_inner);
        self.free_late(&mut pool);
        for (_, shard) in self.shards() {
            report(&mut pool, &mut shard.state.lock().unwrap_or_else(PoisonError::into_inner));
        }
        pool.stats()
    }

    /// As [`StitchPool::stream_ends`].
    ///
    /// # Errors
    /// As [`StitchPool::stream_ends`].
    pub fn stream_ends(&self, stream: StreamId) -> Result<(), AllocError> {
        self.central(|pool| pool.stream_ends(stream))
    }

    /// As [`StitchPool::mark`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn mark(&self) -> Result<Mark, AllocError> {
        self.central(|pool| Ok(pool.mark()))
    }

    /// As [`StitchPool::synchronized`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn synchronized(&self, mark: Mark) -> Result<(), AllocError> {
        self.central(|pool| {
            pool.synchronized(mark);
            self.shards().try_for_each(|(index, _)| self.settle(pool, index).map(drop))
        })
    }

    /// As [`StitchPool::begin_capture`]. Small objects of the capture lie in units of their own.
    ///
    /// # Errors
    /// As [`StitchPool::begin_capture`].
    pub fn begin_capture(&self, stream: StreamId) -> Result<GraphMemory, AllocError> {
        self.central(|pool| pool.begin_capture(stream))
    }

    /// As [`StitchPool::join_capture`].
    ///
    /// # Errors
    /// As [`StitchPool::join_capture`].
    pub fn join_capture(&self, memory: &mut GraphMemory, stream: StreamId) -> Result<(), AllocError> {
        self.central(|pool| pool.join_capture(memory, stream))
    }

    /// As [`StitchPool::end_capture`].
    ///
    /// # Errors
    /// [`AllocError::Poisoned`].
    pub fn end_capture(&self, stream: StreamId) -> Result<(), AllocError> {
        self.central(|pool| {
            pool.end_capture(stream);
            Ok(())
        })
    }

    /// As [`StitchPool::close`].
    ///
    /// # Errors
    /// As [`StitchPool::close`].
    pub fn close(self) -> Result<(), AllocError> {
        self.central(StitchPool::finish)
    }

    /// Serves a large request.
    fn allocate_large(&self, pool: &mut StitchPool, request: Request) -> Result<u64, AllocError> {
        let admitted = pool.admit(request)?;
        let at =
            self.under_pressure(pool, admitted.stream, request.bytes, |pool| pool.grant(request, admitted))?;
        pool.count(request.bytes, admitted.rounded);
        Ok(at)
    }

    /// Frees the small object at `at` where that takes its shard's lock only: it belongs to the stream
    /// on which it is freed, and no other uses it.
    fn free_own(&self, ptr: DevicePtr, at: u64, index: StreamIndex) -> Option<Result<(), AllocError>> {
        let has_surplus = match self.unit_at(at) {
            Err(error) => return Some(Err(error)),
            Ok(Some((name, mut state))) if name.stream == index => {
                let Some(spot) = state.small.pool.find(name.unit, at % PAGE) else {
                    return Some(Err(AllocError::NotAllocated(ptr)));
                };
                if !state.users.is_empty() && state.users.contains_key(&at) {
                    return None;
                }
                state.count_free(spot);
                state.release(spot);
                !state.surplus.is_empty()
            }
            Ok(_) => return None,
        };
        // What cannot be given back now is given back later.
        if has_surplus && let Ok(mut pool) = self.central.try_lock() {
            return Some(self.run(&mut pool, |pool| self.give_back_surplus(pool, index)));
        }
        Some(Ok(()))
    }

    /// The unit at `at`, with its shard locked.
    fn unit_at(&self, at: u64) -> Result<Option<(UnitName, MutexGuard<'_, State>)>, AllocError> {
        let page = page_of(at);
        let Some(name) = self.pages.get(page) else { return Ok(None) };
        let state = self.state(name.stream)?;
        // The unit may have gone before its shard was locked.
        Ok((self.pages.get(page) == Some(name)).then_some((name, state)))
    }

    /// Frees the allocation at `ptr`, whatever it is.
    fn free_any(&self, pool: &mut StitchPool, ptr: DevicePtr, last: Last) -> Result<(), AllocError> {
        let at = pool.check_free(ptr)?;
        let Some((name, mut state)) = self.unit_at(at)? else { return pool.freed(ptr, at, last) };
        let owner = name.stream;
        let spot = state.small.pool.find(name.unit, at % PAGE).ok_or(AllocError::NotAllocated(ptr))?;
        state.count_free(spot);
        let tag = pool.last_use(last, owner);
        let users = state.take_users(at);
        let uses = users.into_iter().map(|user| pool.order.tag(user)).chain([tag]);
        let after: crate::stale::Uses = uses.filter(|&tag| !pool.order.is_ready(owner, tag)).collect();
        if after.is_empty() {
            state.release(spot);
        } else {
            state.small.pool.hold(spot);
            state.held.push((spot, after));
        }
        drop(state);
        self.give_back_surplus(pool, owner)
    }

    /// Does the frees that would have had to wait.
    fn free_late(&self, pool: &mut StitchPool) {
        let late = std::mem::take(&mut *self.late());
        for (ptr, key) in late {
            let last = key.map(|key| pool.order.index_of_key(key).map_or(Last::Anywhere, Last::On));
            // There is nobody to tell.
            let _ = self.free_any(pool, ptr, last.unwrap_or(Last::Anywhere));
        }
    }

    fn late(&self) -> MutexGuard<'_, Vec<(DevicePtr, Option<Key>)>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
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
            let index = pool.order.index_of(stream).ok_or(AllocError::TooManyStreams)?;
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
