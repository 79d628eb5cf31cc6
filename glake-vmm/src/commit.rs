//! Runs a plan on the driver, and undoes it where a call fails.

use std::ops::Range;

use glake_core::alloc::AllocError;
use glake_core::driver::{Access, DriverError, Retired};
use glake_core::units::{AddressRange, DevicePtr, HandleId};

use crate::order::StreamIndex;
use crate::pieces::List;
use crate::plan::Plan;
use crate::pool::StitchPool;
use crate::stale::{StaleMapping, last_uses};
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
    /// Gives `plan.pages` homes, for `stream`: moves the donors there and creates handles of `sizes`
    /// pages for what is missing.
    pub(crate) fn commit(
        &mut self,
        plan: &Plan,
        sizes: &[usize],
        stream: StreamIndex,
    ) -> Result<(), CommitError> {
        self.unmap_stale_in(&plan.pages).map_err(CommitError::Undone)?;
        let created = self.create_all(sizes)?;
        let moved: Vec<u32> = plan.donors.iter().flat_map(|d| self.slots.homes_in(d.pages.clone())).collect();
        if let Err((mapped, error)) = self.map_all(plan, &moved, &created, sizes, stream) {
            return Err(self.undo(mapped, &created, error));
        }
        let pieces = self.rehome(plan, &moved);
        let mut page = plan.pages.start + plan.donors.iter().map(|d| d.pages.len()).sum::<usize>();
        let new = self.blocks.unused(plan.pages.end - page);
        let pieces = self.blocks.join_pieces(pieces, new);
        for (&id, &n_pages) in created.iter().zip(sizes) {
            let handle = self.slots.adopt(id, index(n_pages));
            self.slots.settle(handle, page);
            page += n_pages;
        }
        self.blocks.add_pages(&plan.pages, pieces, &mut self.slots);
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
        let pages: Vec<usize> = stale.iter().map(|mapping| mapping.page).collect();
        pages.into_iter().try_for_each(|page| self.unmap_stale(page))
    }

    /// Unmaps the stale mapping that starts at `page`, whose uses have passed.
    pub(crate) fn unmap_stale(&mut self, page: usize) -> Result<(), DriverError> {
        let Some(mapping) = self.stale.at(page) else { return Ok(()) };
        let n_pages = self.slots.handle(mapping.handle).n_pages as usize;
        self.driver.unmap(self.range(&(page..page + n_pages)))?;
        self.forget_stale(page);
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

    /// Maps donors and new handles one behind the other, with access, and records an event behind
    /// what `stream` did with the donors' old addresses. On failure, the pages mapped so far.
    fn map_all(
        &mut self,
        plan: &Plan,
        moved: &[u32],
        created: &[HandleId],
        sizes: &[usize],
        stream: StreamIndex,
    ) -> Result<(), (Range<usize>, DriverError)> {
        let mut page = plan.pages.start;
        let old = moved.iter().map(|&h| (self.slots.handle(h).id, self.slots.handle(h).pages().len()));
        let new = created.iter().copied().zip(sizes.iter().copied());
        for (handle, n_pages) in old.chain(new) {
            if let Err(error) = self.driver.map(self.address(page), handle) {
                return Err((plan.pages.start..page, error));
            }
            page += n_pages;
        }
        let access = self.driver.set_access(self.range(&plan.pages), &self.devices, Access::ReadWrite);
        let closed = match access {
            Ok(()) => self.close_behind(plan, stream),
            Err(error) => Err(error),
        };
        closed.map_err(|error| (plan.pages.clone(), error))
    }

    /// Sees to it that there is an event behind what `stream` used the donors for: those of other
    /// streams have one, or come with a wait. A stream that takes no event keeps its mappings until
    /// it does.
    fn close_behind(&mut self, plan: &Plan, stream: StreamIndex) -> Result<(), DriverError> {
        let tags = plan.donors.iter().flat_map(|donor| self.blocks.pieces(donor.block));
        let Some(own) = tags.map(|(_, tag)| tag).filter(|tag| tag.stream == stream).max() else {
            return Ok(());
        };
        match self.order.ensure_event(own, &*self.driver) {
            Err(DriverError::Capturing(_) | DriverError::NotSupported(_)) => Ok(()),
            ensured => ensured,
        }
    }

    /// Moves the donors' homes to the front of the plan's pages; what their bytes were used for.
    fn rehome(&mut self, plan: &Plan, moved: &[u32]) -> List {
        let mut pieces = List::EMPTY;
        if moved.is_empty() {
            return pieces;
        }
        let mut page = plan.pages.start;
        for &handle in moved {
            let old = self.slots.handle(handle).pages();
            let moved = self.leave_home(handle);
            pieces = self.blocks.join_pieces(pieces, moved);
            self.counters.stitched_bytes += old.len() as u64 * PAGE;
            self.slots.settle(handle, page);
            page += old.len();
        }
        self.counters.n_stitches += 1;
        self.spent.n_handles += moved.len() as u64;
        self.note_stitched(plan);
        pieces
    }

    /// Takes the home away from a free handle, which stays mapped there for what its bytes were
    /// used for.
    pub(crate) fn leave_home(&mut self, handle: u32) -> List {
        let old = self.slots.handle(handle).pages();
        let block = self.blocks.holding(old.start, &self.slots);
        let pieces = self.blocks.remove_pages(block, &old, &mut self.slots);
        self.slots.unsettle(handle);
        let uses = last_uses(self.blocks.tags(pieces).filter(|&tag| !self.order.is_done(tag)));
        self.stale.insert(StaleMapping { handle, page: old.start, uses });
        self.slots.mark_stale(handle, old);
        pieces
    }

    /// Notes that the mapping at `page` is no longer stale: it is gone, or a home again.
    pub(crate) fn forget_stale(&mut self, page: usize) {
        let Some(mapping) = self.stale.at(page) else { return };
        self.slots.clear_stale(mapping.handle, page);
        self.stale.remove(page);
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
