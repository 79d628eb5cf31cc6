//! Sequences grow.

use super::KvCache;
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::{BlockId, SequenceId, Token};
use crate::policy::Policy;

/// A block that has to be copied before its copy is written to, in the order of the stream that reads and writes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyBlock {
    /// What is copied.
    pub from: BlockId,
    /// Where to.
    pub to: BlockId,
    /// How many tokens of it: the rest is not written yet.
    pub n_tokens: u32,
}

/// Where keys and values of tokens go that were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The block of the first of them.
    pub block: BlockId,
    /// Its place there, in tokens.
    pub offset: u32,
    /// What to copy first, where others use the block that was not full.
    pub copy: Option<CopyBlock>,
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Appends a token. Within a block that nobody else uses it takes no block and no heap.
    ///
    /// # Errors
    /// A sequence that was freed, one that is as long as it may be, or no block for it. Nothing has changed then.
    #[inline]
    pub fn append(&mut self, sequence: SequenceId, token: Token) -> Result<Appended, CacheError> {
        let most = self.config.max_sequence_tokens;
        let state = self.table.0.get_mut(sequence.0).ok_or(CacheError::UnknownSequence(sequence))?;
        if state.room > 0
            && state.n_tokens < most
            && let Some(&block) = state.blocks.last()
            && self.pool.users(block) == 1
        {
            let offset = self.config.block_tokens - state.room;
            state.room -= 1;
            state.n_tokens += 1;
            self.prefix.tokens_mut(block)[offset as usize] = token;
            return Ok(Appended { block, offset, copy: None });
        }
        self.append_elsewhere(sequence, token)
    }

    /// Appends a token to a new block, or to a copy.
    fn append_elsewhere(&mut self, sequence: SequenceId, token: Token) -> Result<Appended, CacheError> {
        let state = self.sequence(sequence)?;
        if state.room > 0 || state.n_tokens >= self.config.max_sequence_tokens {
            return self.append_all(sequence, &[token]);
        }
        let reservation = state.reservation;
        let covered = self.cover(1, reservation)?;
        let block = self.take_one().ok_or(CacheError::NoBlocks { needed: 1, available: 0 })?;
        self.reservations.draw(reservation, covered);
        self.prefix.tokens_mut(block)[0] = token;
        if let Some(state) = self.table.0.get_mut(sequence.0) {
            state.blocks.push(block);
            state.n_tokens += 1;
            state.room = self.config.block_tokens - 1;
        }
        Ok(Appended { block, offset: 0, copy: None })
    }

    /// Appends tokens: all or none. They follow each other in the blocks of the sequence, from the place that is returned on.
    ///
    /// # Errors
    /// A sequence that was freed, one that would be too long, or too few blocks. Nothing has changed then.
    pub fn append_all(&mut self, sequence: SequenceId, tokens: &[Token]) -> Result<Appended, CacheError> {
        let block_tokens = self.config.block_tokens;
        let state = self.sequence(sequence)?;
        let (room, reservation, last) = (state.room, state.reservation, state.blocks.last().copied());
        let n_tokens = self.length_with(state.n_tokens, tokens.len())?;
        let Some(last) = last else { return Err(CacheError::EmptyPrompt) };
        let copied = (room > 0 && !tokens.is_empty() && self.pool.users(last) > 1).then_some(last);
        let n_blocks = n_tokens.div_ceil(block_tokens) - state.n_tokens.div_ceil(block_tokens);
        let needed = n_blocks + u32::from(copied.is_some());
        let covered = self.cover(needed, reservation)?;

        self.reservations.draw(reservation, covered);
        let mut blocks = match self.table.0.get_mut(sequence.0) {
            Some(state) => std::mem::take(&mut state.blocks),
            None => return Err(CacheError::UnknownSequence(sequence)),
        };
        let offset = block_tokens - room;
        let copy = copied.and_then(|from| {
            blocks.pop();
            self.take(1, &mut blocks);
            let &to = blocks.last()?;
            self.prefix.copy_tokens(from, to);
            self.pool.release(from);
            Some(CopyBlock { from, to, n_tokens: offset })
        });
        let first_new = blocks.len();
        let (within, beyond) = tokens.split_at(tokens.len().min(room as usize));
        if let Some(&last) = blocks.last() {
            self.prefix.tokens_mut(last)[offset as usize..][..within.len()].copy_from_slice(within);
        }
        self.take(n_blocks, &mut blocks);
        self.prefix.write(&blocks[first_new..], beyond);
        let place = match (room, blocks.get(first_new)) {
            (0, Some(&block)) => Appended { block, offset: 0, copy },
            _ => Appended { block: blocks.get(first_new - 1).copied().unwrap_or(last), offset, copy },
        };
        if let Some(state) = self.table.0.get_mut(sequence.0) {
            state.room = (block_tokens - n_tokens % block_tokens) % block_tokens;
            state.n_tokens = n_tokens;
            state.blocks = blocks;
        }
        Ok(place)
    }

    /// Takes back all tokens but the first `n_tokens`, at least one, as when a draft was not accepted. Keeping more than
    /// there are changes nothing.
    ///
    /// # Errors
    /// A sequence that was freed; no token to keep; a cut within a block that is committed. Nothing has changed then.
    pub fn truncate(&mut self, sequence: SequenceId, n_tokens: u32) -> Result<(), CacheError> {
        let block_tokens = self.config.block_tokens;
        let state = self.table.0.get_mut(sequence.0).ok_or(CacheError::UnknownSequence(sequence))?;
        if n_tokens == 0 {
            return Err(CacheError::EmptyPrompt);
        }
        if n_tokens >= state.n_tokens {
            return Ok(());
        }
        let n_full = n_tokens / block_tokens;
        let n_kept = n_tokens.div_ceil(block_tokens) as usize;
        // A fork may have committed it.
        if n_kept > n_full as usize && self.pool.is_cached(state.blocks[n_kept - 1]) {
            let committed = (n_full + 1).saturating_mul(block_tokens);
            return Err(CacheError::Committed { kept: n_tokens, committed });
        }
        state.n_tokens = n_tokens;
        state.room = (block_tokens - n_tokens % block_tokens) % block_tokens;
        state.n_committed = state.n_committed.min(n_full);
        let mut blocks = std::mem::take(&mut state.blocks);
        self.release_all(&blocks[n_kept..]);
        blocks.truncate(n_kept);
        if let Some(state) = self.table.0.get_mut(sequence.0) {
            state.blocks = blocks;
        }
        Ok(())
    }

    fn length_with(&self, n_tokens: u32, more: usize) -> Result<u32, CacheError> {
        let tokens = u64::from(n_tokens) + more as u64;
        let most = self.config.max_sequence_tokens;
        match u32::try_from(tokens) {
            Ok(n_tokens) if n_tokens <= most => Ok(n_tokens),
            _ => Err(CacheError::TooLong { tokens, most }),
        }
    }
}
