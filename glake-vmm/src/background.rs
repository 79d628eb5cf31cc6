//! Work off the path of requests, in steps short enough to hold a lock for.
//!
//! A thread that has nothing else to do calls [`StitchPool::step`] between the requests of others, as
//! a [`Worker`](crate::Worker) does. Tests drive it by hand.

use std::collections::BTreeSet;

use glake_core::alloc::AllocError;
use glake_core::driver::DriverError;

use crate::config::Mode;
use crate::order::{StreamIndex, Tag};
use crate::plan::Plan;
use crate::pool::StitchPool;
use crate::sizing::single_pages;
use crate::stale::StaleMapping;
use crate::units::{PAGE, page_of, page_start};

/// Pages that a step creates.
const STEP_PAGES: usize = 4;

/// Mappings of graphs that a step passes over.
const MOST_DEFERRED: usize = 16;

/// What [`StitchPool::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Nothing was to be done.
    Idle,
    /// A mapping that is no longer needed was removed.
    Unmapped,
    /// Memory was created ahead of a request.
    Grew,
    /// Memory was given back to the device.
    Shrank,
}

impl StitchPool {
    /// Leaves to [`step`](Self::step) what requests would do otherwise: from now on a miss removes no
    /// mappings but those in its way.
    pub fn leave_to_steps(&mut self) {
        self.is_stepped = true;
    }

    /// Does one piece of background work, a few driver calls at most, and never waits: removes one
    /// mapping of the too many that are no longer needed, creates memory where less is free than
    /// [`headroom_bytes`](crate::Config::headroom_bytes), or gives one handle back where the device has
    /// less free than [`leave_bytes`](crate::Config::leave_bytes).
    ///
    /// # Errors
    /// [`AllocError::Driver`]: nothing was done. [`AllocError::Poisoned`].
    pub fn step(&mut self) -> Result<Step, AllocError> {
        self.check_sound()?;
        self.collect_graphs();
        self.order.poll(&*self.driver);
        self.release_held();
        if self.unmap_oldest()? {
            return Ok(Step::Unmapped);
        }
        let Some(room_bytes) = self.room_beside_others()? else {
            return Ok(if self.give_back_one()? { Step::Shrank } else { Step::Idle });
        };
        Ok(if self.grow_ahead(room_bytes)? { Step::Grew } else { Step::Idle })
    }

    /// Unmaps the oldest stale mapping, if there are too many and it is not used any more.
    pub(crate) fn unmap_oldest(&mut self) -> Result<bool, AllocError> {
        if !self.has_much_stale() {
            return Ok(false);
        }
        let Some(oldest) = self.oldest_of_no_graph() else { return Ok(false) };
        let (page, uses) = (oldest.page, oldest.uses.clone());
        for &tag in &uses {
            match self.order.ensure_event(tag, &*self.driver) {
                // Later.
                Err(DriverError::Capturing(_) | DriverError::NotSupported(_)) => return Ok(false),
                ensured => ensured?,
            }
        }
        if !uses.iter().all(|&tag| self.order.has_passed(tag, &*self.driver)) {
            return Ok(false);
        }
        self.unmap_stale(page)?;
        Ok(true)
    }

    /// The oldest stale mapping that no graph may use. Those that stand before it go to the back, a few
    /// at a time.
    fn oldest_of_no_graph(&mut self) -> Option<&StaleMapping> {
        for _ in 0..MOST_DEFERRED {
            let oldest = self.stale.oldest()?;
            if !oldest.uses.iter().any(|&tag| self.order.is_graphs(tag)) {
                return self.stale.oldest();
            }
            let page = oldest.page;
            self.stale.defer(page);
        }
        None
    }

    /// Free bytes of the device beyond those that others are to be left; `None` if there are not even
    /// those.
    fn room_beside_others(&self) -> Result<Option<u64>, AllocError> {
        match self.config.leave_bytes {
            0 => Ok(Some(u64::MAX)),
            leave_bytes => {
                let info = self.driver.memory_info(self.config.device)?;
                Ok(info.free_bytes.checked_sub(leave_bytes))
            }
        }
    }

    /// Creates a few pages of `room_bytes` behind the last home, if less is free there than wanted.
    fn grow_ahead(&mut self, room_bytes: u64) -> Result<bool, AllocError> {
        let tail = self.blocks.free_before(self.slots.end(), &self.slots);
        let free_bytes = tail.map_or(0, |block| self.blocks.get(block).bytes);
        let most_bytes = self.config.limit_bytes.min(self.device_bytes);
        let room = page_of(most_bytes.saturating_sub(self.physical_bytes()).min(room_bytes));
        let n_pages = STEP_PAGES.min(room);
        let start = self.slots.end();
        let pages = start..start + n_pages;
        let is_taken = !self.stale.touching(&pages, &self.slots).is_empty();
        let fits = page_start(pages.end) <= self.arena.bytes;
        if free_bytes >= self.config.headroom_bytes || n_pages == 0 || is_taken || !fits {
            return Ok(false);
        }
        let plan = Plan { pages, donors: Vec::new(), n_missing: n_pages };
        let sizes: Vec<usize> = match self.config.mode {
            Mode::Compact => single_pages(n_pages).collect(),
            _ => vec![n_pages],
        };
        self.commit(&plan, &sizes, StreamIndex::ALL).map_err(|error| self.not_committed(error))?;
        self.note_peak_reserved();
        Ok(true)
    }

    /// Gives one handle that nobody uses back to the device. Where there is none, it sees to it that
    /// events tell when there is.
    fn give_back_one(&mut self) -> Result<bool, AllocError> {
        let before = self.physical_bytes();
        self.give_back_idle(before.saturating_sub(PAGE))?;
        if self.physical_bytes() < before {
            return Ok(true);
        }
        let tags: BTreeSet<Tag> =
            self.blocks.by_clean().flat_map(|block| self.blocks.pieces(block)).map(|(_, tag)| tag).collect();
        for tag in tags {
            let _ = self.order.ensure_event(tag, &*self.driver);
        }
        Ok(false)
    }
}
