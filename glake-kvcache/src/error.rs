//! Why the cache refuses something. Whatever was refused, nothing has changed.

use crate::ids::{PinId, ReservationId, SequenceId};

/// Why an operation of the cache was refused. The cache is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Blocks are wanted that are not there.
    #[error(
        "{needed} blocks are needed and {available} can be had: free or preempt sequences, or raise the limit"
    )]
    NoBlocks {
        /// How many are needed, cached ones that nobody uses included.
        needed: u32,
        /// How many this caller could have.
        available: u32,
    },
    /// The sequence was freed, or is another cache's.
    #[error("sequence {0} was freed: start it again")]
    UnknownSequence(SequenceId),
    /// The reservation was given up, or is another cache's.
    #[error("reservation {0} was given up: reserve again")]
    UnknownReservation(ReservationId),
    /// The pin was taken off, or is another cache's.
    #[error("pin {0} was taken off before")]
    UnknownPin(PinId),
    /// A prompt without tokens.
    #[error("the prompt is empty: a sequence starts with at least one token")]
    EmptyPrompt,
    /// A sequence would be longer than the cache allows.
    #[error(
        "{tokens} tokens are more than the {most} that a sequence may have (`Config::max_sequence_tokens`)"
    )]
    TooLong {
        /// How long it would be.
        tokens: u64,
        /// How long it may be.
        most: u32,
    },
    /// More is said to be computed than the sequence has.
    #[error("{computed} tokens are said to be computed and the sequence has {tokens}: append them first")]
    NotAppended {
        /// Tokens that are said to be computed.
        computed: u32,
        /// Tokens that the sequence has.
        tokens: u32,
    },
    /// Tokens are to be taken back that others may have found.
    #[error(
        "{kept} tokens would be kept, and blocks up to token {committed} are committed: fork before, instead"
    )]
    Committed {
        /// Tokens that would be kept.
        kept: u32,
        /// Tokens of blocks that are committed.
        committed: u32,
    },
    /// More blocks would be pinned than the cache allows.
    #[error("{pinned} blocks would be pinned and {most} may be (`Config::max_pinned_blocks`)")]
    PinLimit {
        /// How many would be.
        pinned: u32,
        /// How many may be.
        most: u32,
    },
    /// Blocks are in use.
    #[error("{n_blocks} blocks are in use: free the sequences and take off the pins first")]
    InUse {
        /// How many.
        n_blocks: u32,
    },
    /// The limit has no page, or more than there are.
    #[error("a limit of {pages} pages is none: the cache has 1 to {most}")]
    LimitOutOfRange {
        /// The limit.
        pages: u32,
        /// The pages that the cache was made with.
        most: u32,
    },
    /// All handles are given away.
    #[error("there are 4294967296 of these already: free some")]
    TooMany,
}

/// Why there can be no such cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No blocks, or more than can be numbered.
    #[error("a cache of {0} blocks: it has 1 to 134217728")]
    Blocks(u32),
    /// Blocks without tokens, or with more than memory can list.
    #[error("blocks of {block_tokens} tokens: at least 1, and {n_blocks} of them have to fit in memory")]
    BlockTokens {
        /// Tokens in a block.
        block_tokens: u32,
        /// How many blocks.
        n_blocks: u32,
    },
    /// Blocks do not fill pages.
    #[error("{n_blocks} blocks do not fill pages of {blocks_per_page}: take a multiple")]
    Pages {
        /// How many blocks.
        n_blocks: u32,
        /// How many make a page.
        blocks_per_page: u32,
    },
}

const _: () = assert!(size_of::<CacheError>() <= 32 && size_of::<ConfigError>() <= 32);

/// Why a model's keys and values cannot be laid out so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Something of the shape is zero.
    #[error("a model without layers, heads, dimensions or tokens to see")]
    Empty,
    /// A number of layers that the model does not have.
    #[error("{layers_per_page} layers in a page: the model has 1 to {n_layers}")]
    Layers {
        /// Layers in a page.
        layers_per_page: u32,
        /// Layers of the model.
        n_layers: u32,
    },
    /// A page holds less than one token.
    #[error("a token takes {needed_bytes} bytes and a page has {page_bytes}: put fewer layers in a page")]
    PageTooSmall {
        /// Bytes of a token.
        needed_bytes: u64,
        /// Bytes of a page.
        page_bytes: u64,
    },
    /// A stride does not fit the 32 bits that a kernel has for it.
    #[error(
        "a stride of {stride} elements wraps in 32 bits: take shorter slots, or a kernel with 64-bit strides"
    )]
    StrideWraps {
        /// The stride, in elements.
        stride: u64,
    },
    /// Sizes that 64 bits cannot count, or more tokens in a page than 32 bits can.
    #[error("sizes of this layout cannot be counted")]
    TooLarge,
}

const _: () = assert!(size_of::<LayoutError>() <= 32);
