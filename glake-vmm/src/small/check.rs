//! The invariants of the small pool, recomputed; for tests.

use std::collections::BTreeSet;

use super::{FREE, Granule, HELD, N_GRANULES, N_LISTS, SmallPool, UNIT_SHIFT, list_of};
use crate::units::{GRANULE_BYTES, NONE, index};

/// A live small object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Offset in the unit in bytes.
    pub(crate) offset: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) bytes: u64,
    /// Freed, but not by its stream.
    pub(crate) is_held: bool,
}

/// What a unit holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitFigures {
    pub(crate) index: u32,
    pub(crate) start: u64,
    pub(crate) live: Vec<Object>,
}

impl SmallPool {
    /// Panics where runs, lists and counts contradict each other; what the units hold.
    pub(crate) fn check(&self) -> Vec<UnitFigures> {
        let mut free: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); N_LISTS];
        let mut figures = Vec::new();
        for (i, unit) in self.units.iter().enumerate() {
            let i = index(i);
            assert_eq!(unit.is_vacant, self.vacant.contains(&i), "unit {i}");
            let granules = &self.granules[(i << UNIT_SHIFT) as usize..][..N_GRANULES];
            if unit.is_vacant {
                assert!(granules.iter().all(|g| g.tag == 0), "unit {i} is vacant");
                continue;
            }
            let mut live = Vec::new();
            let mut was_free = false;
            let mut at = 0;
            while at < N_GRANULES {
                let Granule { tag, slack, .. } = granules[at];
                let n = usize::from(tag & !(FREE | HELD));
                assert!(n > 0 && at + n <= N_GRANULES, "granule {at} of unit {i}: {tag:#x}");
                let is_free = tag & FREE != 0;
                let n_tagged = granules[at..at + n].iter().filter(|g| g.tag != 0).count();
                let n_ends = if is_free && n > 1 { 2 } else { 1 };
                assert_eq!(n_tagged, n_ends, "a tag inside the run at granule {at} of unit {i}");
                if is_free {
                    assert!(!was_free, "granule {at} of unit {i} is not joined with the run below");
                    assert_eq!(granules[at + n - 1].tag, tag, "the end of granule {at} of unit {i}");
                    free[list_of(n)].insert((i << UNIT_SHIFT) + index(at));
                } else {
                    let bytes = n as u64 * GRANULE_BYTES;
                    let offset = at as u64 * GRANULE_BYTES;
                    let is_held = tag & HELD != 0;
                    assert_eq!(self.find(i, offset).is_none(), is_held);
                    live.push(Object { offset, requested_bytes: bytes - u64::from(slack), bytes, is_held });
                }
                was_free = is_free;
                at += n;
            }
            assert_eq!(unit.n_live as usize, live.len(), "unit {i}");
            figures.push(UnitFigures { index: i, start: unit.start, live });
        }
        for (list, expected) in free.iter().enumerate() {
            assert_eq!(&self.list(list), expected, "list {list}");
            assert_eq!(self.bitmap[list / 64] >> (list % 64) & 1 == 1, !expected.is_empty(), "list {list}");
        }
        figures
    }

    fn list(&self, list: usize) -> BTreeSet<u32> {
        let mut nodes = BTreeSet::new();
        let (mut prev, mut node) = (NONE, self.heads[list]);
        while node != NONE {
            assert!(nodes.insert(node), "list {list} is a ring");
            let granule = self.granules[node as usize];
            assert_eq!(granule.prev, prev, "list {list}");
            (prev, node) = (node, granule.next);
        }
        nodes
    }
}
