//! Frees: what was it, who used it last, who may have it now.

use glake_core::alloc::AllocError;
use glake_core::units::DevicePtr;
use smallvec::SmallVec;

use crate::blocks::Kind;
use crate::held::What;
use crate::order::{StreamIndex, Tag};
use crate::pool::StitchPool;
use crate::small::Size;
use crate::spare::UnitName;
use crate::stale::Uses;
use crate::units::{PAGE, page_of};

/// Streams.
pub(crate) type Users = SmallVec<[StreamIndex; 2]>;

/// Where freed memory was used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    On(StreamIndex),
    Anywhere,
}

impl StitchPool {
    /// Frees the allocation at `ptr`, which is `at` in the arena.
    #[inline]
    pub(crate) fn freed(&mut self, ptr: DevicePtr, at: u64, last: Last) -> Result<(), AllocError> {
        let size = self.free_at(at, last).ok_or(AllocError::NotAllocated(ptr))?;
        self.counters.n_frees += 1;
        self.counters.requested_bytes -= size.requested_bytes;
        self.counters.allocated_bytes -= size.allocated_bytes;
        self.spent.n_ops += 1;
        Ok(())
    }

    /// Whether an allocation starts at `at`.
    pub(crate) fn is_live(&self, at: u64) -> bool {
        if let Some(UnitName { stream, unit }) = UnitName::of_slot(self.slots.slot(page_of(at)).unit) {
            return self.smalls[stream.index()].pool.find(unit, at % PAGE).is_some();
        }
        let block = self.blocks.starting_at(at, &self.slots);
        block.is_some_and(|block| matches!(self.blocks.get(block).kind, Kind::Live { .. }))
    }

    /// The tag of bytes of an allocation of `owner` that is freed.
    pub(crate) fn last_use(&mut self, last: Last, owner: StreamIndex) -> Tag {
        match last {
            _ if self.order.is_captured(owner) => self.order.tag(owner),
            Last::On(stream) if self.order.is_captured(stream) => self.order.tag(stream),
            Last::On(stream) if !self.order.are_namesakes(owner, stream) => self.order.tag(stream),
            Last::On(_) | Last::Anywhere => self.order.tag_of_all(),
        }
    }

    /// Frees the allocation at `at`, last used for `last`; how big it was.
    #[inline]
    pub(crate) fn free_at(&mut self, at: u64, last: Last) -> Option<Size> {
        let size = match UnitName::of_slot(self.slots.slot(page_of(at)).unit) {
            Some(name) => self.free_small(name, at, last),
            None => self.free_large(at, last),
        };
        self.release_oldest_held();
        size
    }

    #[inline]
    pub(crate) fn free_small(&mut self, name: UnitName, at: u64, last: Last) -> Option<Size> {
        let UnitName { stream, unit } = name;
        let pool = &self.smalls[stream.index()].pool;
        let spot = pool.find(unit, at % PAGE)?;
        let size = pool.size(spot);
        let tag = self.last_use(last, stream);
        let users = self.take_users(at);
        match self.foreign_uses(users, (last, tag), stream, stream) {
            None => self.free_spot(stream, spot),
            Some(after) => {
                self.smalls[stream.index()].pool.hold(spot);
                self.hold(What::Small(stream, spot), after);
            }
        }
        Some(size)
    }

    #[inline]
    pub(crate) fn free_large(&mut self, at: u64, last: Last) -> Option<Size> {
        let block = self.blocks.starting_at(at, &self.slots)?;
        let b = self.blocks.get(block);
        let Kind::Live { requested_bytes, owner } = b.kind else { return None };
        let allocated_bytes = b.bytes;
        if let Last::On(stream) = last
            && self.order.is_single()
            && self.users.is_empty()
        {
            // There is nobody else.
            self.release(block, self.order.tag(stream));
            return Some(Size { requested_bytes, allocated_bytes });
        }
        let tag = self.last_use(last, owner);
        let users = self.take_users(at);
        match self.foreign_uses(users, (last, tag), owner, tag.stream) {
            None => self.release(block, tag),
            Some(after) => {
                for use_ in &after {
                    self.order.note_freed(use_.stream, allocated_bytes, &*self.driver);
                }
                self.blocks.set_held(block);
                self.hold(What::Block(block, tag), after);
            }
        }
        self.order.note_freed(tag.stream, allocated_bytes, &*self.driver);
        Some(Size { requested_bytes, allocated_bytes })
    }

    /// What was told of the users of the allocation at `at`; nothing is known of them any more.
    pub(crate) fn take_users(&mut self, at: u64) -> Users {
        if self.users.is_empty() { Users::new() } else { self.users.remove(&at).unwrap_or_default() }
    }

    /// Uses of an allocation of `owner`, freed as `last` says, that `taker` is not behind: `None` where
    /// it can have the bytes at once.
    pub(crate) fn foreign_uses(
        &mut self,
        users: Users,
        (last, tag): (Last, Tag),
        owner: StreamIndex,
        taker: StreamIndex,
    ) -> Option<Uses> {
        let is_graphs = self.order.is_graphs(tag);
        let launches = self.order.last_of_gone(owner);
        if users.is_empty() && tag.stream == taker && !is_graphs && launches.is_none() {
            return None;
        }
        let mut uses: Uses = users.into_iter().map(|user| self.order.tag(user)).collect();
        uses.push(tag);
        uses.extend(launches);
        if is_graphs {
            // The graph may be gone before other work is done.
            uses.push(self.order.tag(owner));
            uses.push(match last {
                Last::On(stream) => self.order.tag(stream),
                Last::Anywhere => self.order.tag_of_all(),
            });
        }
        uses.retain(|use_| !self.order.is_ready(taker, *use_));
        (!uses.is_empty()).then_some(uses)
    }
}
