//! What to map where, when no free block fits: pure, changes nothing.

use std::collections::VecDeque;
use std::ops::Range;

use crate::blocks::Blocks;
use crate::order::{Order, Readiness, Tag, Taker};
use crate::room::Stitching;
use crate::slots::Slots;
use crate::units::{NONE, PAGE, page_of, page_start};

/// How many free blocks a plan looks at as places to extend.
const N_CANDIDATES: usize = 32;

/// Whole free handles that move, one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Donor {
    /// The free block that they are in.
    pub(crate) block: u32,
    /// Their pages.
    pub(crate) pages: Range<usize>,
}

/// Moves and creations that make room for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Pages that get a home, a hole until now.
    pub(crate) pages: Range<usize>,
    /// Handles that move there, in this order.
    pub(crate) donors: Vec<Donor>,
    /// Pages still missing behind the donors, to be created.
    pub(crate) n_missing: usize,
}

/// Where the new pages go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Free block below the pages, or `NONE`.
    pub(crate) below: u32,
    /// Free block above the pages, or `NONE`.
    above: u32,
    /// First page if `above` is `NONE`, else the page behind the last one.
    pub(crate) page: usize,
    /// Pages in the hole.
    pub(crate) room: usize,
    /// Pages needed.
    pub(crate) n_need: usize,
    /// Pages that donors can give.
    n_clean: usize,
}

impl Place {
    fn n_missing(&self) -> usize {
        self.n_need.saturating_sub(self.n_clean)
    }
}

/// The planner's view of the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planner<'a> {
    pub(crate) blocks: &'a Blocks,
    pub(crate) slots: &'a Slots,
    /// First page behind the reservation.
    pub(crate) n_arena_pages: usize,
    pub(crate) stitching: Stitching,
    pub(crate) order: &'a Order,
    /// Whom the plan is for.
    pub(crate) taker: Taker,
}

impl Planner<'_> {
    /// A plan for `bytes` bytes at a multiple of `align_bytes`: the place where least must be
    /// created, then moved. `is_blocked` says whether pages cannot be mapped yet. `None` if no
    /// addresses are left.
    pub(crate) fn plan(
        &self,
        bytes: u64,
        align_bytes: u64,
        mut is_blocked: impl FnMut(&Range<usize>) -> bool,
    ) -> Option<Plan> {
        let extendable = self.blocks.below(bytes + align_bytes).take(N_CANDIDATES);
        let beside = extendable.flat_map(|block| self.beside(block, bytes, align_bytes)).flatten();
        let mut places: Vec<Place> = self.tail(bytes, align_bytes).into_iter().chain(beside).collect();
        // A stable sort: of equal places, the tail and then the one beside the longest block.
        places.sort_by_key(|place| (place.n_missing(), place.n_need));
        let mut open = |place: &Place| self.fill(place).filter(|plan| !is_blocked(&plan.pages));
        places.iter().find_map(&mut open).or_else(|| self.apart(bytes).find_map(|place| open(&place)))
    }

    /// Places for `bytes` bytes that may be mapped already: behind free blocks, and where runs
    /// were stitched before, the latest first.
    pub(crate) fn revivable<'a>(
        &'a self,
        bytes: u64,
        align_bytes: u64,
        stitched: &'a VecDeque<usize>,
    ) -> impl Iterator<Item = Place> + 'a {
        let is_mapped = |page: usize| self.slots.slot(page).stale != NONE;
        let tail = is_mapped(self.slots.end()).then(|| self.tail(bytes, align_bytes)).flatten();
        let extendable = self.blocks.below(bytes + align_bytes).take(N_CANDIDATES);
        let behind = extendable.filter_map(move |block| {
            let end = self.blocks.get(block).end();
            let may = end.is_multiple_of(PAGE) && is_mapped(page_of(end));
            may.then(|| self.beside(block, bytes, align_bytes)[0]).flatten()
        });
        let before = stitched.iter().rev().filter(move |&&page| is_mapped(page)).filter_map(move |&page| {
            let hole = self.slots.hole_at(page)?;
            let below = self.slots.hole_from(page).and_then(|_| self.blocks.free_before(page, self.slots));
            self.above_block(below.unwrap_or(NONE), hole, bytes, align_bytes)
        });
        tail.into_iter().chain(behind).chain(before)
    }

    /// Anywhere, beside nothing: behind all mappings, then in holes from below.
    fn apart(&self, bytes: u64) -> impl Iterator<Item = Place> + '_ {
        let behind = self.slots.n_known_pages()..self.n_arena_pages;
        std::iter::once(behind).chain(self.slots.holes()).filter_map(move |hole| {
            let room = hole.end.min(self.n_arena_pages).saturating_sub(hole.start);
            self.place(NONE, NONE, hole.start, room, bytes, 0)
        })
    }

    /// Behind the last home.
    fn tail(&self, bytes: u64, align_bytes: u64) -> Option<Place> {
        let end = self.slots.end();
        let below = self.blocks.free_before(end, self.slots).unwrap_or(NONE);
        self.above_block(below, end..usize::MAX, bytes, align_bytes)
    }

    /// In the holes on both sides of a free block.
    fn beside(&self, block: u32, bytes: u64, align_bytes: u64) -> [Option<Place>; 2] {
        let b = self.blocks.get(block);
        let mut places = [None, None];
        if b.end().is_multiple_of(PAGE) && page_of(b.end()) < self.slots.end() {
            let hole = self.slots.hole_from(page_of(b.end()));
            places[0] = hole.and_then(|hole| self.above_block(block, hole, bytes, align_bytes));
        }
        if b.start.is_multiple_of(PAGE) && b.start > 0 && self.slots.slot(page_of(b.start) - 1).home == NONE {
            places[1] = self.below_block(block, bytes);
        }
        places
    }

    /// At the start of `hole`, behind a free block or `NONE`.
    fn above_block(&self, below: u32, hole: Range<usize>, bytes: u64, align_bytes: u64) -> Option<Place> {
        let (usable, clean) = if below == NONE {
            (0, 0)
        } else {
            let b = self.blocks.get(below);
            let start = b.end() - self.usable(self.blocks.pieces_back(below));
            (b.end().saturating_sub(start.next_multiple_of(align_bytes)), b.clean_bytes())
        };
        let room = hole.end.min(self.n_arena_pages).saturating_sub(hole.start);
        self.place(below, NONE, hole.start, room, bytes.saturating_sub(usable), clean)
    }

    fn below_block(&self, above: u32, bytes: u64) -> Option<Place> {
        let b = self.blocks.get(above);
        let behind = page_of(b.start);
        let room = self.slots.n_hole_pages_before(behind);
        let usable = self.usable(self.blocks.pieces(above));
        self.place(NONE, above, behind, room, bytes.saturating_sub(usable), b.clean_bytes())
    }

    /// Bytes of the first pieces that the taker can have.
    fn usable(&self, pieces: impl Iterator<Item = (u64, Tag)>) -> u64 {
        let can_be_had =
            |tag| self.order.is_single() || self.order.readiness(self.taker, tag) != Readiness::Never;
        pieces.take_while(|&(_, tag)| can_be_had(tag)).map(|(bytes, _)| bytes).sum()
    }

    fn place(
        &self,
        below: u32,
        above: u32,
        page: usize,
        room: usize,
        need: u64,
        own_clean: u64,
    ) -> Option<Place> {
        let n_need = page_of(need.next_multiple_of(PAGE));
        let n_clean = match self.stitching {
            Stitching::Always => page_of(self.blocks.clean_bytes() - own_clean),
            Stitching::Never => 0,
        };
        (n_need <= room && n_need > 0).then_some(Place { below, above, page, room, n_need, n_clean })
    }

    /// Chooses donors for a place: what is ready for the taker first, then what was used longest
    /// ago.
    fn fill(&self, place: &Place) -> Option<Plan> {
        let mut donors = Vec::new();
        let mut behind: Vec<(Readiness, Donor)> = Vec::new();
        let mut n_left = place.n_need;
        let mut take = |block: u32, run: Range<usize>, n_left: &mut usize| {
            let pages = self.cut(run, *n_left);
            *n_left = n_left.saturating_sub(pages.len());
            if !pages.is_empty() {
                donors.push(Donor { block, pages });
            }
        };
        for block in self.blocks.by_clean() {
            if n_left == 0 || self.stitching == Stitching::Never {
                break;
            }
            if block == place.below || block == place.above {
                continue;
            }
            for (readiness, run) in self.runs(block).into_iter().rev() {
                match readiness {
                    Readiness::Ready => take(block, run, &mut n_left),
                    Readiness::Behind { .. } => behind.push((readiness, Donor { block, pages: run })),
                    Readiness::Never => {}
                }
            }
        }
        behind.sort_by_key(|(readiness, _)| *readiness);
        for (_, Donor { block, pages }) in behind {
            take(block, pages, &mut n_left);
        }
        let n_moved: usize = donors.iter().map(|d| d.pages.len()).sum();
        let n = n_moved + n_left;
        if n > place.room {
            return None;
        }
        let pages = if place.above == NONE { place.page..place.page + n } else { place.page - n..place.page };
        Some(Plan { pages, donors, n_missing: n_left })
    }

    /// The whole handles of a free block, in runs that are as ready.
    fn runs(&self, block: u32) -> Vec<(Readiness, Range<usize>)> {
        let b = self.blocks.get(block);
        let clean = b.clean_pages();
        if self.order.is_single() {
            return vec![(Readiness::Ready, clean)];
        }
        if let Some(tag) = self.blocks.only_tag(block) {
            return vec![(self.order.readiness(self.taker, tag), clean)];
        }
        let mut runs: Vec<(Readiness, Range<usize>)> = Vec::new();
        let mut end = b.start;
        let ends = self.blocks.pieces(block).map(|(bytes, tag)| {
            end += bytes;
            (end, self.order.readiness(self.taker, tag))
        });
        let mut pieces = ends.peekable();
        for handle in self.slots.homes_in(clean) {
            let pages = self.slots.handle(handle).pages();
            let mut worst = Readiness::Ready;
            while let Some(&(end, readiness)) = pieces.peek() {
                if end > page_start(pages.start) {
                    worst = worst.max(readiness);
                }
                if end > page_start(pages.end) {
                    break;
                }
                pieces.next();
                if end == page_start(pages.end) {
                    break;
                }
            }
            match runs.last_mut() {
                Some((readiness, run)) if *readiness == worst => run.end = pages.end,
                _ => runs.push((worst, pages)),
            }
        }
        runs
    }

    /// The last handles of `run` that have at least `n` pages, or all.
    fn cut(&self, run: Range<usize>, n: usize) -> Range<usize> {
        let mut from = run.end;
        for handle in self.slots.homes_in(run.clone()).rev() {
            if run.end - from >= n {
                break;
            }
            from = self.slots.handle(handle).pages().start;
        }
        from..run.end
    }
}
