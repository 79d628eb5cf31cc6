//! Sequences leave the device and come back.

use super::{KvCache, Request};
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::{BlockId, ReservationId, SequenceId, Token};
use crate::policy::Policy;

/// A sequence as it left: what is to be copied out, and what it takes to have it back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swapped {
    /// Its blocks in order: what is to be copied out before the sequence is freed.
    pub blocks: Vec<BlockId>,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Its salt.
    pub salt: Box<[u8]>,
}

/// A sequence that is back, once its copies are done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwapIn {
    /// Its handle.
    pub sequence: SequenceId,
    /// What is to be copied in: the place in [`Swapped::blocks`], and where to. What is still cached is not copied.
    pub copies: Vec<(usize, BlockId)>,
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// What it takes to swap a sequence out. Nothing changes: copy its blocks, then [`free`](Self::free) it.
    ///
    /// # Errors
    /// A sequence that was freed.
    pub fn swap_out(&self, sequence: SequenceId) -> Result<Swapped, CacheError> {
        let state = self.sequence(sequence)?;
        let salt = self.roots.salt(state.root).into();
        Ok(Swapped { blocks: state.blocks.clone(), tokens: self.tokens(sequence)?, salt })
    }

    /// Begins a sequence that was swapped out, with new blocks for what is not cached any more. It is to be
    /// committed behind the copies.
    ///
    /// # Errors
    /// As of [`start`](Self::start). Nothing has changed then.
    pub fn swap_in(
        &mut self,
        swapped: &Swapped,
        reservation: Option<ReservationId>,
    ) -> Result<SwapIn, CacheError> {
        let mut request = Request::new(&swapped.tokens).salt(&swapped.salt);
        if let Some(reservation) = reservation {
            request = request.reservation(reservation);
        }
        let started = self.start(request)?;
        let n_cached = (started.cached_tokens / self.config.block_tokens) as usize;
        let blocks = self.blocks(started.sequence)?;
        let copies = blocks.iter().copied().enumerate().skip(n_cached).collect();
        Ok(SwapIn { sequence: started.sequence, copies })
    }
}
