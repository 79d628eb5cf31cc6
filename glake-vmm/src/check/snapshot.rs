//! What of a pool no failed call may change.

use std::collections::BTreeSet;

use glake_core::units::HandleId;

use crate::blocks::Kind;
use crate::counters::Counters;
use crate::pool::StitchPool;
use crate::sizing::Spent;
use crate::small::UnitFigures;

/// The tables of a pool, without what hangs on the order of past calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    blocks: Vec<(u64, u64, Kind)>,
    /// Handle, first page, pages.
    handles: BTreeSet<(HandleId, u32, u32)>,
    holes: Vec<(usize, usize)>,
    /// By stream, of those with units.
    units: Vec<(usize, Vec<UnitFigures>)>,
    spares: Vec<u64>,
    held: usize,
    counters: Counters,
    spent: Spent,
    limit_bytes: u64,
    is_poisoned: bool,
    /// Handle and page.
    stale: BTreeSet<(HandleId, usize)>,
}

impl Snapshot {
    /// Whether `self` is the state `before` a failed call, apart from the count of failures and
    /// from stale mappings that were cleaned up meanwhile.
    pub(crate) fn assert_follows(mut self, before: &Self, what: &str) {
        assert!(self.stale.is_subset(&before.stale), "{what}: {:?} of {:?}", self.stale, before.stale);
        self.stale.clone_from(&before.stale);
        self.counters.n_failures = before.counters.n_failures;
        assert_eq!(&self, before, "{what}");
    }

    /// Whether what is live in `self` lies where it lay `before`, in the same handles.
    pub(crate) fn assert_same_live(&self, before: &Self, what: &str) {
        let live = |snapshot: &Self| -> Vec<(u64, u64, Kind)> {
            let is_live = |block: &&(u64, u64, Kind)| matches!(block.2, Kind::Live { .. });
            snapshot.blocks.iter().filter(is_live).copied().collect()
        };
        assert_eq!(live(self), live(before), "{what}");
        // What is held may be released meanwhile.
        let objects = |snapshot: &Self| -> Vec<UnitFigures> {
            let mut units: Vec<UnitFigures> =
                snapshot.units.iter().flat_map(|(_, units)| units).cloned().collect();
            for unit in &mut units {
                unit.live.retain(|object| !object.is_held);
            }
            units.retain(|unit| !unit.live.is_empty());
            units
        };
        assert_eq!(objects(self), objects(before), "{what}");
        assert_eq!(self.counters.n_frees, before.counters.n_frees, "{what}");
    }
}

impl StitchPool {
    pub(crate) fn snapshot(&self) -> Snapshot {
        let has_units = |(_, units): &(usize, Vec<UnitFigures>)| !units.is_empty();
        let id = |handle: u32| self.slots.handle(handle).id;
        Snapshot {
            blocks: self.blocks.ascending().iter().map(|(_, b)| (b.start, b.bytes, b.kind)).collect(),
            handles: self.slots.handles().map(|(_, h)| (h.id, h.home, h.n_pages)).collect(),
            holes: self.slots.holes().map(|hole| (hole.start, hole.end)).collect(),
            units: self.smalls.iter().map(|small| small.pool.check()).enumerate().filter(has_units).collect(),
            spares: self.spare_starts(),
            held: self.held.len(),
            counters: self.counters,
            spent: self.spent,
            limit_bytes: self.config.limit_bytes,
            is_poisoned: self.is_poisoned,
            stale: self.stale.iter().map(|m| (id(m.handle), m.page)).collect(),
        }
    }
}
