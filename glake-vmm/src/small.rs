//! Small objects: requests below 256 KiB, served from units of one page.
//!
//! A unit is cut in granules of 512 B. Free runs of granules carry their length at both ends
//! (boundary tags), so a free joins its neighbours without a search, and are listed by length,
//! so the best fit is one look at a bitmap.

use crate::units::{GRANULE_BYTES, NONE, PAGE, index};

/// Requests below this many bytes are small.
pub(crate) const SMALL_BYTES: u64 = 256 << 10;

/// Granules per unit.
const N_GRANULES: usize = (PAGE / GRANULE_BYTES) as usize;

/// Runs of this many granules and more share the last list: any small request fits.
const N_LISTS: usize = (SMALL_BYTES / GRANULE_BYTES) as usize + 1;

const FREE: u16 = 1 << 15;
/// In the tag of a live run: it was freed, but not by its stream, and waits for that.
const HELD: u16 = 1 << 14;

/// Units lie one behind the other in the table of granules: an index there is a unit and a
/// granule in one number.
const UNIT_SHIFT: u32 = N_GRANULES.trailing_zeros();
const UNIT_MASK: u32 = (1 << UNIT_SHIFT) - 1;

/// Where a small object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot(u32);

/// How big an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) requested_bytes: u64,
    pub(crate) allocated_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Granule {
    /// Length of the live run that starts here, or of the free run that starts or ends here
    /// with the `FREE` bit; 0 elsewhere.
    tag: u16,
    /// Bytes rounded up, for the start of a live run.
    slack: u16,
    /// Neighbours in the list of free runs of this length, for the start of a free run.
    next: u32,
    prev: u32,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    /// First byte in the arena.
    start: u64,
    n_live: u32,
    is_vacant: bool,
}

/// The units and the free runs in them.
#[derive(Debug)]
pub(crate) struct SmallPool {
    units: Vec<Unit>,
    granules: Vec<Granule>,
    vacant: Vec<u32>,
    heads: Box<[u32]>,
    bitmap: [u64; N_LISTS.div_ceil(64)],
}

impl Default for SmallPool {
    fn default() -> Self {
        Self {
            units: Vec::new(),
            granules: Vec::new(),
            vacant: Vec::new(),
            heads: vec![NONE; N_LISTS].into(),
            bitmap: [0; N_LISTS.div_ceil(64)],
        }
    }
}

impl SmallPool {
    /// The first byte of `unit` in the arena.
    pub(crate) fn start(&self, unit: u32) -> u64 {
        self.units[unit as usize].start
    }

    /// Takes in a unit whose bytes start at `start` in the arena.
    pub(crate) fn add_unit(&mut self, start: u64) -> u32 {
        let unit = Unit { start, n_live: 0, is_vacant: false };
        let i = if let Some(i) = self.vacant.pop() {
            self.units[i as usize] = unit;
            i
        } else {
            self.units.push(unit);
            let blank = Granule { tag: 0, slack: 0, next: NONE, prev: NONE };
            self.granules.resize(self.units.len() * N_GRANULES, blank);
            index(self.units.len() - 1)
        };
        self.insert_run(i << UNIT_SHIFT, N_GRANULES);
        i
    }

    /// Gives a wholly free unit back.
    pub(crate) fn remove_unit(&mut self, unit: u32) {
        self.remove_run(unit << UNIT_SHIFT, N_GRANULES);
        self.units[unit as usize].is_vacant = true;
        self.vacant.push(unit);
    }

    /// Takes the best fitting free run for `bytes` bytes; its address in the arena and its unit.
    ///
    /// The object gets the high end, so that what is left of a long run stays in its list.
    #[inline]
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<(u64, u32)> {
        let n = n_granules(bytes);
        let first = self.heads[self.first_list(n)?];
        let run = self.length(first);
        let left = run - n;
        self.resize_run(first, run, left);
        let node = first + index(left);
        let g = &mut self.granules[node as usize];
        g.tag = to_u16(n as u64);
        g.slack = to_u16(n as u64 * GRANULE_BYTES - bytes);
        let unit = node >> UNIT_SHIFT;
        let u = &mut self.units[unit as usize];
        u.n_live += 1;
        Some((u.start + u64::from(node & UNIT_MASK) * GRANULE_BYTES, unit))
    }

    /// The live object that starts at byte `offset` of `unit`.
    #[inline]
    pub(crate) fn find(&self, unit: u32, offset: u64) -> Option<Spot> {
        if !offset.is_multiple_of(GRANULE_BYTES) {
            return None;
        }
        let node = (unit << UNIT_SHIFT) + u32::try_from(offset / GRANULE_BYTES).ok()?;
        let tag = self.granules.get(node as usize)?.tag;
        (tag != 0 && tag & (FREE | HELD) == 0).then_some(Spot(node))
    }

    /// The live object that holds byte `offset` of `unit`: where it starts in the arena, and its bytes
    /// as set aside.
    pub(crate) fn holding(&self, unit: u32, offset: u64) -> Option<(u64, u64)> {
        let at = usize::try_from(offset / GRANULE_BYTES).ok()?;
        let start = self.granules.get((unit as usize) << UNIT_SHIFT..)?;
        // Inside of runs there are no tags, and small objects are shorter than that.
        let first = (at.saturating_sub(N_LISTS)..=at).rev().find(|&i| start[i].tag != 0)?;
        let first_offset = first as u64 * GRANULE_BYTES;
        let bytes = self.size(self.find(unit, first_offset)?).allocated_bytes;
        (offset - first_offset < bytes).then_some((self.start(unit) + first_offset, bytes))
    }

    /// How big the object at `spot` is.
    #[inline]
    pub(crate) fn size(&self, Spot(node): Spot) -> Size {
        let Granule { tag, slack, .. } = self.granules[node as usize];
        let allocated_bytes = u64::from(tag & !HELD) * GRANULE_BYTES;
        Size { requested_bytes: allocated_bytes - u64::from(slack), allocated_bytes }
    }

    /// Marks the object at `spot` as freed, though its bytes are not free yet.
    pub(crate) fn hold(&mut self, Spot(node): Spot) {
        self.granules[node as usize].tag |= HELD;
    }

    /// Frees the object at `spot`; its unit, if that is wholly free now.
    #[inline]
    pub(crate) fn free(&mut self, Spot(node): Spot) -> Option<u32> {
        let u = &mut self.units[(node >> UNIT_SHIFT) as usize];
        u.n_live -= 1;
        let unit_is_free = u.n_live == 0;
        let tag = self.granules[node as usize].tag & !HELD;
        self.granules[node as usize].tag = 0;
        let mut n = usize::from(tag);
        let behind = node + u32::from(tag);
        if behind & UNIT_MASK != 0 && self.granules[behind as usize].tag & FREE != 0 {
            let above = self.length(behind);
            self.remove_run(behind, above);
            n += above;
        }
        let below = if node & UNIT_MASK == 0 { 0 } else { self.granules[node as usize - 1].tag };
        if below & FREE == 0 {
            self.insert_run(node, n);
        } else {
            let below = below & !FREE;
            self.resize_run(node - u32::from(below), usize::from(below), usize::from(below) + n);
        }
        unit_is_free.then_some(node >> UNIT_SHIFT)
    }

    /// The list with the shortest free runs of at least `n` granules.
    #[inline]
    fn first_list(&self, n: usize) -> Option<usize> {
        let (word, bit) = (n / 64, n % 64);
        let first = self.bitmap[word] & (u64::MAX << bit);
        if first != 0 {
            return Some(word * 64 + first.trailing_zeros() as usize);
        }
        let (i, bits) = self.bitmap.iter().enumerate().skip(word + 1).find(|(_, bits)| **bits != 0)?;
        Some(i * 64 + bits.trailing_zeros() as usize)
    }

    /// Length in granules of the free run that starts at `node`.
    #[inline]
    fn length(&self, node: u32) -> usize {
        usize::from(self.granules[node as usize].tag & !FREE)
    }

    /// Makes a free run of `n` granules one of `new_n` from the same start, or none of 0.
    #[inline]
    fn resize_run(&mut self, node: u32, n: usize, new_n: usize) {
        if list_of(n) == list_of(new_n) {
            self.granules[node as usize + n - 1].tag = 0;
            self.tag_free(node, new_n);
            return;
        }
        self.remove_run(node, n);
        if new_n > 0 {
            self.insert_run(node, new_n);
        }
    }

    #[inline]
    fn insert_run(&mut self, node: u32, n: usize) {
        let list = list_of(n);
        let head = self.heads[list];
        self.tag_free(node, n);
        let g = &mut self.granules[node as usize];
        (g.next, g.prev) = (head, NONE);
        if head != NONE {
            self.granules[head as usize].prev = node;
        }
        self.heads[list] = node;
        self.bitmap[list / 64] |= 1 << (list % 64);
    }

    #[inline]
    fn remove_run(&mut self, node: u32, n: usize) {
        let list = list_of(n);
        self.granules[node as usize + n - 1].tag = 0;
        let g = &mut self.granules[node as usize];
        g.tag = 0;
        let Granule { next, prev, .. } = *g;
        if next != NONE {
            self.granules[next as usize].prev = prev;
        }
        if prev == NONE {
            self.heads[list] = next;
            if next == NONE {
                self.bitmap[list / 64] &= !(1 << (list % 64));
            }
        } else {
            self.granules[prev as usize].next = next;
        }
    }

    /// Writes the length of a free run at both its ends.
    #[inline]
    fn tag_free(&mut self, node: u32, n: usize) {
        let tag = to_u16(n as u64) | FREE;
        self.granules[node as usize + n - 1].tag = tag;
        self.granules[node as usize].tag = tag;
    }
}

/// The list of free runs of `n` granules.
#[inline]
fn list_of(n: usize) -> usize {
    n.min(N_LISTS - 1)
}

/// Bytes set aside for a small request.
#[inline]
pub(crate) fn n_granules(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(GRANULE_BYTES)).unwrap_or(usize::MAX)
}

/// Lengths and slacks are at most 4,096.
fn to_u16(n: u64) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod check;
#[cfg(test)]
pub(crate) use check::UnitFigures;
