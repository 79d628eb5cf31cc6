//! Runs a plan on the driver, and undoes it where a call fails.

use std::ops::Range;

use glake_core::driver::{Access, DriverError};
use glake_core::units::{AddressRange, HandleId, PAGE_BYTES};

use crate::order::Epoch;
use crate::plan::Plan;
use crate::pool::StitchPool;
use crate::stale::StaleMapping;
use crate::units::{NONE, page_start};

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
    pub(crate) fn commit(&mut self, plan: &Plan, sizes: &[u32]) -> Result<(), CommitError> {
        self.unmap_stale_in(&plan.pages).map_err(CommitError::Undone)?;
        let created = self.create_all(sizes)?;
        let moved: Vec<u32> = plan.donors.iter().flat_map(|d| self.slots.homes_in(d.pages.clone())).collect();
        let epoch = match self.map_all(plan, &moved, &created, sizes) {
            Ok(epoch) => epoch,
            Err(error) => return Err(self.release_all(&created, error)),
        };
        self.rehome(plan, &moved, epoch);
        let mut page = plan.pages.start + plan.donors.iter().map(|d| d.pages.len()).sum::<usize>();
        for (&id, &n_pages) in created.iter().zip(sizes) {
            let handle = self.slots.adopt(id, n_pages);
            self.slots.settle(handle, page);
            page += n_pages as usize;
        }
        self.blocks.add_pages(&plan.pages, &mut self.slots);
        Ok(())
    }

    /// Unmaps stale mappings in `pages`; the planner saw that their events have passed.
    fn unmap_stale_in(&mut self, pages: &Range<usize>) -> Result<(), DriverError> {
        let slots = &self.slots;
        let stale = self.stale.touching(pages, |h| slots.handle(h).n_pages as usize);
        stale.iter().try_for_each(|mapping| self.unmap_stale(mapping))
    }

    /// Unmaps one stale mapping whose event has passed.
    pub(crate) fn unmap_stale(&mut self, mapping: &StaleMapping) -> Result<(), DriverError> {
        let n_pages = self.slots.handle(mapping.handle).n_pages as usize;
        self.driver.unmap(self.range(&(mapping.page..mapping.page + n_pages)))?;
        self.slots.clear_stale(mapping.handle, mapping.page);
        self.stale.remove(mapping);
        Ok(())
    }

    fn create_all(&self, sizes: &[u32]) -> Result<Vec<HandleId>, CommitError> {
        let mut created = Vec::with_capacity(sizes.len());
        for &n_pages in sizes {
            match self.driver.create(self.config.device, u64::from(n_pages) * PAGE_BYTES) {
                Ok(handle) => created.push(handle),
                Err(error) => return Err(self.release_all(&created, error)),
            }
        }
        Ok(created)
    }

    /// Undoes creations after `error`.
    fn release_all(&self, created: &[HandleId], error: impl Into<CommitError>) -> CommitError {
        let mut error = error.into();
        for &handle in created {
            if self.driver.release(handle).is_err() {
                error = CommitError::Poisoned;
            }
        }
        error
    }

    /// Maps donors and new handles one behind the other, with access, and closes the epoch in
    /// which the donors' old addresses were last used.
    fn map_all(
        &mut self,
        plan: &Plan,
        moved: &[u32],
        created: &[HandleId],
        sizes: &[u32],
    ) -> Result<Option<Epoch>, CommitError> {
        let mut page = plan.pages.start;
        let old = moved.iter().map(|&h| (self.slots.handle(h).id, self.slots.handle(h).n_pages));
        let new = created.iter().copied().zip(sizes.iter().copied());
        for (handle, n_pages) in old.chain(new) {
            if let Err(error) = self.driver.map(self.address(page), handle) {
                return Err(self.unmap_new(plan.pages.start..page, error));
            }
            page += n_pages as usize;
        }
        let access =
            self.driver.set_access(self.range(&plan.pages), &[self.config.device], Access::ReadWrite);
        let closed = match access {
            Ok(()) if moved.is_empty() => return Ok(None),
            Ok(()) => self.order.close_epoch(&*self.driver),
            Err(error) => Err(error),
        };
        closed.map(Some).map_err(|error| self.unmap_new(plan.pages.clone(), error))
    }

    /// Undoes mappings after `error`.
    fn unmap_new(&self, pages: Range<usize>, error: DriverError) -> CommitError {
        if pages.is_empty() || self.driver.unmap(self.range(&pages)).is_ok() {
            CommitError::Undone(error)
        } else {
            CommitError::Poisoned
        }
    }

    /// Moves the donors' homes to the front of the plan's pages.
    fn rehome(&mut self, plan: &Plan, moved: &[u32], epoch: Option<Epoch>) {
        for donor in &plan.donors {
            // Earlier donors of the same block may have left a part of it under another name.
            self.blocks.remove_pages(donor.block, &donor.pages, &mut self.slots);
        }
        let mut page = plan.pages.start;
        for &handle in moved {
            let old = self.slots.unsettle(handle);
            if let Some(epoch) = epoch {
                self.stale.insert(StaleMapping { handle, page: old.start, epoch });
            }
            let n_pages = old.len();
            self.stitched_bytes += n_pages as u64 * PAGE_BYTES;
            self.slots.mark_stale(handle, old);
            self.slots.settle(handle, page);
            page += n_pages;
        }
        self.n_stitches += u64::from(!moved.is_empty());
    }

    /// The addresses of `pages`.
    pub(crate) fn range(&self, pages: &Range<usize>) -> AddressRange {
        AddressRange::new(self.address(pages.start), pages.len() as u64 * PAGE_BYTES)
    }

    fn address(&self, page: usize) -> glake_core::units::DevicePtr {
        self.arena.start + page_start(page)
    }
}

impl From<DriverError> for CommitError {
    fn from(error: DriverError) -> Self {
        Self::Undone(error)
    }
}

/// Handle sizes in pages that make up `n_missing` pages of growth.
///
/// Few big handles cost little driver time; small ones can be moved where bytes are missing. So
/// handles grow with the physical memory that the pool has already.
pub(crate) fn handle_sizes(
    n_missing: usize,
    n_physical_pages: u64,
    dirty: u64,
    credits: i64,
    need_pages: usize,
    n_moved: usize,
    compact: bool,
) -> Vec<u32> {
    if env("GP", 0) == 8 && !compact {
        let big = env("GM", 4) as i64;
        let m = n_missing as i64;
        let share = dirty * 10000 / (n_physical_pages * 2 << 20).max(1);
        let a = if share < env("GF", 0) {
            0
        } else {
            env("LA", 20) as i64 + need_pages as i64 * 100 / env("LB", 300) as i64 - n_moved as i64 * 73 / 100
        };
        let a = a.min(credits / env("CD", 4) as i64).max(0);
        let x = if a >= m { m } else { ((big * a - m) / (big - 1)).max(0) };
        let mut sizes = vec![1; x as usize];
        let mut left = m - x;
        while left > 0 {
            sizes.push(left.min(big) as u32);
            left -= big;
        }
        return sizes;
    }
    let each = if compact { 1 } else { unit_pages(n_missing, n_physical_pages, dirty, credits) };
    let mut left = u32::try_from(n_missing).unwrap_or(NONE);
    let mut sizes = Vec::with_capacity(n_missing / each as usize + 1);
    while left > 0 {
        let n = each.min(left);
        sizes.push(n);
        left -= n;
    }
    sizes
}

pub(crate) fn env(name: &str, default: u64) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "exploration")]
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn unit_pages(n_missing: usize, n_physical_pages: u64, dirty: u64, credits: i64) -> u32 {
    let policy = env("GP", 0);
    let gib = n_physical_pages / 512;
    match policy {
        0 => {
            if gib < 4 {
                1
            } else if gib < 8 {
                2
            } else {
                4
            }
        }
        1 => u32::try_from((n_missing as u64 / env("GD", 8)).clamp(1, env("GM", 16))).unwrap_or(1),
        4 => {
            // dirty share in 1/10000 of physical
            let share = dirty * 10000 / (n_physical_pages * 2 << 20).max(1);
            let full = env("GF", 50); // at this share: 1 page
            let m = env("GM", 16);
            let each = if share >= full { 1 } else { (m * (full - share) / full).max(1) };
            u32::try_from(each).unwrap_or(1)
        }
        5 => {
            // dirty share in 1/10000 of physical
            let share = dirty * 10000 / (n_physical_pages * 2 << 20).max(1);
            let full = env("GF", 50); // at this share: 1 page
            let m = env("GM", 16);
            let n = (n_physical_pages / env("GQ", 512)).max(1);
            let each = if share >= full { n.min(4) } else { n.max(m * (full - share) / full).max(1) };
            u32::try_from(each).unwrap_or(1)
        }
        6 => {
            // dirty share in 1/10000 of physical
            let share = dirty * 10000 / (n_physical_pages * 2 << 20).max(1);
            let a = if gib < env("G1", 4) {
                1
            } else if gib < env("G2", 8) {
                2
            } else {
                4
            };
            let each = if share < env("GF", 5) { a.max(env("GM", 8)) } else { a };
            u32::try_from(each).unwrap_or(1)
        }
        7 => {
            let c = (credits / env("CD", 4) as i64).max(1);
            let each = (n_missing as i64 + c - 1) / c;
            let m = if gib < env("G1", 0) { 2 } else { env("GM", 4) as i64 };
            let each = each.clamp(1, m);
            let each = if env("P2", 0) > 0 { (each as u64).next_power_of_two() as i64 } else { each };
            u32::try_from(each).unwrap_or(1)
        }
        2 => u32::try_from(env("GM", 4)).unwrap_or(1),
        _ => {
            let a = if gib < 4 {
                1
            } else if gib < 8 {
                2
            } else {
                4
            };
            a.max(u32::try_from((n_missing as u64 / env("GD", 8)).min(env("GM", 16))).unwrap_or(1))
        }
    }
}
