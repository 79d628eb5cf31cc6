//! The blocks of an arena: every byte with a home belongs to exactly one block, free or taken.
//!
//! Blocks form a list in address order, so that a free finds its neighbours without a search;
//! the slot table leads from an address to its block. Free neighbours are always joined, unless
//! a hole lies between them.

use std::ops::Range;

use crate::free_index::{By, FreeIndex, Indexed, Links};
use crate::order::{StreamIndex, Tag};
use crate::pieces::{List, Pieces, Seam, Window};
use crate::slots::Slots;
use crate::units::{NONE, PAGE, index, page_of, page_start};

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not part of the arena: an entry to be used again.
    Vacant,
    /// Free bytes.
    Free {
        /// First page of the whole handles inside.
        first: u32,
        /// The page behind them.
        behind: u32,
    },
    /// A live allocation.
    Live {
        /// Bytes as asked for.
        requested_bytes: u64,
        /// The stream that it was allocated on.
        owner: StreamIndex,
    },
    /// Freed, but other streams may still use it.
    Held,
    /// A unit of the small pool.
    Unit,
}

/// A run of consecutive bytes of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    prev: u32,
    next: u32,
    pub(crate) kind: Kind,
    /// What its bytes were used for last, if it is free.
    pieces: List,
    by_bytes: Links,
    by_clean: Links,
}

impl Indexed for Block {
    fn key(&self) -> (u64, u64) {
        (self.bytes, self.start)
    }

    fn clean_bytes(&self) -> u64 {
        Self::clean_bytes(self)
    }

    fn links(&mut self, by: By) -> &mut Links {
        match by {
            By::Bytes => &mut self.by_bytes,
            By::Clean => &mut self.by_clean,
        }
    }

    fn link(&self, by: By) -> Links {
        match by {
            By::Bytes => self.by_bytes,
            By::Clean => self.by_clean,
        }
    }
}

impl Block {
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// The pages of the whole free handles in the block.
    #[inline]
    pub(crate) fn clean_pages(&self) -> Range<usize> {
        match self.kind {
            Kind::Free { first, behind } => first as usize..behind as usize,
            _ => 0..0,
        }
    }

    /// Bytes of whole free handles in the block.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.clean_pages().len() as u64 * PAGE
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.kind, Kind::Free { .. })
    }
}

/// The blocks of an arena in address order, with the index of the free ones.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    last: u32,
    free: FreeIndex,
    pieces: Pieces,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            vacant: Vec::new(),
            last: NONE,
            free: FreeIndex::new(),
            pieces: Pieces::default(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    /// The pieces of a free block in order: length in bytes and tag.
    pub(crate) fn pieces(&self, block: u32) -> impl Iterator<Item = (u64, Tag)> + '_ {
        self.pieces.iter(self.get(block).pieces)
    }

    /// The tags of the pieces that `bytes` bytes at `at` of a free block touch.
    pub(crate) fn tags_in(&self, block: u32, at: u64, bytes: u64) -> Window<'_> {
        let b = self.get(block);
        self.pieces.window(b.pieces, b.bytes, at - b.start..at - b.start + bytes)
    }

    /// The pieces of a free block from the last on.
    pub(crate) fn pieces_back(&self, block: u32) -> impl Iterator<Item = (u64, Tag)> + '_ {
        self.pieces.iter_back(self.get(block).pieces)
    }

    /// The tag of all bytes of a free block, if they have the same.
    pub(crate) fn only_tag(&self, block: u32) -> Option<Tag> {
        self.pieces.only(self.get(block).pieces)
    }

    /// Free bytes in whole free handles.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.free.clean_bytes()
    }

    /// The longest free block in bytes.
    pub(crate) fn largest_bytes(&self) -> u64 {
        self.free.largest_bytes(&self.blocks)
    }

    /// Shows `look` free blocks of at least `bytes`, from the shortest on, until it returns a
    /// value; not all where many are as short.
    #[inline]
    pub(crate) fn at_least<T>(&self, bytes: u64, look: impl FnMut(u32) -> Option<T>) -> Option<T> {
        self.free.at_least(&self.blocks, bytes, look)
    }

    /// Any free block of at least `bytes`.
    pub(crate) fn any(&self, bytes: u64) -> Option<u32> {
        self.free.any(&self.blocks, bytes)
    }

    /// Free blocks shorter than `bytes`, about from the longest on.
    pub(crate) fn below(&self, bytes: u64) -> impl Iterator<Item = u32> + '_ {
        self.free.below(&self.blocks, bytes)
    }

    /// Free blocks with whole handles, about from those with most clean bytes on.
    pub(crate) fn by_clean(&self) -> impl Iterator<Item = u32> + '_ {
        self.free.by_clean(&self.blocks)
    }

    /// The free block that ends exactly where `page` starts.
    pub(crate) fn free_before(&self, page: usize, slots: &Slots) -> Option<u32> {
        let next = Self::first_from_hole(page, slots);
        let prev = if next == NONE { self.last } else { self.get(next).prev };
        (prev != NONE && self.get(prev).end() == page_start(page) && self.get(prev).is_free()).then_some(prev)
    }

    /// The block that starts at `at`.
    #[inline]
    pub(crate) fn starting_at(&self, at: u64, slots: &Slots) -> Option<u32> {
        let mut block = slots.slot(page_of(at)).first_block;
        while block != NONE {
            let b = self.get(block);
            if b.start >= at {
                return (b.start == at).then_some(block);
            }
            block = b.next;
        }
        None
    }

    /// The block that holds the first byte of `page`, which has a home.
    pub(crate) fn holding(&self, page: usize, slots: &Slots) -> u32 {
        self.holding_byte(page_start(page), slots)
    }

    /// The block that holds byte `at`, whose page has a home. Looks at the blocks that start in one
    /// page, and at the pages in between.
    pub(crate) fn holding_byte(&self, at: u64, slots: &Slots) -> u32 {
        let mut p = page_of(at);
        let mut block = slots.slot(p).first_block;
        while block == NONE || self.get(block).start > at {
            p -= 1;
            block = slots.slot(p).first_block;
        }
        loop {
            let next = self.get(block).next;
            if next == NONE || self.get(next).start > at {
                return block;
            }
            block = next;
        }
    }

    /// Cuts `bytes` bytes at `at` out of the free `block` and makes them `kind`.
    #[inline]
    pub(crate) fn carve(&mut self, block: u32, at: u64, bytes: u64, kind: Kind, slots: &mut Slots) -> u32 {
        let whole = self.get(block);
        let pieces = if at == whole.start {
            self.pieces.cut_front(whole.pieces, bytes)
        } else if at + bytes == whole.end() {
            self.pieces.cut_back(whole.pieces, bytes)
        } else {
            let (taken, pieces) = self.cut_out(block, at, bytes, kind, slots);
            self.pieces.drop(pieces);
            return taken;
        };
        self.remove_from_index(block);
        let whole = self.get(block);
        let (low_end, is_low, is_all) = (at + bytes, at == whole.start, bytes == whole.bytes);
        self.blocks[block as usize].pieces = List::EMPTY;
        let mut taken = block;
        if !is_all {
            let upper = self.split(block, if is_low { low_end } else { at }, slots);
            let rest = if is_low { upper } else { block };
            taken = if is_low { block } else { upper };
            self.blocks[rest as usize].pieces = pieces;
            self.insert_in_index(rest, slots);
        }
        self.blocks[taken as usize].kind = kind;
        taken
    }

    fn cut_out(&mut self, block: u32, at: u64, bytes: u64, kind: Kind, slots: &mut Slots) -> (u32, List) {
        self.remove_from_index(block);
        let whole = *self.get(block);
        let mut taken = block;
        if at > whole.start {
            taken = self.split(block, at, slots);
            self.insert_in_index(block, slots);
        }
        if at + bytes < whole.end() {
            let rest = self.split(taken, at + bytes, slots);
            self.insert_in_index(rest, slots);
        }
        let b = &mut self.blocks[taken as usize];
        b.kind = kind;
        (taken, std::mem::replace(&mut b.pieces, List::EMPTY))
    }

    /// Frees a taken block, last used for `tag`, and joins it with free neighbours; returns what
    /// they became.
    #[inline]
    pub(crate) fn release(&mut self, block: u32, tag: Tag, slots: &mut Slots) -> u32 {
        let b = self.get(block);
        let (prev, next, bytes, start, end) = (b.prev, b.next, b.bytes, b.start, b.end());
        if prev != NONE && self.get(prev).is_free() && self.get(prev).end() == start {
            self.blocks[prev as usize].pieces = self.pieces.append(self.get(prev).pieces, bytes, tag);
        } else if next != NONE && self.get(next).is_free() && self.get(next).start == end {
            self.blocks[next as usize].pieces = self.pieces.prepend(bytes, tag, self.get(next).pieces);
        } else {
            self.blocks[block as usize].pieces = self.pieces.one(bytes, tag);
        }
        self.join_neighbours(block, Seam::Merged, slots)
    }

    /// Notes that a taken block was freed, but is still used.
    pub(crate) fn set_held(&mut self, block: u32) {
        self.blocks[block as usize].kind = Kind::Held;
    }

    #[inline]
    fn join_neighbours(&mut self, block: u32, seam: Seam, slots: &mut Slots) -> u32 {
        let mut block = block;
        let b = *self.get(block);
        if b.prev != NONE && self.get(b.prev).is_free() && self.get(b.prev).end() == b.start {
            self.remove_from_index(b.prev);
            block = self.join(b.prev, seam, slots);
        }
        let next = b.next;
        if next != NONE && self.get(next).is_free() && self.get(next).start == b.end() {
            self.remove_from_index(next);
            block = self.join(block, seam, slots);
        }
        self.insert_in_index(block, slots);
        block
    }

    /// Makes the pages of a just settled handle a free block, of `pieces`. `pages` was (part of) a
    /// hole; it must be called right after `Slots::settle`.
    pub(crate) fn add_pages(&mut self, pages: &Range<usize>, pieces: List, slots: &mut Slots) {
        let next = Self::next_after(pages.end, slots);
        let prev = if next == NONE { self.last } else { self.get(next).prev };
        let block = self.insert_between(
            prev,
            next,
            Block {
                start: page_start(pages.start),
                bytes: pages.len() as u64 * PAGE,
                prev,
                next,
                kind: Kind::Unit,
                pieces,
                by_bytes: Links::NONE,
                by_clean: Links::NONE,
            },
        );
        self.note_start(block, slots);
        self.join_neighbours(block, Seam::Exact, slots);
    }

    /// Pieces of pages that nobody has used.
    pub(crate) fn unused(&mut self, n_pages: usize) -> List {
        if n_pages == 0 { List::EMPTY } else { self.pieces.one(n_pages as u64 * PAGE, Tag::UNUSED) }
    }

    /// Takes the pages of a wholly free handle out of the free block around them, with what they
    /// were used for. Must be called right before `Slots::unsettle`.
    pub(crate) fn remove_pages(&mut self, block: u32, pages: &Range<usize>, slots: &mut Slots) -> List {
        let (start, bytes) = (page_start(pages.start), pages.len() as u64 * PAGE);
        let (taken, pieces) = self.cut_out(block, start, bytes, Kind::Unit, slots);
        self.unlink(taken, slots);
        pieces
    }

    /// The tags in a list of pieces.
    pub(crate) fn tags(&self, pieces: List) -> impl Iterator<Item = Tag> + '_ {
        self.pieces.iter(pieces).map(|(_, tag)| tag)
    }

    /// Forgets pieces that were taken out.
    pub(crate) fn drop_pieces(&mut self, pieces: List) {
        self.pieces.drop(pieces);
    }

    /// `low` and `high` behind it as one list.
    pub(crate) fn join_pieces(&mut self, low: List, high: List) -> List {
        self.pieces.join(low, high, Seam::Exact)
    }

    /// The first block behind the hole at `page`.
    fn first_from_hole(page: usize, slots: &Slots) -> u32 {
        match slots.hole_from(page) {
            Some(hole) if hole.end != usize::MAX => slots.slot(hole.end).first_block,
            _ => NONE,
        }
    }

    /// The first block at or behind `page`, where `page` starts a home, a hole, or nothing.
    fn next_after(page: usize, slots: &Slots) -> u32 {
        if page >= slots.end() {
            NONE
        } else if slots.slot(page).home != NONE {
            slots.slot(page).first_block
        } else {
            Self::first_from_hole(page, slots)
        }
    }

    #[inline]
    fn insert_in_index(&mut self, block: u32, slots: &Slots) {
        let b = &mut self.blocks[block as usize];
        let first = first_handle_from(b.start, slots);
        let behind = last_handle_until(b.end(), slots).max(first);
        b.kind = Kind::Free { first: index(first), behind: index(behind) };
        self.free.insert(&mut self.blocks, block);
    }

    #[inline]
    fn remove_from_index(&mut self, block: u32) {
        if self.get(block).is_free() {
            self.free.remove(&mut self.blocks, block);
        }
    }

    /// Splits `block` at `at`; both parts keep the kind; returns the upper part.
    #[inline]
    fn split(&mut self, block: u32, at: u64, slots: &mut Slots) -> u32 {
        let b = *self.get(block);
        let (low, high) = match b.pieces {
            List::EMPTY => (List::EMPTY, List::EMPTY),
            pieces => self.pieces.split(pieces, b.bytes, at - b.start),
        };
        let lower = &mut self.blocks[block as usize];
        (lower.bytes, lower.pieces) = (at - b.start, low);
        let upper = Block { start: at, bytes: b.end() - at, prev: block, pieces: high, ..b };
        let upper = self.insert_between(block, b.next, upper);
        self.note_start(upper, slots);
        upper
    }

    /// Joins `block` with the next one; returns `block`.
    #[inline]
    fn join(&mut self, block: u32, seam: Seam, slots: &mut Slots) -> u32 {
        let b = *self.get(block);
        let above = *self.get(b.next);
        let pieces = self.pieces.join(b.pieces, above.pieces, seam);
        let joined = &mut self.blocks[block as usize];
        (joined.bytes, joined.pieces) = (b.bytes + above.bytes, pieces);
        let next = b.next;
        self.unlink(next, slots);
        block
    }

    #[inline]
    fn insert_between(&mut self, prev: u32, next: u32, block: Block) -> u32 {
        let i = if let Some(i) = self.vacant.pop() {
            self.blocks[i as usize] = block;
            i
        } else {
            self.blocks.push(block);
            index(self.blocks.len() - 1)
        };
        if prev != NONE {
            self.blocks[prev as usize].next = i;
        }
        if next == NONE {
            self.last = i;
        } else {
            self.blocks[next as usize].prev = i;
        }
        i
    }

    #[inline]
    fn unlink(&mut self, block: u32, slots: &mut Slots) {
        let b = *self.get(block);
        let page = page_of(b.start);
        if slots.slot(page).first_block == block {
            let next_here = b.next != NONE && page_of(self.get(b.next).start) == page;
            slots.slot_mut(page).first_block = if next_here { b.next } else { NONE };
        }
        if b.prev != NONE {
            self.blocks[b.prev as usize].next = b.next;
        }
        if b.next == NONE {
            self.last = b.prev;
        } else {
            self.blocks[b.next as usize].prev = b.prev;
        }
        self.blocks[block as usize].kind = Kind::Vacant;
        self.vacant.push(block);
    }

    /// Enters a new block in the slot table.
    #[inline]
    fn note_start(&self, block: u32, slots: &mut Slots) {
        let start = self.get(block).start;
        let slot = slots.slot_mut(page_of(start));
        if slot.first_block == NONE || self.get(slot.first_block).start > start {
            slot.first_block = block;
        }
    }
}

/// The first page at or behind byte `at` where a handle starts; `at` lies in or behind a home.
#[inline]
pub(crate) fn first_handle_from(at: u64, slots: &Slots) -> usize {
    let page = page_of(at.next_multiple_of(PAGE));
    match slots.home(page) {
        Some(h) if (h.home as usize) < page => h.pages().end,
        _ => page,
    }
}

/// The last page at or before byte `at` where a handle ends; `at` lies in or behind a home.
#[inline]
pub(crate) fn last_handle_until(at: u64, slots: &Slots) -> usize {
    let page = page_of(at);
    match slots.home(page) {
        Some(h) if (h.home as usize) < page => h.home as usize,
        _ => page,
    }
}

#[cfg(test)]
mod check;
