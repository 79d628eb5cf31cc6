//! Blocks whose keys and values are computed can be found by others.

use super::KvCache;
use crate::error::CacheError;
use crate::event::{Event, EventSink};
use crate::ids::{BlockHash, SequenceId};
use crate::policy::Policy;
use crate::prefix::{Copies, Identity};

impl<P: Policy, S: EventSink> KvCache<P, S> {
    /// Says that keys and values of the first `n_tokens` tokens are computed, or will be before anything that is enqueued
    /// from now on reads them. Blocks that they fill can be found. Saying less than before changes nothing.
    ///
    /// # Errors
    /// A sequence that was freed, whoever has its place now; more tokens than it has.
    pub fn commit(&mut self, sequence: SequenceId, n_tokens: u32) -> Result<(), CacheError> {
        let state = self.table.0.get_mut(sequence.0).ok_or(CacheError::UnknownSequence(sequence))?;
        if n_tokens > state.n_tokens {
            return Err(CacheError::NotAppended { computed: n_tokens, tokens: state.n_tokens });
        }
        let n_full = n_tokens / self.config.block_tokens;
        if n_full <= state.n_committed {
            return Ok(());
        }
        let blocks = &state.blocks[state.n_committed as usize..n_full as usize];
        // A fork may have committed some.
        let n_shared = blocks.iter().take_while(|block| self.pool.is_cached(**block)).count();
        let (shared, new) = blocks.split_at(n_shared);
        let before = state.blocks[..state.n_committed as usize].last();
        let (mut hash, mut parent) = match shared.last().or(before).map(|last| self.pool.contents(*last)) {
            Some(last) => (last.hash, last.identity),
            None => (self.roots.hash(state.root), Identity::root(state.root)),
        };
        state.n_committed = n_full;
        let mut told = (!parent.is_root()).then_some(hash);

        // Hashes first: entering them waits for memory, and need not wait for each other.
        self.hashes.clear();
        self.hashes.extend(new.iter().map(|block| {
            hash = self.hasher.block(hash, self.prefix.tokens(*block));
            hash
        }));
        let mut untold = 0;
        for (at, (&block, &hash)) in new.iter().zip(&self.hashes).enumerate() {
            self.roots.child_added(parent);
            let copies;
            (parent, copies) = self.prefix.insert(self.pool.blocks_mut(), block, hash, parent);
            self.pool.stored(block);
            if S::LISTENS && copies == Copies::More {
                tell(&mut self.sink, &self.hashes[untold..at], told);
                (told, untold) = (Some(hash), at + 1);
            }
        }
        if S::LISTENS {
            tell(&mut self.sink, &self.hashes[untold..], told);
        }
        Ok(())
    }
}

/// Tells of what is stored behind `parent`, if anything is.
fn tell<S: EventSink>(sink: &mut S, hashes: &[BlockHash], parent: Option<BlockHash>) {
    if !hashes.is_empty() {
        sink.note(Event::Stored { hashes, parent });
    }
}
