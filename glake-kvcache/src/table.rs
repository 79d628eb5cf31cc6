//! Sequences: their block tables and how far they are.

use crate::ids::{BlockId, ReservationId, Slot};
use crate::slots::Slots;

/// What the cache knows of a sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    /// Its blocks in order. All but the last are full.
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) n_tokens: u32,
    /// Tokens that the last block still takes.
    pub(crate) room: u32,
    /// Blocks whose contents are in the index, or equal to some there.
    pub(crate) n_committed: u32,
    /// The place of the root of its chain.
    pub(crate) root: u32,
    pub(crate) reservation: Option<ReservationId>,
}

/// The sequences of a cache.
#[derive(Debug)]
pub(crate) struct Table(pub(crate) Slots<Sequence>);

impl Table {
    pub(crate) const fn new() -> Self {
        Self(Slots::new())
    }

    /// The state of a new sequence; the memory of its table may be an old one's.
    pub(crate) fn start(&mut self) -> Option<(Slot, &mut Sequence)> {
        let (slot, sequence) = self.0.take()?;
        let mut blocks = std::mem::take(&mut sequence.blocks);
        blocks.clear();
        *sequence = Sequence { blocks, ..Sequence::default() };
        Some((slot, sequence))
    }
}
