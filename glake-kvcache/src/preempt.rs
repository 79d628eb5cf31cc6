//! Who gives way when blocks are missing, and how: a plan.

use std::collections::HashMap;

use crate::cache::KvCache;
use crate::error::CacheError;
use crate::event::EventSink;
use crate::ids::{BlockId, SequenceId};
use crate::policy::Policy;

/// How a sequence that gave way comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// Its tokens are computed again.
    Recompute,
    /// Its blocks are copied out, and back.
    Swap,
}

/// What it costs to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnCosts {
    /// To compute a token of a prompt.
    pub recompute_token_ns: u64,
    /// To copy a block out and back in.
    pub swap_block_ns: u64,
    /// Blocks that there is room for outside of the device.
    pub swap_room_blocks: u32,
}

/// A sequence that gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Victim {
    /// The sequence.
    pub sequence: SequenceId,
    /// How it comes back.
    pub way: Way,
    /// Blocks that this frees, those before it gone.
    pub freed_blocks: u32,
}

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Plans who gives way for `needed` blocks to be available: sequences of `order` from the first on, as few as it takes.
    /// Each comes back the cheaper way. Nothing changes: for each victim, [`swap_out`](Self::swap_out) or keep its
    /// [`tokens`](Self::tokens), then [`free`](Self::free) it.
    ///
    /// Blocks that others use are not freed, and not swapped: who comes back is likely to find them.
    ///
    /// # Errors
    /// A sequence that was freed; too few blocks even if all of them give way.
    pub fn plan_preemption(
        &self,
        needed: u32,
        order: &[SequenceId],
        costs: ReturnCosts,
    ) -> Result<Vec<Victim>, CacheError> {
        let mut available = self.n_available();
        let mut swap_room = costs.swap_room_blocks;
        let mut gone: HashMap<BlockId, u32> = HashMap::new();
        let mut victims = Vec::new();
        for &sequence in order {
            if available >= needed {
                break;
            }
            let freed_blocks = self.freed_by(sequence, &mut gone)?;
            let swap = u64::from(freed_blocks).saturating_mul(costs.swap_block_ns);
            let recompute = u64::from(self.n_tokens(sequence)?).saturating_mul(costs.recompute_token_ns);
            let way = if swap < recompute && freed_blocks <= swap_room { Way::Swap } else { Way::Recompute };
            if way == Way::Swap {
                swap_room -= freed_blocks;
            }
            available = available.saturating_add(freed_blocks);
            victims.push(Victim { sequence, way, freed_blocks });
        }
        if available < needed { Err(CacheError::NoBlocks { needed, available }) } else { Ok(victims) }
    }

    /// Blocks that nobody uses any more when `sequence` goes, after those whose uses are in `gone`.
    fn freed_by(&self, sequence: SequenceId, gone: &mut HashMap<BlockId, u32>) -> Result<u32, CacheError> {
        let mut n_freed = 0;
        for &block in self.blocks(sequence)? {
            let gone = gone.entry(block).or_default();
            *gone += 1;
            n_freed += u32::from(self.users(block) == Some(*gone));
        }
        Ok(n_freed)
    }
}
