//! What free bytes were used for last: each free block is cut exactly in pieces of one tag.
//!
//! Pieces know their length, not their address, so they move with their handles as they are. What is
//! freed becomes one piece with neighbours of its stream, with the newer epoch.

use std::ops::Range;

use crate::order::Tag;
use crate::units::{NONE, index};

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    tag: Tag,
    next: u32,
    prev: u32,
}

/// Consecutive pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    /// No pieces: of a block that is not free.
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// What becomes of two pieces of one stream that meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seam {
    /// One piece, with the newer epoch.
    Merged,
    /// Two, if their epochs differ: a plan counts on the older one.
    Exact,
}

/// All pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    vacant: Vec<u32>,
}

impl Pieces {
    /// One piece.
    #[inline]
    pub(crate) fn one(&mut self, bytes: u64, tag: Tag) -> List {
        let piece = Piece { bytes, tag, next: NONE, prev: NONE };
        let at = if let Some(at) = self.vacant.pop() {
            self.pieces[at as usize] = piece;
            at
        } else {
            self.pieces.push(piece);
            index(self.pieces.len() - 1)
        };
        List { first: at, last: at }
    }

    /// A list with `bytes` of `tag` behind it, as [`Seam::Merged`].
    #[inline]
    pub(crate) fn append(&mut self, list: List, bytes: u64, tag: Tag) -> List {
        match self.pieces.get_mut(list.last as usize) {
            Some(last) if last.tag.stream == tag.stream => {
                last.bytes += bytes;
                last.tag = last.tag.max(tag);
                list
            }
            _ => {
                let one = self.one(bytes, tag);
                self.join(list, one, Seam::Exact)
            }
        }
    }

    /// A list with `bytes` of `tag` before it, as [`Seam::Merged`].
    #[inline]
    pub(crate) fn prepend(&mut self, bytes: u64, tag: Tag, list: List) -> List {
        match self.pieces.get_mut(list.first as usize) {
            Some(first) if first.tag.stream == tag.stream => {
                first.bytes += bytes;
                first.tag = first.tag.max(tag);
                list
            }
            _ => {
                let one = self.one(bytes, tag);
                self.join(one, list, Seam::Exact)
            }
        }
    }

    /// Forgets the pieces of a list.
    pub(crate) fn drop(&mut self, list: List) {
        let mut at = list.first;
        while at != NONE {
            self.vacant.push(at);
            at = self.pieces[at as usize].next;
        }
    }

    /// The pieces in order: length in bytes and tag.
    pub(crate) fn iter(&self, list: List) -> impl Iterator<Item = (u64, Tag)> + '_ {
        let node = |at: u32| (at != NONE).then(|| &self.pieces[at as usize]);
        std::iter::successors(node(list.first), move |piece| node(piece.next))
            .map(|piece| (piece.bytes, piece.tag))
    }

    /// The pieces from the last on.
    pub(crate) fn iter_back(&self, list: List) -> impl Iterator<Item = (u64, Tag)> + '_ {
        let node = |at: u32| (at != NONE).then(|| &self.pieces[at as usize]);
        std::iter::successors(node(list.last), move |piece| node(piece.prev))
            .map(|piece| (piece.bytes, piece.tag))
    }

    /// The tags of the pieces that touch `window`, bytes of a list of `bytes` bytes: from the end of
    /// the list that is nearer.
    pub(crate) fn window(&self, list: List, bytes: u64, window: Range<u64>) -> Window<'_> {
        let is_low = window.start <= bytes - window.end;
        let (piece, before, until) = if is_low {
            (list.first, window.start, window.end)
        } else {
            (list.last, bytes - window.end, bytes - window.start)
        };
        Window { pieces: &self.pieces, piece, is_low, at: 0, before, until }
    }

    /// The tag of all bytes, if they have the same.
    pub(crate) fn only(&self, list: List) -> Option<Tag> {
        (list.first == list.last && list.first != NONE).then(|| self.pieces[list.first as usize].tag)
    }

    /// `low` and `high` behind it as one list; as `seam` says, pieces that meet become one.
    #[inline]
    pub(crate) fn join(&mut self, low: List, high: List, seam: Seam) -> List {
        if low == List::EMPTY {
            return high;
        }
        if high == List::EMPTY {
            return low;
        }
        let (l, h) = (low.last as usize, high.first as usize);
        let next = self.pieces[h];
        let tag = self.pieces[l].tag;
        if tag.stream != next.tag.stream || (seam == Seam::Exact && tag != next.tag) {
            self.pieces[l].next = high.first;
            self.pieces[h].prev = low.last;
            return List { first: low.first, last: high.last };
        }
        let piece = &mut self.pieces[l];
        piece.bytes += next.bytes;
        piece.tag = piece.tag.max(next.tag);
        piece.next = next.next;
        self.vacant.push(high.first);
        if next.next == NONE {
            return low;
        }
        self.pieces[next.next as usize].prev = low.last;
        List { first: low.first, last: high.last }
    }

    /// Cuts the first `n` bytes off a list.
    #[inline]
    pub(crate) fn cut_front(&mut self, list: List, n: u64) -> List {
        let mut left = n;
        let mut first = list.first;
        while first != NONE && self.pieces[first as usize].bytes <= left {
            left -= self.pieces[first as usize].bytes;
            self.vacant.push(first);
            first = self.pieces[first as usize].next;
        }
        if first == NONE {
            return List::EMPTY;
        }
        let piece = &mut self.pieces[first as usize];
        piece.bytes -= left;
        piece.prev = NONE;
        List { first, last: list.last }
    }

    /// Cuts the last `n` bytes off a list.
    #[inline]
    pub(crate) fn cut_back(&mut self, list: List, n: u64) -> List {
        let mut left = n;
        let mut last = list.last;
        while last != NONE && self.pieces[last as usize].bytes <= left {
            left -= self.pieces[last as usize].bytes;
            self.vacant.push(last);
            last = self.pieces[last as usize].prev;
        }
        if last == NONE {
            return List::EMPTY;
        }
        let piece = &mut self.pieces[last as usize];
        piece.bytes -= left;
        piece.next = NONE;
        List { first: list.first, last }
    }

    /// Cuts a list of `bytes` bytes at byte `at`.
    pub(crate) fn split(&mut self, list: List, bytes: u64, at: u64) -> (List, List) {
        if at == 0 {
            return (List::EMPTY, list);
        }
        if at == bytes {
            return (list, List::EMPTY);
        }
        if list.first == list.last {
            let whole = &mut self.pieces[list.first as usize];
            whole.bytes = at;
            let tag = whole.tag;
            return (list, self.one(bytes - at, tag));
        }
        // The piece with byte `at`, and where it starts, from the nearer end.
        let (mut piece, mut start);
        if at <= bytes / 2 {
            (piece, start) = (list.first, 0);
            while start + self.pieces[piece as usize].bytes <= at {
                start += self.pieces[piece as usize].bytes;
                piece = self.pieces[piece as usize].next;
            }
        } else {
            piece = list.last;
            start = bytes - self.pieces[piece as usize].bytes;
            while start > at {
                piece = self.pieces[piece as usize].prev;
                start -= self.pieces[piece as usize].bytes;
            }
        }
        let p = self.pieces[piece as usize];
        if start == at {
            self.pieces[piece as usize].prev = NONE;
            self.pieces[p.prev as usize].next = NONE;
            return (List { first: list.first, last: p.prev }, List { first: piece, last: list.last });
        }
        let upper = self.one(start + p.bytes - at, p.tag).first;
        self.pieces[upper as usize].next = p.next;
        let lower = &mut self.pieces[piece as usize];
        lower.bytes = at - start;
        lower.next = NONE;
        if p.next != NONE {
            self.pieces[p.next as usize].prev = upper;
        }
        let last = if p.next == NONE { upper } else { list.last };
        (List { first: list.first, last: piece }, List { first: upper, last })
    }
}

/// The tags of some pieces. Distances are from the end that it starts at.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    pieces: &'a [Piece],
    piece: u32,
    is_low: bool,
    at: u64,
    before: u64,
    until: u64,
}

impl Iterator for Window<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        while self.at < self.until {
            let piece = &self.pieces[self.piece as usize];
            self.at += piece.bytes;
            self.piece = if self.is_low { piece.next } else { piece.prev };
            if self.at > self.before {
                return Some(piece.tag);
            }
        }
        None
    }
}

#[cfg(test)]
impl Pieces {
    /// Pieces that are in a list.
    pub(crate) fn n_used(&self) -> usize {
        self.pieces.len() - self.vacant.len()
    }
}

#[cfg(test)]
mod tests;
