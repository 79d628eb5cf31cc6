//! Ids of the cache.

use std::fmt;

/// A token's number in the model's vocabulary.
pub type Token = u32;

/// A block: room for the keys and values of a fixed number of tokens, in all layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A page of blocks: what is mapped and unmapped as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// The chained hash of a block: of its tokens, all tokens before them, and the salt.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u128);

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A place in a table, and how often it had been given away: no handle outlives what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) Slot);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.0.index, self.0.generation)
            }
        }
    };
}

handle! {
    /// A sequence of the cache, until it is freed.
    SequenceId
}
handle! {
    /// Blocks set apart for sequences to come, until they are given up.
    ReservationId
}
handle! {
    /// Blocks that stay cached, until they are let go.
    PinId
}
