//! How many sequences fit, before they begin.

use crate::cache::KvCache;
use crate::event::EventSink;
use crate::policy::Policy;

/// Sequences of one kind, in tokens each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceShape {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens that are generated at most.
    pub output_tokens: u32,
    /// Tokens at the beginning of the prompt that all of them share.
    pub shared_tokens: u32,
}

/// How many sequences of a shape `n_blocks` blocks hold at their full length, whole shared blocks once; what is shared is
/// not there yet.
#[must_use]
pub fn fits(shape: SequenceShape, n_blocks: u32, block_tokens: u32) -> u32 {
    let tokens = u64::from(shape.prompt_tokens) + u64::from(shape.output_tokens);
    let block_tokens = u64::from(block_tokens.max(1));
    // A prompt's last token is computed in a block of one's own.
    let most_shared = u64::from(shape.prompt_tokens.saturating_sub(1));
    let shared = u64::from(shape.shared_tokens).min(most_shared) / block_tokens;
    let own = tokens.div_ceil(block_tokens) - shared;
    let left = u64::from(n_blocks).saturating_sub(shared);
    u32::try_from(left / own.max(1)).unwrap_or(u32::MAX)
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// How many more sequences of a shape can be started and grow to their full length, besides what runs as far as
    /// it has come, and what is reserved.
    ///
    /// To be sure of them, [`reserve`](Self::reserve) their blocks.
    #[must_use]
    pub fn fits(&self, shape: SequenceShape) -> u32 {
        fits(shape, self.n_available(), self.config().block_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(prompt_tokens: u32, output_tokens: u32, shared_tokens: u32) -> SequenceShape {
        SequenceShape { prompt_tokens, output_tokens, shared_tokens }
    }

    #[test]
    fn whole_blocks_count() {
        assert_eq!(fits(shape(16, 0, 0), 10, 16), 10);
        assert_eq!(fits(shape(16, 1, 0), 10, 16), 5);
        assert_eq!(fits(shape(0, 0, 0), 10, 16), 10);
        assert_eq!(fits(shape(u32::MAX, u32::MAX, 0), 10, 1), 0);
    }

    #[test]
    fn shared_blocks_count_once() {
        // Three blocks are shared; each has one of its own.
        assert_eq!(fits(shape(55, 5, 48), 10, 16), 7);
        // All of the prompt, but for the block of its last token.
        assert_eq!(fits(shape(48, 0, 48), 10, 16), 8);
        assert_eq!(fits(shape(55, 5, 48), 3, 16), 0);
    }
}
