//! Sequences begin: with what is cached of their prompt, and new blocks for the rest.

use super::KvCache;
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::{BlockId, ReservationId, SequenceId, Token};
use crate::policy::Policy;
use crate::prefix::Identity;

/// A sequence that is to begin.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Request<'a> {
    prompt: &'a [Token],
    salt: &'a [u8],
    reservation: Option<ReservationId>,
}

impl<'a> Request<'a> {
    /// A sequence that begins with `prompt`.
    pub const fn new(prompt: &'a [Token]) -> Self {
        Self { prompt, salt: &[], reservation: None }
    }

    /// What keys and values depend on besides the tokens, or who may share them: see [`Salt`](crate::Salt). Sequences
    /// of different salts share nothing.
    pub const fn salt(self, salt: &'a [u8]) -> Self {
        Self { salt, ..self }
    }

    /// Has the sequence take its blocks from what was reserved, as long as there are any.
    pub const fn reservation(self, reservation: ReservationId) -> Self {
        Self { reservation: Some(reservation), ..self }
    }
}

/// A sequence that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Started {
    /// Its handle.
    pub sequence: SequenceId,
    /// How many tokens of the prompt are computed already: whole blocks, and never the last token, whose output
    /// is wanted.
    pub cached_tokens: u32,
    /// Blocks that are new to it.
    pub n_new_blocks: u32,
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// How many tokens of a prompt are cached, as [`start`](Self::start) would say. Nothing changes.
    #[must_use]
    pub fn cached_tokens(&self, request: Request<'_>) -> u32 {
        let mut n_blocks = 0;
        self.look_up(request, |_| n_blocks += 1);
        n_blocks * self.config.block_tokens
    }

    /// Begins a sequence. What is cached of its prompt is shared, block by block from the beginning; the rest is to
    /// be computed and committed.
    ///
    /// # Errors
    /// An empty prompt, one that is too long, a reservation that was given up, or too few blocks. Nothing has
    /// changed then, the order of free blocks included.
    pub fn start(&mut self, request: Request<'_>) -> Result<Started, CacheError> {
        let n_tokens = self.length(request.prompt)?;
        self.reservations.check(request.reservation)?;
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.look_up(request, |block| found.push(block));
        let started = self.start_with(request, n_tokens, &found);
        self.found = found;
        started
    }

    fn start_with(
        &mut self,
        request: Request<'_>,
        n_tokens: u32,
        found: &[BlockId],
    ) -> Result<Started, CacheError> {
        let block_tokens = self.config.block_tokens;
        let n_blocks = n_tokens.div_ceil(block_tokens);
        let (n_found, n_revived) = found
            .iter()
            .fold((0, 0), |(n, free), block| (n + 1, free + u32::from(self.pool.users(*block) == 0)));
        let n_new_blocks = n_blocks - n_found;
        let covered = self.cover(n_new_blocks + n_revived, request.reservation)?;
        let (slot, sequence) = self.table.start().ok_or(CacheError::TooMany)?;
        let mut blocks = std::mem::take(&mut sequence.blocks);
        let Some(root) = self.root(request.salt) else {
            self.table.0.give_back(slot);
            return Err(CacheError::TooMany);
        };
        self.roots.acquire(root);
        self.reservations.draw(request.reservation, covered);
        for &block in found {
            self.pool.acquire(block);
            self.pool.hit(block);
        }
        blocks.extend_from_slice(found);
        let cached_tokens = n_found * block_tokens;
        self.take(n_new_blocks, &mut blocks);
        self.prefix.write(&blocks[found.len()..], &request.prompt[cached_tokens as usize..]);
        self.counts.prompt_blocks += u64::from(n_blocks);
        self.counts.hit_blocks += u64::from(n_found);
        if let Some(sequence) = self.table.0.get_mut(slot) {
            sequence.blocks = blocks;
            sequence.n_tokens = n_tokens;
            sequence.room = (block_tokens - n_tokens % block_tokens) % block_tokens;
            sequence.n_committed = n_found;
            sequence.root = root;
            sequence.reservation = request.reservation;
        }
        Ok(Started { sequence: SequenceId(slot), cached_tokens, n_new_blocks })
    }

    /// The root of a salt, new if nothing begins there yet.
    fn root(&mut self, salt: &[u8]) -> Option<u32> {
        self.roots.find(salt).or_else(|| self.roots.create(salt, self.hasher.root(salt)))
    }

    fn length(&self, prompt: &[Token]) -> Result<u32, CacheError> {
        if prompt.is_empty() {
            return Err(CacheError::EmptyPrompt);
        }
        let most = self.config.max_sequence_tokens;
        match u32::try_from(prompt.len()) {
            Ok(n_tokens) if n_tokens <= most => Ok(n_tokens),
            _ => Err(CacheError::TooLong { tokens: prompt.len() as u64, most }),
        }
    }

    /// The blocks that a prompt finds, in order, without one for its last token.
    fn look_up(&self, request: Request<'_>, mut found: impl FnMut(BlockId)) {
        let Some(root) = self.roots.find(request.salt) else { return };
        let Some((_, but_last)) = request.prompt.split_last() else { return };
        let (mut hash, mut parent) = (self.roots.hash(root), Identity::root(root));
        for tokens in but_last.chunks_exact(self.config.block_tokens as usize) {
            hash = self.hasher.block(hash, tokens);
            let Some(block) = self.prefix.find(self.pool.blocks(), hash, parent, tokens) else { return };
            parent = self.pool.contents(block).identity;
            found(block);
        }
    }
}
