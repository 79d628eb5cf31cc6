//! Frees, and what is told of uses.

use std::sync::{PoisonError, TryLockError};

use glake_core::alloc::{AllocError, Allocator};
use glake_core::units::{DevicePtr, StreamId};

use super::{Late, SharedPool, State};
use crate::free::Last;
use crate::order::{Key, StreamIndex};
use crate::pool::{StitchPool, offset_in};
use crate::spare::UnitName;
use crate::sync::MutexGuard;
use crate::units::{PAGE, page_of};

impl SharedPool {
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
            let stream = pool.index_of(stream)?;
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
                let stream = pool.index_of(stream)?;
                self.free_any(pool, ptr, Last::On(stream))
            }),
            Err(TryLockError::WouldBlock) => {
                self.late().push(Late { ptr, on: Key::of(stream) });
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
    pub(super) fn unit_at(&self, at: u64) -> Result<Option<(UnitName, MutexGuard<'_, State>)>, AllocError> {
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
        match pool.foreign_uses(state.take_users(at), (last, tag), owner, owner) {
            None => state.release(spot),
            Some(after) => {
                state.small.pool.hold(spot);
                state.held.push((spot, after));
            }
        }
        drop(state);
        self.give_back_surplus(pool, owner)
    }

    /// Does the frees that would have had to wait.
    pub(super) fn free_late(&self, pool: &mut StitchPool) {
        let late = std::mem::take(&mut *self.late());
        for Late { ptr, on } in late {
            let last = pool.order.index_of_key(on).map_or(Last::Anywhere, Last::On);
            // There is nobody to tell.
            let _ = self.free_any(pool, ptr, last);
        }
    }

    fn late(&self) -> MutexGuard<'_, Vec<Late>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
