//! A model of the cache's books by lists and whole prefixes.

use std::collections::{BTreeMap, VecDeque};

use glake_kvcache::event::EventSink;
use glake_kvcache::policy::Policy;
use glake_kvcache::{
    Appended, BlockId, Config, KvCache, LimitChange, PinId, ReservationId, SequenceId, Started,
};

/// All that a block's keys and values depend on: the salt and every token up to its end.
type Prefix = (Vec<u8>, Vec<u32>);

/// Whether the model knows the order of free blocks, and that what is cached is found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exact {
    Yes,
    /// Only what is found is known to be right: another policy, or pages that take several blocks with them.
    No,
}

pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) tokens: Vec<u32>,
    pub(crate) blocks: Vec<BlockId>,
    salt: Vec<u8>,
    n_committed: usize,
    reservation: Option<ReservationId>,
}

pub(crate) struct Naive {
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) pins: Vec<(PinId, Vec<BlockId>)>,
    pub(crate) reservation: Option<ReservationId>,
    pub(crate) reserved: u32,
    pub(crate) n_hits: u32,
    blank: VecDeque<BlockId>,
    cached: VecDeque<BlockId>,
    contents: BTreeMap<BlockId, Prefix>,
    users: Vec<u32>,
    block_tokens: usize,
    exact: Exact,
}

impl Naive {
    pub(crate) fn new(n_blocks: u32, block_tokens: u32, exact: Exact) -> Self {
        Self {
            sequences: Vec::new(),
            pins: Vec::new(),
            reservation: None,
            reserved: 0,
            n_hits: 0,
            blank: (0..n_blocks).map(BlockId).collect(),
            cached: VecDeque::new(),
            contents: BTreeMap::new(),
            users: vec![0; n_blocks as usize],
            block_tokens: block_tokens as usize,
            exact,
        }
    }

    fn prefix(&self, salt: &[u8], tokens: &[u32], n_blocks: usize) -> Prefix {
        (salt.to_vec(), tokens[..n_blocks * self.block_tokens].to_vec())
    }

    /// A block that the cache found.
    fn acquire(&mut self, block: BlockId) {
        self.users[block.0 as usize] += 1;
        self.cached.retain(|cached| *cached != block);
    }

    /// A block that the cache gave away.
    fn take(&mut self, block: BlockId, has_reservation: bool) {
        assert_eq!(self.users[block.0 as usize], 0, "{block:?} is somebody's");
        if self.exact == Exact::Yes {
            let expected = self.blank.front().or(self.cached.front());
            assert_eq!(expected, Some(&block), "not the first");
        }
        self.blank.retain(|blank| *blank != block);
        self.cached.retain(|cached| *cached != block);
        self.contents.remove(&block);
        self.users[block.0 as usize] = 1;
        self.reserved -= u32::from(has_reservation && self.reserved > 0);
    }

    pub(crate) fn released(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().rev() {
            self.users[block.0 as usize] -= 1;
            match self.users[block.0 as usize] {
                0 if self.contents.contains_key(&block) => self.cached.push_back(block),
                0 => self.blank.push_front(block),
                _ => {}
            }
        }
    }

    pub(crate) fn started<P: Policy, S: EventSink>(
        &mut self,
        cache: &KvCache<P, S>,
        started: Started,
        prompt: &[u32],
        salt: &[u8],
        reservation: Option<ReservationId>,
    ) {
        let blocks = cache.blocks(started.sequence).unwrap().to_vec();
        let n_found = started.cached_tokens as usize / self.block_tokens;
        assert_eq!(blocks.len(), prompt.len().div_ceil(self.block_tokens));
        assert_eq!(blocks.len(), n_found + started.n_new_blocks as usize);
        let n_revived = blocks[..n_found].iter().filter(|block| self.users[block.0 as usize] == 0).count();
        // A reservation covers blocks that are found free, too.
        let n_drawn = (n_revived + blocks.len() - n_found).min(self.reserved as usize);
        for (at, &block) in blocks[..n_found].iter().enumerate() {
            assert_eq!(self.contents.get(&block), Some(&self.prefix(salt, prompt, at + 1)), "a wrong block");
            self.acquire(block);
        }
        if self.exact == Exact::Yes && (n_found + 1) * self.block_tokens < prompt.len() {
            let missed = self.prefix(salt, prompt, n_found + 1);
            assert!(!self.contents.values().any(|contents| *contents == missed), "a hit was missed");
        }
        for &block in &blocks[n_found..] {
            self.take(block, false);
        }
        self.reserved -= if reservation.is_some() { u32::try_from(n_drawn).unwrap() } else { 0 };
        self.n_hits += u32::from(n_found > 0);
        let (tokens, salt) = (prompt.to_vec(), salt.to_vec());
        self.sequences.push(Sequence {
            id: started.sequence,
            tokens,
            blocks,
            salt,
            n_committed: n_found,
            reservation,
        });
    }

    pub(crate) fn appended<P: Policy, S: EventSink>(
        &mut self,
        cache: &KvCache<P, S>,
        at: usize,
        tokens: &[u32],
        appended: Appended,
    ) {
        let sequence = &mut self.sequences[at];
        let has_reservation = sequence.reservation.is_some() && sequence.reservation == self.reservation;
        let offset = sequence.tokens.len() % self.block_tokens;
        let n_full = sequence.tokens.len() / self.block_tokens;
        sequence.tokens.extend(tokens);
        let old = std::mem::replace(&mut sequence.blocks, cache.blocks(sequence.id).unwrap().to_vec());
        let new = sequence.blocks.clone();
        assert_eq!(new.len(), sequence.tokens.len().div_ceil(self.block_tokens));
        assert_eq!((appended.block, appended.offset as usize), (new[n_full], offset));
        assert_eq!(new[..n_full], old[..n_full]);
        // A block that is not full and that others use is copied.
        let shared = offset > 0 && self.users[old[n_full].0 as usize] > 1;
        assert_eq!(appended.copy.is_some(), shared);
        if let Some(copy) = appended.copy {
            assert_eq!((copy.from, copy.to, copy.n_tokens as usize), (old[n_full], new[n_full], offset));
            self.take(copy.to, has_reservation);
            self.users[copy.from.0 as usize] -= 1;
        }
        for &block in &new[old.len()..] {
            self.take(block, has_reservation);
        }
    }

    pub(crate) fn committed(&mut self, at: usize, n_tokens: u32) {
        let n_full = n_tokens as usize / self.block_tokens;
        self.sequences[at].n_committed = self.sequences[at].n_committed.max(n_full);
        for n_blocks in 1..=n_full {
            let sequence = &self.sequences[at];
            let prefix = self.prefix(&sequence.salt, &sequence.tokens, n_blocks);
            let known = self.contents.entry(sequence.blocks[n_blocks - 1]).or_insert_with(|| prefix.clone());
            assert_eq!(*known, prefix);
        }
    }

    pub(crate) fn forked(&mut self, at: usize, id: SequenceId) {
        let Sequence { ref tokens, ref blocks, ref salt, n_committed, reservation, .. } = self.sequences[at];
        let (tokens, blocks, salt) = (tokens.clone(), blocks.clone(), salt.clone());
        for block in &blocks {
            self.users[block.0 as usize] += 1;
        }
        self.sequences.push(Sequence { id, tokens, blocks, salt, n_committed, reservation });
    }

    pub(crate) fn pinned(&mut self, at: usize, pin: PinId) {
        let blocks = &self.sequences[at].blocks;
        let blocks = blocks[..self.sequences[at].n_committed].to_vec();
        for block in &blocks {
            self.users[block.0 as usize] += 1;
        }
        self.pins.push((pin, blocks));
    }

    pub(crate) fn changed(&mut self, changes: &[LimitChange], config: &Config) {
        let blocks_per_page = u32::try_from(self.users.len()).unwrap() / config.n_pages();
        for change in changes {
            let (LimitChange::Retired(page) | LimitChange::Returned(page)) = *change else { panic!() };
            let blocks = page.0 * blocks_per_page..(page.0 + 1) * blocks_per_page;
            for block in blocks.map(BlockId) {
                assert_eq!(self.users[block.0 as usize], 0, "{block:?} is live");
                self.blank.retain(|blank| *blank != block);
                self.cached.retain(|cached| *cached != block);
                self.contents.remove(&block);
                if matches!(change, LimitChange::Returned(_)) {
                    self.blank.push_back(block);
                }
            }
        }
    }

    pub(crate) fn reset<P: Policy, S: EventSink>(&mut self, cache: &KvCache<P, S>) {
        assert!(self.users.iter().all(|users| *users == 0));
        self.blank.append(&mut self.cached);
        self.contents.clear();
        assert_eq!(cache.stats().n_cached, 0);
    }

    /// Compares everything that can be seen.
    pub(crate) fn check<P: Policy, S: EventSink>(&self, cache: &KvCache<P, S>) {
        let mut order: Vec<BlockId> = self.blank.iter().chain(&self.cached).copied().collect();
        let mut theirs = cache.free_order();
        if self.exact == Exact::No {
            order.sort_unstable();
            theirs.sort_unstable();
        }
        assert_eq!(theirs, order);
        let stats = cache.stats();
        let n = |len: usize| u32::try_from(len).unwrap();
        assert_eq!((stats.n_free, stats.n_cached), (n(order.len()), n(self.cached.len())));
        assert_eq!(stats.n_used, n(self.users.iter().filter(|users| **users > 0).count()));
        assert_eq!(stats.n_used + stats.n_free + stats.n_retired, stats.n_blocks);
        assert_eq!(stats.n_reserved, self.reserved);
        for (users, block) in self.users.iter().zip(0..) {
            let is_held = *users > 0 || order.contains(&BlockId(block));
            assert_eq!(cache.users(BlockId(block)), is_held.then_some(*users), "{block}");
        }
        let mut pinned: Vec<_> = self.pins.iter().flat_map(|(_, blocks)| blocks).collect();
        pinned.sort_unstable();
        pinned.dedup();
        assert_eq!(stats.n_pinned, n(pinned.len()));
        for sequence in &self.sequences {
            assert_eq!(cache.tokens(sequence.id).unwrap(), sequence.tokens);
            assert_eq!(cache.blocks(sequence.id).unwrap(), sequence.blocks);
        }
    }
}
