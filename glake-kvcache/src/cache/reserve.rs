//! Blocks set apart for a batch before it starts.

use super::KvCache;
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::ReservationId;
use crate::policy::Policy;
use crate::slots::Slots;

/// The reservations of a cache, each with the blocks that are left of it.
#[derive(Debug)]
pub(super) struct Reservations {
    slots: Slots<u32>,
    total: u32,
}

impl Reservations {
    pub(super) const fn new() -> Self {
        Self { slots: Slots::new(), total: 0 }
    }

    #[inline]
    pub(super) const fn total(&self) -> u32 {
        self.total
    }

    /// Blocks that are left; none of a reservation that was given up.
    #[inline]
    pub(super) fn left(&self, reservation: Option<ReservationId>) -> u32 {
        reservation.and_then(|id| self.slots.get(id.0)).copied().unwrap_or(0)
    }

    /// # Errors
    /// A reservation that was given up.
    #[inline]
    pub(super) fn check(&self, reservation: Option<ReservationId>) -> Result<(), CacheError> {
        match reservation {
            Some(id) if self.slots.get(id.0).is_none() => Err(CacheError::UnknownReservation(id)),
            _ => Ok(()),
        }
    }

    /// Takes `n_blocks`, which are left.
    #[inline]
    pub(super) fn draw(&mut self, reservation: Option<ReservationId>, n_blocks: u32) {
        if let Some(left) = reservation.and_then(|id| self.slots.get_mut(id.0)) {
            *left -= n_blocks;
            self.total -= n_blocks;
        }
    }
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Sets `n_blocks` free blocks apart, for the sequences of a batch, which are started with it and grow by it
    /// ([`blocks_of`](Self::blocks_of) says how many a sequence takes). Whoever has no part in it cannot have
    /// them; what is cached in them can be found as long as they are not needed.
    ///
    /// # Errors
    /// Too few free blocks. Nothing has changed then.
    pub fn reserve(&mut self, n_blocks: u32) -> Result<ReservationId, CacheError> {
        self.cover(n_blocks, None)?;
        let (slot, left) = self.reservations.slots.take().ok_or(CacheError::TooMany)?;
        *left = n_blocks;
        self.reservations.total += n_blocks;
        Ok(ReservationId(slot))
    }

    /// Gives up what is left of a reservation, and says how many blocks that was. Sequences that were started with it
    /// go on without.
    ///
    /// # Errors
    /// A reservation that was given up before.
    pub fn release_reservation(&mut self, reservation: ReservationId) -> Result<u32, CacheError> {
        self.reservations.check(Some(reservation))?;
        let left = self.reservations.left(Some(reservation));
        self.reservations.draw(Some(reservation), left);
        self.reservations.slots.give_back(reservation.0);
        Ok(left)
    }

    /// Blocks that sequences without a reservation can have, cached ones that nobody uses included.
    #[inline]
    #[must_use]
    pub fn n_available(&self) -> u32 {
        self.n_givable().saturating_sub(self.reservations.total)
    }

    /// Blocks of a sequence of `n_tokens` tokens that shares nothing.
    #[must_use]
    pub const fn blocks_of(&self, n_tokens: u32) -> u32 {
        n_tokens.div_ceil(self.config.block_tokens)
    }
}
