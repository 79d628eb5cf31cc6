//! Memory given back: trim, defragment, limit, close.

use std::collections::{BTreeMap, BTreeSet};

use glake_core::alloc::AllocError;
use glake_core::driver::{DriverError, Retired};

use crate::blocks::{first_handle_from, last_handle_until};
use crate::config::Mode;
use crate::order::{StreamIndex, Taker, Waiting};
use crate::pool::StitchPool;
use crate::units::PAGE;

/// What [`StitchPool::defragment`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defragmented {
    /// Free bytes that were moved to lie in one run.
    pub gathered_bytes: u64,
    /// Bytes of addresses whose stale mappings were removed.
    pub unmapped_bytes: u64,
    /// The largest free run in bytes now.
    pub largest_free_bytes: u64,
}

impl StitchPool {
    /// The most physical bytes that the pool may hold from now on. If it holds more, it gives
    /// back what is free, which may wait for device work; what is live stays. Returns the bytes
    /// given back.
    ///
    /// # Errors
    /// [`AllocError::Driver`] as for [`trim`](glake_core::alloc::Allocator::trim). The limit
    /// is set all the same.
    pub fn set_limit_bytes(&mut self, limit_bytes: u64) -> Result<u64, AllocError> {
        self.config.limit_bytes = limit_bytes;
        if self.physical_bytes() > limit_bytes { self.trim_to(limit_bytes) } else { Ok(0) }
    }

    /// Moves all whole free handles into one run, then removes every stale mapping. Waits for
    /// the work enqueued on the stream so far; no allocation moves.
    ///
    /// # Errors
    /// [`AllocError::Driver`]; what was done until then stays done.
    pub fn defragment(&mut self) -> Result<Defragmented, AllocError> {
        self.check_sound()?;
        self.give_up_spares();
        let stitched_before = self.counters.stitched_bytes;
        let mut clean = self.blocks.by_clean().flat_map(|block| self.blocks.pieces(block));
        let is_pending = clean.any(|(_, tag)| !self.order.is_done(tag));
        drop(clean);
        if self.stale.oldest().is_some() || is_pending {
            // So that no place is blocked and everything may move.
            self.wait_for_all()?;
        }
        self.gather_all()?;
        self.slots.naturalise();
        let mut unmapped_bytes = 0;
        if self.stale.oldest().is_some() {
            self.wait_for_all()?;
        }
        let idle = self.stale.iter().filter(|m| m.uses.iter().all(|&tag| self.order.is_done(tag)));
        for (page, handle) in idle.map(|m| (m.page, m.handle)).collect::<Vec<_>>() {
            unmapped_bytes += self.slots.handle(handle).pages().len() as u64 * PAGE;
            self.unmap_stale(page)?;
        }
        Ok(Defragmented {
            gathered_bytes: self.counters.stitched_bytes - stitched_before,
            unmapped_bytes,
            largest_free_bytes: self.blocks.largest_bytes(),
        })
    }

    /// Gives everything back, waiting for the device. Dropping the pool does the same without
    /// waiting: the driver finishes when the events have passed.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if the device is lost; the driver keeps what it could not give
    /// back and tries again when it is dropped.
    pub fn close(mut self) -> Result<(), AllocError> {
        self.finish()
    }

    /// Waits for the device, so that a drop gives everything back at once.
    pub(crate) fn finish(&mut self) -> Result<(), AllocError> {
        let waited = self.wait_for_all();
        self.is_idle = waited.is_ok();
        waited
    }

    pub(crate) fn trim_to(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        self.check_sound()?;
        self.give_up_spares();
        let before = self.physical_bytes();
        if before <= keep_bytes || (self.blocks.clean_bytes() == 0 && self.held.is_empty()) {
            return Ok(0);
        }
        self.wait_for_all()?;
        self.give_back_idle(keep_bytes)?;
        Ok(before - self.physical_bytes())
    }

    /// Gives back handles that nobody uses until `keep_bytes` are left.
    pub(crate) fn give_back_idle(&mut self, keep_bytes: u64) -> Result<(), AllocError> {
        let mut stale: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for mapping in self.stale.iter() {
            stale.entry(mapping.handle).or_default().push(mapping.page);
        }
        for handle in self.idle_handles() {
            if self.physical_bytes() <= keep_bytes {
                break;
            }
            self.give_back(handle, &stale.remove(&handle).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Whole free handles that the device is done with, at every address: of the largest free blocks
    /// first.
    fn idle_handles(&self) -> Vec<u32> {
        let is_done = |tag| self.order.is_done(tag);
        let pending = self.stale.iter().filter(|m| !m.uses.iter().copied().all(is_done));
        let pending: BTreeSet<u32> = pending.map(|m| m.handle).collect();
        let mut handles = Vec::new();
        for block in self.blocks.by_clean() {
            for span in self.spans(block, is_done).into_iter().rev() {
                let first = first_handle_from(span.start, &self.slots);
                let behind = last_handle_until(span.end, &self.slots).max(first);
                handles.extend(self.slots.homes_in(first..behind).rev());
            }
        }
        handles.retain(|handle| !pending.contains(handle));
        handles
    }

    /// Joins the whole free handles of all blocks behind the last home.
    fn gather_all(&mut self) -> Result<(), AllocError> {
        if self.config.mode == Mode::Pinned || self.blocks.by_clean().nth(1).is_none() {
            return Ok(());
        }
        let (tail, tail_clean) = match self.blocks.free_before(self.slots.end(), &self.slots) {
            Some(tail) => (self.blocks.get(tail).bytes, self.blocks.get(tail).clean_bytes()),
            None => (0, 0),
        };
        let all = tail + self.blocks.clean_bytes() - tail_clean;
        // What is done with is moved, and nobody waits.
        let nobody = Taker { stream: StreamIndex::ALL, waiting: Waiting::Refused };
        match self.plan_at_any_cost(all, 1, nobody) {
            Some(plan) if plan.n_missing == 0 => {
                self.commit(&plan, &[], nobody.stream).map_err(|error| self.not_committed(error))
            }
            _ => Ok(()),
        }
    }

    /// Gives one whole free handle back to the device, with its stale mappings at `stale`; the device
    /// is done with it.
    fn give_back(&mut self, handle: u32, stale: &[usize]) -> Result<(), AllocError> {
        stale.iter().try_for_each(|&page| self.unmap_stale(page))?;
        let pages = self.slots.handle(handle).pages();
        self.driver.unmap(self.range(&pages))?;
        let id = self.slots.handle(handle).id;
        let block = self.blocks.holding(pages.start, &self.slots);
        let pieces = self.blocks.remove_pages(block, &pages, &mut self.slots);
        self.blocks.drop_pieces(pieces);
        self.slots.unsettle(handle);
        self.slots.drop_handle(handle);
        if let Err(error) = self.driver.release(id) {
            // It is not the pool's any more: the driver tries again.
            self.driver.retire(Retired { handles: vec![id], ..Retired::default() });
            return Err(error.into());
        }
        Ok(())
    }

    /// Blocks until the device is done with all work enqueued so far; what was held for it is free
    /// then.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), AllocError> {
        self.collect_graphs();
        self.order.synchronize(&*self.driver)?;
        if !self.held.is_empty() {
            self.release_held();
            self.give_up_spares();
            // What they become may bear the tag of now.
            self.order.synchronize(&*self.driver)?;
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn check_sound(&self) -> Result<(), AllocError> {
        if self.is_poisoned { Err(AllocError::Poisoned) } else { Ok(()) }
    }
}

/// Hands everything to the driver, which gives it back once the stream's work so far is done.
impl Drop for StitchPool {
    fn drop(&mut self) {
        self.collect_graphs();
        let after = if self.is_idle { Ok(Vec::new()) } else { self.order.last_events(&*self.driver) };
        let after = match after {
            Ok(events) => events,
            // Nothing runs on a lost device any more.
            Err(DriverError::DeviceLost) => Vec::new(),
            Err(error) => {
                // As when a stream was destroyed before the pool: its work may still run, so
                // what it uses is kept rather than taken away under it.
                tracing::warn!(%error, "a pool cannot tell when its memory is unused, and keeps it");
                return;
            }
        };
        let homes = self.slots.handles().map(|(_, h)| h.pages());
        let stale = self.stale.iter().map(|m| m.page..m.page + self.slots.handle(m.handle).pages().len());
        let mappings = homes.chain(stale).map(|pages| self.range(&pages)).collect();
        let handles = self.slots.handles().map(|(_, h)| h.id).collect();
        self.driver.retire(Retired { after, mappings, handles, reservations: vec![self.arena] });
    }
}
