//! Contents that stay, whoever uses them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::KvCache;
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::{BlockId, PinId, SequenceId};
use crate::policy::Policy;
use crate::slots::Slots;

/// The pins of a cache.
#[derive(Debug)]
pub(super) struct Pins {
    slots: Slots<Vec<BlockId>>,
    /// How many pins hold a block, of those with any.
    blocks: HashMap<BlockId, u32>,
}

impl Pins {
    pub(super) fn new() -> Self {
        Self { slots: Slots::new(), blocks: HashMap::new() }
    }

    pub(super) fn n_blocks(&self) -> u32 {
        u32::try_from(self.blocks.len()).unwrap_or(u32::MAX)
    }
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Pins what a sequence has committed, as of a system prompt: it can be found until the pin is taken off, even when
    /// the sequence has ended.
    ///
    /// # Errors
    /// A sequence that was freed, or more blocks than may be pinned, equal ones counted once. Nothing has changed
    /// then.
    pub fn pin(&mut self, sequence: SequenceId) -> Result<PinId, CacheError> {
        let state = self.table.0.get(sequence.0).ok_or(CacheError::UnknownSequence(sequence))?;
        let committed = &state.blocks[..state.n_committed as usize];
        let n_new = committed.iter().filter(|block| !self.pins.blocks.contains_key(block)).count();
        let most = self.config.max_pinned_blocks;
        let pinned = u32::try_from(n_new).unwrap_or(u32::MAX).saturating_add(self.pins.n_blocks());
        if pinned > most {
            return Err(CacheError::PinLimit { pinned, most });
        }
        let (slot, kept) = self.pins.slots.take().ok_or(CacheError::TooMany)?;
        kept.clear();
        kept.extend_from_slice(committed);
        for &block in &*kept {
            *self.pins.blocks.entry(block).or_default() += 1;
            self.pool.acquire(block);
        }
        Ok(PinId(slot))
    }

    /// Takes a pin off.
    ///
    /// # Errors
    /// A pin that was taken off before.
    pub fn unpin(&mut self, pin: PinId) -> Result<(), CacheError> {
        let blocks = std::mem::take(self.pins.slots.get_mut(pin.0).ok_or(CacheError::UnknownPin(pin))?);
        self.pins.slots.give_back(pin.0);
        for &block in &blocks {
            if let Entry::Occupied(mut pins) = self.pins.blocks.entry(block) {
                *pins.get_mut() -= 1;
                if *pins.get() == 0 {
                    pins.remove();
                }
            }
        }
        self.release_all(&blocks);
        Ok(())
    }
}
