//! Runs a plan on the driver, and undoes it where a call fails.

use std::ops::Range;

use glake_core::alloc::AllocError;
use glake_core::driver::{Access, DriverError, Retired};
use glake_core::units::{AddressRange, DevicePtr, HandleId};

use crate::order::Epoch;
use crate::plan::Plan;
use crate::pool::StitchPool;
use crate::stale::StaleMapping;
use crate::units::{PAGE, index, page_start};

/// Runs that a pool remembers to have stitched.
pub(crate) const N_STITCHED: usize = 64;

/// Why a plan could not be carried out. Nothing has changed, unless `Poisoned`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    /// A call failed, and what was done before it is undone.
    Undone(DriverError),
    /// A call failed, and so did the undo.
    Poisoned,
}

impl StitchPool {
    /// Gives `plan.pages` homes: moves the donors there and creates handles of `sizes` pages for
    /// what is missing.
    pub(crate) fn commit(&mut self, plan: &Plan, sizes: &[usize]) -> Result<(), CommitError> {
        self.unmap_stale_in(&plan.pages).map_err(CommitError::Undone)?;
        let created = self.create_all(sizes)?;
        let moved: Vec<u32> = plan.donors.iter().flat_map(|d| self.slots.homes_in(d.pages.clone())).collect();
        let epoch = match self.map_all(plan, &moved, &created, sizes) {
            Ok(epoch) => epoch,
            Err((mapped, error)) => return Err(self.undo(mapped, &created, error)),
        };
        self.rehome(plan, &moved, epoch);
        let mut page = plan.pages.start + plan.donors.iter().map(|d| d.pages.len()).sum::<usize>();
        for (&id, &n_pages) in created.iter().zip(sizes) {
            let handle = self.slots.adopt(id, index(n_pages));
            self.slots.settle(handle, page);
            page += n_pages;
        }
        self.blocks.add_pages(&plan.pages, &mut self.slots);
        self.spent.n_handles += created.len() as u64;
        Ok(())
    }

    /// What a caller of the pool learns of `error`.
    pub(crate) fn not_committed(&mut self, error: CommitError) -> AllocError {
        match error {
            CommitError::Undone(error) => error.into(),
            CommitError::Poisoned => {
                self.is_poisoned = true;
                AllocError::Poisoned
            }
        }
    }

    /// Unmaps stale mappings in `pages`; the planner saw that their events have passed.
    fn unmap_stale_in(&mut self, pages: &Range<usize>) -> Result<(), DriverError> {
        let stale = self.stale.touching(pages, &self.slots);
        stale.iter().try_for_each(|mapping| self.unmap_stale(mapping))
    }

    /// Unmaps one stale mapping whose event has passed.
    pub(crate) fn unmap_stale(&mut self, mapping: &StaleMapping) -> Result<(), DriverError> {
        let n_pages = self.slots.handle(mapping.handle).n_pages as usize;
        self.driver.unmap(self.range(&(mapping.page..mapping.page + n_pages)))?;
        self.forget_stale(mapping);
        Ok(())
    }

    fn create_all(&self, sizes: &[usize]) -> Result<Vec<HandleId>, CommitError> {
        let mut created = Vec::with_capacity(sizes.len());
        for &n_pages in sizes {
            match self.driver.create(self.config.device, n_pages as u64 * PAGE) {
                Ok(handle) => created.push(handle),
                Err(error) => return Err(self.undo(0..0, &created, error)),
            }
        }
        Ok(created)
    }

    /// Undoes mappings and creations after `error`. What cannot be undone goes to the driver, which
    /// tries again later: nobody has used it.
    fn undo(&self, mapped: Range<usize>, created: &[HandleId], error: DriverError) -> CommitError {
        let mut left = Retired::default();
        if !mapped.is_empty() && self.driver.unmap(self.range(&mapped)).is_err() {
            left.mappings.push(self.range(&mapped));
            left.handles.extend(created);
        } else {
            left.handles.extend(created.iter().filter(|&&handle| self.driver.release(handle).is_err()));
        }
        if left == Retired::default() {
            return CommitError::Undone(error);
        }
        self.driver.retire(left);
        CommitError::Poisoned
    }

    /// Maps donors and new handles one behind the other, with access, and closes the epoch in
    /// which the donors' old addresses were last used. On failure, the pages mapped so far.
    fn map_all(
        &mut self,
        plan: &Plan,
        moved: &[u32],
        created: &[HandleId],
        sizes: &[usize],
    ) -> Result<Option<Epoch>, (Range<usize>, DriverError)> {
        let mut page = plan.pages.start;
        let old = moved.iter().map(|&h| (self.slots.handle(h).id, self.slots.handle(h).pages().len()));
        let new = created.iter().copied().zip(sizes.iter().copied());
        for (handle, n_pages) in old.chain(new) {
            if let Err(error) = self.driver.map(self.address(page), handle) {
                return Err((plan.pages.start..page, error));
            }
            page += n_pages;
        }
        let access =
            self.driver.set_access(self.range(&plan.pages), &[self.config.device], Access::ReadWrite);
        let closed = match access {
            Ok(()) if moved.is_empty() => return Ok(None),
            Ok(()) => self.order.close_epoch(&*self.driver),
            Err(error) => Err(error),
        };
        closed.map(Some).map_err(|error| (plan.pages.clone(), error))
    }

    /// Moves the donors' homes to the front of the plan's pages. Without an epoch nothing moves.
    fn rehome(&mut self, plan: &Plan, moved: &[u32], epoch: Option<Epoch>) {
        let Some(epoch) = epoch else { return };
        for donor in &plan.donors {
            self.blocks.remove_pages(donor.block, &donor.pages, &mut self.slots);
        }
        let mut page = plan.pages.start;
        for &handle in moved {
            let n_pages = self.leave_home(handle, epoch);
            self.counters.stitched_bytes += n_pages as u64 * PAGE;
            self.slots.settle(handle, page);
            page += n_pages;
        }
        self.counters.n_stitches += 1;
        self.spent.n_handles += moved.len() as u64;
        self.note_stitched(plan);
    }

    /// Takes the home away from a handle, which stays mapped there for the work of `epoch` and
    /// earlier ones; how many pages it has.
    pub(crate) fn leave_home(&mut self, handle: u32, epoch: Epoch) -> usize {
        let old = self.slots.unsettle(handle);
        let n_pages = old.len();
        self.stale.insert(StaleMapping { handle, page: old.start, epoch });
        self.slots.mark_stale(handle, old);
        n_pages
    }

    /// Notes that a mapping is no longer stale: it is gone, or a home again.
    pub(crate) fn forget_stale(&mut self, mapping: &StaleMapping) {
        self.slots.clear_stale(mapping.handle, mapping.page);
        self.stale.remove(mapping);
    }

    /// Remembers where a run was stitched, so that it can be revived.
    fn note_stitched(&mut self, plan: &Plan) {
        if self.stitched.len() == N_STITCHED {
            self.stitched.pop_front();
        }
        self.stitched.push_back(plan.pages.start);
        let moved_bytes = plan.donors.iter().map(|d| d.pages.len() as u64 * PAGE).sum();
        self.homing.note_moved(moved_bytes, self.physical_bytes(), self.spent.n_ops);
    }

    /// The addresses of `pages`.
    pub(crate) fn range(&self, pages: &Range<usize>) -> AddressRange {
        AddressRange::new(self.address(pages.start), pages.len() as u64 * PAGE)
    }

    fn address(&self, page: usize) -> DevicePtr {
        self.arena.start + page_start(page)
    }
}
