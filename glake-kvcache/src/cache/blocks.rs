//! How blocks come and go.

use super::KvCache;
use crate::blocks::Contents;
use crate::error::CacheError;
use crate::event::{Event, EventSink};
use crate::ids::{BlockId, ReservationId};
use crate::policy::Policy;
use crate::prefix::Copies;

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Blocks that may be given away; none while more pages are held than the limit allows.
    #[inline]
    pub(super) const fn n_givable(&self) -> u32 {
        if self.limit.excess_pages() > 0 { 0 } else { self.pool.n_free() }
    }

    /// How many of `needed` blocks a reservation covers.
    ///
    /// # Errors
    /// More are needed than can be had.
    #[inline]
    pub(super) fn cover(&self, needed: u32, reservation: Option<ReservationId>) -> Result<u32, CacheError> {
        let covered = self.reservations.left(reservation).min(needed);
        let available = self.n_available().saturating_add(covered).min(self.n_givable());
        if needed > available { Err(CacheError::NoBlocks { needed, available }) } else { Ok(covered) }
    }

    /// Adds `n` blocks to `taken`, for the caller alone. That there are so many is known.
    #[inline]
    pub(super) fn take(&mut self, n: u32, taken: &mut Vec<BlockId>) {
        let before = taken.len();
        let n_blank = self.pool.take(n, taken);
        for &block in &taken[before + n_blank as usize..] {
            self.unindex(block);
        }
        self.counts.allocated_blocks += u64::from(n);
        self.counts.evictions += u64::from(n - n_blank);
    }

    /// A block for the caller alone, if there is one.
    #[inline]
    pub(super) fn take_one(&mut self) -> Option<BlockId> {
        let block = self.pool.take_one()?;
        if self.pool.is_cached(block) {
            self.unindex(block);
            self.counts.evictions += 1;
        }
        self.counts.allocated_blocks += 1;
        Some(block)
    }

    /// Has the contents of a block found no longer.
    #[inline]
    pub(super) fn unindex(&mut self, block: BlockId) {
        self.prefix.remove(self.pool.blocks_mut(), block);
        let Contents { hash, parent, .. } = *self.pool.contents(block);
        self.roots.child_removed(parent);
        if S::LISTENS && self.prefix.copies(self.pool.blocks(), block) == Copies::Only {
            self.sink.note(Event::Removed { hash });
        }
    }

    /// Gives blocks up, last to first, so that a prefix outlives what follows it.
    #[inline]
    pub(super) fn release_all(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().rev() {
            self.pool.release(block);
        }
        if self.limit.excess_pages() > 0 {
            for &block in blocks.iter().rev() {
                self.shrink_at(block);
            }
        }
    }
}
