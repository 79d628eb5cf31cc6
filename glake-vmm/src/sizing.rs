//! How big the handles of new memory are: pure.
//!
//! Driver time is spent per handle (about 52 µs to create, map and open one, 38 µs to move one),
//! waste is left per handle too (a handle with one live byte cannot move). So a pool has a budget
//! of driver time that grows with the operations that it serves, and spends it on small handles
//! as long as it lasts: the bulk that a program allocates in its first few hundred operations,
//! its weights, comes in big handles, what changes every step later on in small ones. Counting
//! operations instead of time keeps addresses the same from run to run.

/// Handles that a pool may touch whatever it has served.
const INITIAL_HANDLES: u64 = 1024;
/// Allocations and frees for one handle more.
const OPS_PER_HANDLE: u64 = 20;
/// The share of what is left of the budget that one allocation may spend.
const SHARE: u64 = 4;
/// What one allocation may take at least, and for each new page: 8 ms per GiB.
const AT_LEAST_NS: usize = 1_000_000;
const PAGE_NS: usize = 8_000_000 / 512;
/// What it costs to create and open a handle, to move one, and to unmap one, on an H200.
const CREATE_NS: usize = 49_000;
const MOVE_NS: usize = 36_000;
const UNMAP_NS: usize = 23_000;

/// How many stale mappings an allocation of `n_pages` new pages may unmap.
pub(crate) const fn few_mappings(n_pages: usize) -> usize {
    8 + n_pages / 32
}

/// What a pool has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Allocations and frees served.
    pub(crate) n_ops: u64,
    /// Handles created and moved.
    pub(crate) n_handles: u64,
}

/// What one allocation maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Pages that get a home, in all.
    pub(crate) n_pages: usize,
    /// Pages of them that must be created.
    pub(crate) n_missing: usize,
    /// Handles that move there.
    pub(crate) n_moved: usize,
}

/// How many streams take turns in the pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    One,
    /// What one of them leaves is often not ready for the others, so that more handles are partly
    /// used at a time.
    Several,
}

impl Among {
    /// Pages of the smallest handle, unless less is missing, and of the biggest.
    const fn pages(self) -> (usize, usize) {
        match self {
            Self::One => (2, 4),
            Self::Several => (1, 2),
        }
    }
}

/// Sizes in pages of the handles to create.
pub(crate) fn handle_sizes(
    growth: Growth,
    spent: Spent,
    among: Among,
) -> impl Iterator<Item = usize> + Clone {
    let left = (INITIAL_HANDLES + spent.n_ops / OPS_PER_HANDLE).saturating_sub(spent.n_handles) / SHARE;
    let taken_ns = growth.n_moved * MOVE_NS + few_mappings(growth.n_pages) * UNMAP_NS;
    let at_once = (AT_LEAST_NS + growth.n_pages * PAGE_NS).saturating_sub(taken_ns) / CREATE_NS;
    let n_handles = at_once.min(usize::try_from(left).unwrap_or(usize::MAX)).max(1);
    let (least, most) = among.pages();
    pieces(growth.n_missing, growth.n_missing.div_ceil(n_handles).clamp(least, most))
}

/// `n_pages` in handles of one page.
pub(crate) fn single_pages(n_pages: usize) -> impl Iterator<Item = usize> + Clone {
    pieces(n_pages, 1)
}

/// `n_pages` cut in pieces of `each`, the last one with what is left.
fn pieces(n_pages: usize, each: usize) -> impl Iterator<Item = usize> + Clone {
    (0..n_pages).step_by(each).map(move |at| each.min(n_pages - at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(n_missing: usize, n_moved: usize, spent: Spent) -> Vec<usize> {
        handle_sizes(Growth { n_pages: n_missing, n_missing, n_moved }, spent, Among::One).collect()
    }

    #[test]
    fn a_fresh_pool_takes_small_handles_for_small_needs() {
        assert_eq!(sizes(1, 0, Spent::default()), [1]);
        assert_eq!(sizes(5, 0, Spent::default()), [2, 2, 1]);
    }

    #[test]
    fn handles_grow_when_the_budget_is_spent() {
        let broke = Spent { n_ops: 100, n_handles: 5000 };
        assert_eq!(sizes(9, 0, broke), [4, 4, 1]);
        let rich = Spent { n_ops: 1_000_000, n_handles: 5000 };
        assert_eq!(sizes(9, 0, rich), [2, 2, 2, 2, 1]);
    }

    #[test]
    fn one_allocation_does_not_spend_more_than_its_latency_allows() {
        let rich = Spent { n_ops: 10_000_000, n_handles: 0 };
        // 512 pages, 9 ms: at most 172 handles, so three pages each.
        assert_eq!(sizes(512, 0, rich).len(), 171);
        // Moving 200 handles leaves time for 25 of them.
        assert_eq!(sizes(512, 200, rich).len(), 128);
    }

    #[test]
    fn sizes_add_up() {
        for n in 0..200 {
            assert_eq!(sizes(n, n / 2, Spent::default()).iter().sum::<usize>(), n);
            assert_eq!(single_pages(n).sum::<usize>(), n);
        }
    }
}
