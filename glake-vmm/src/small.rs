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

/// A node of a list is a unit and a granule in one number.
const UNIT_SHIFT: u32 = N_GRANULES.trailing_zeros();
const UNIT_MASK: u32 = (1 << UNIT_SHIFT) - 1;

/// Where a small object lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) unit: u32,
    granule: usize,
}

/// What a small object was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) requested_bytes: u64,
    pub(crate) allocated_bytes: u64,
    /// Whether the unit is wholly free now.
    pub(crate) unit_is_free: bool,
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

#[derive(Debug)]
struct Unit {
    /// First byte in the arena.
    start: u64,
    granules: Box<[Granule]>,
    n_live: u32,
}

/// The units and the free runs in them.
#[derive(Debug)]
pub(crate) struct SmallPool {
    units: Vec<Unit>,
    vacant: Vec<u32>,
    heads: Box<[u32]>,
    bitmap: [u64; N_LISTS.div_ceil(64)],
    n_units: u64,
    free_granules: u64,
}

impl SmallPool {
    pub(crate) fn new() -> Self {
        Self {
            units: Vec::new(),
            vacant: Vec::new(),
            heads: vec![NONE; N_LISTS].into(),
            bitmap: [0; N_LISTS.div_ceil(64)],
            n_units: 0,
            free_granules: 0,
        }
    }

    /// The first byte of `unit` in the arena.
    pub(crate) fn start(&self, unit: u32) -> u64 {
        self.units[unit as usize].start
    }

    /// Takes in a unit whose bytes start at `start` in the arena.
    pub(crate) fn add_unit(&mut self, start: u64) -> u32 {
        let blank = Granule { tag: 0, slack: 0, next: NONE, prev: NONE };
        let unit = Unit { start, granules: vec![blank; N_GRANULES].into(), n_live: 0 };
        let i = if let Some(i) = self.vacant.pop() {
            self.units[i as usize] = unit;
            i
        } else {
            self.units.push(unit);
            index(self.units.len() - 1)
        };
        self.n_units += 1;
        self.insert_run(i, 0, N_GRANULES);
        i
    }

    /// Gives a wholly free unit back.
    pub(crate) fn remove_unit(&mut self, unit: u32) {
        self.remove_run(unit, 0, N_GRANULES);
        self.units[unit as usize].granules = Box::default();
        self.vacant.push(unit);
        self.n_units -= 1;
    }

    /// Takes the best fitting free run for `bytes` bytes; its address in the arena and its unit.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<(u64, u32)> {
        let n = n_granules(bytes);
        let list = self.first_list(n)?;
        let node = self.heads[list];
        let (unit, at) = (node >> UNIT_SHIFT, (node & UNIT_MASK) as usize);
        let run = (self.at(node).tag & !FREE) as usize;
        self.remove_run(unit, at, run);
        if run > n {
            self.insert_run(unit, at + n, run - n);
        }
        let u = &mut self.units[unit as usize];
        u.n_live += 1;
        let start = u.start;
        let g = &mut u.granules[at];
        g.tag = to_u16(n as u64);
        g.slack = to_u16(n as u64 * GRANULE_BYTES - bytes);
        Some((start + at as u64 * GRANULE_BYTES, unit))
    }

    /// The live object that starts at byte `offset` of `unit`.
    pub(crate) fn find(&self, unit: u32, offset: u64) -> Option<Spot> {
        if !offset.is_multiple_of(GRANULE_BYTES) {
            return None;
        }
        let granule = usize::try_from(offset / GRANULE_BYTES).ok()?;
        let tag = self.units.get(unit as usize)?.granules.get(granule)?.tag;
        (tag != 0 && tag & FREE == 0).then_some(Spot { unit, granule })
    }

    /// Frees the object at `spot`.
    pub(crate) fn free(&mut self, spot: Spot) -> Freed {
        let Spot { unit, granule } = spot;
        let u = &mut self.units[unit as usize];
        u.n_live -= 1;
        let unit_is_free = u.n_live == 0;
        let Granule { tag, slack, .. } = u.granules[granule];
        u.granules[granule].tag = 0;
        let below = if granule > 0 { u.granules[granule - 1].tag } else { 0 };
        let behind = granule + tag as usize;
        let above = if behind < N_GRANULES { u.granules[behind].tag } else { 0 };
        let (mut first, mut n) = (granule, tag as usize);
        if below & FREE != 0 {
            let m = (below & !FREE) as usize;
            first -= m;
            n += m;
            self.remove_run(unit, first, m);
        }
        if above & FREE != 0 {
            let m = (above & !FREE) as usize;
            n += m;
            self.remove_run(unit, behind, m);
        }
        self.insert_run(unit, first, n);
        let allocated_bytes = u64::from(tag) * GRANULE_BYTES;
        Freed { requested_bytes: allocated_bytes - u64::from(slack), allocated_bytes, unit_is_free }
    }

    /// The list with the shortest free runs of at least `n` granules.
    fn first_list(&self, n: usize) -> Option<usize> {
        let (word, bit) = (n / 64, n % 64);
        let first = self.bitmap[word] & (u64::MAX << bit);
        if first != 0 {
            return Some(word * 64 + first.trailing_zeros() as usize);
        }
        let (i, bits) = self.bitmap.iter().enumerate().skip(word + 1).find(|(_, bits)| **bits != 0)?;
        Some(i * 64 + bits.trailing_zeros() as usize)
    }

    fn insert_run(&mut self, unit: u32, at: usize, n: usize) {
        let list = n.min(N_LISTS - 1);
        let node = node_of(unit, at);
        let head = self.heads[list];
        let tag = to_u16(n as u64) | FREE;
        let granules = &mut self.units[unit as usize].granules;
        granules[at + n - 1].tag = tag;
        granules[at] = Granule { tag, slack: 0, next: head, prev: NONE };
        if head != NONE {
            self.at(head).prev = node;
        }
        self.heads[list] = node;
        self.bitmap[list / 64] |= 1 << (list % 64);
        self.free_granules += n as u64;
    }

    fn remove_run(&mut self, unit: u32, at: usize, n: usize) {
        let list = n.min(N_LISTS - 1);
        let granules = &mut self.units[unit as usize].granules;
        granules[at + n - 1].tag = 0;
        granules[at].tag = 0;
        let Granule { next, prev, .. } = granules[at];
        if next != NONE {
            self.at(next).prev = prev;
        }
        if prev == NONE {
            self.heads[list] = next;
            if next == NONE {
                self.bitmap[list / 64] &= !(1 << (list % 64));
            }
        } else {
            self.at(prev).next = next;
        }
        self.free_granules -= n as u64;
    }

    fn at(&mut self, node: u32) -> &mut Granule {
        &mut self.units[(node >> UNIT_SHIFT) as usize].granules[(node & UNIT_MASK) as usize]
    }
}

/// Bytes set aside for a small request.
pub(crate) fn n_granules(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(GRANULE_BYTES)).unwrap_or(usize::MAX)
}

fn node_of(unit: u32, granule: usize) -> u32 {
    (unit << UNIT_SHIFT) | index(granule)
}

/// Lengths and slacks are at most 4,096.
fn to_u16(n: u64) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod check;
#[cfg(test)]
pub(crate) use check::UnitFigures;
