//! Memory that was freed while other streams may still use it.

use crate::order::{StreamIndex, Tag};
use crate::pool::StitchPool;
use crate::small::Spot;
use crate::spare::UnitName;
use crate::stale::Uses;

/// Freed memory that is not free yet.
#[derive(Debug)]
pub(crate) struct Held {
    what: What,
    /// The uses that must have passed.
    after: Uses,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A block, to be freed with a tag.
    Block(u32, Tag),
    /// A small object of a unit of this stream.
    Small(StreamIndex, Spot),
}

impl StitchPool {
    /// Holds freed memory until `after` has passed.
    pub(crate) fn hold(&mut self, what: What, after: Uses) {
        self.held.push_back(Held { what, after });
    }

    /// Frees what was held long enough.
    pub(crate) fn release_held(&mut self) {
        for _ in 0..self.held.len() {
            let Some(held) = self.held.pop_front() else { break };
            if self.is_over(&held) { self.let_go(&held) } else { self.held.push_back(held) }
        }
    }

    /// Sees to it that there is an event behind everything that is held for.
    pub(crate) fn hasten_held(&mut self) {
        for tag in self.held.iter().flat_map(|held| &held.after) {
            // Without one it is held on.
            let _ = self.order.ensure_event(*tag, &*self.driver);
        }
    }

    /// Frees what has been held longest, if it was held long enough.
    #[inline]
    pub(crate) fn release_oldest_held(&mut self) {
        while self.held.front().is_some_and(|held| self.is_over(held)) {
            let Some(held) = self.held.pop_front() else { break };
            self.let_go(&held);
        }
    }

    fn is_over(&self, held: &Held) -> bool {
        let owner = match held.what {
            What::Block(_, tag) => tag.stream,
            What::Small(stream, _) => stream,
        };
        held.after.iter().all(|&tag| self.order.is_ready(owner, tag))
    }

    fn let_go(&mut self, held: &Held) {
        match held.what {
            What::Block(block, tag) => {
                // Events from before the waits are not behind the uses.
                let are_done = held.after.iter().all(|&tag| self.order.is_done(tag));
                self.release(block, if are_done { tag } else { self.order.tag(tag.stream) });
            }
            What::Small(stream, spot) => self.free_spot(stream, spot),
        }
    }

    /// Frees a small object of `stream`; a unit that is wholly free then becomes the spare one.
    pub(crate) fn free_spot(&mut self, stream: StreamIndex, spot: Spot) {
        let small = self.small(stream);
        let Some(unit) = small.pool.free(spot) else { return };
        if let Some(other) = small.spare.replace(unit) {
            self.give_up_unit(UnitName { stream, unit: other });
        }
    }
}
