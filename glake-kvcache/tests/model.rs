//! Random operations on a two-token vocabulary, beside a naive model that knows nothing of hashes.
//!
//! The long run: `cargo test --release -p glake-kvcache --test model -- --ignored`

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]
#![allow(clippy::panic, reason = "a test panics to fail")]

use glake_testkit::rng::Rng;

use glake_kvcache::policy::{Lru, Policy, Segmented};
use glake_kvcache::{CacheError, Config, KvCache, LimitChange, Request, Stats, Strategy};
use naive::{Exact, Naive};

mod naive;

/// A cache, its model, and what lives in both.
struct Run<P> {
    cache: KvCache<P>,
    naive: Naive,
    rng: Rng,
    /// How often something was refused for want of blocks.
    n_refused: u32,
}

const BLOCK: u32 = 4;

impl<P: Policy> Run<P> {
    fn new(seed: u64, n_blocks: u32, strategy: Strategy, policy: P, exact: Exact) -> Self {
        let config =
            Config::new(n_blocks, BLOCK).strategy(strategy).max_sequence_tokens(60).max_pinned_blocks(8);
        let cache = KvCache::with(&config, policy, ()).unwrap();
        Self { cache, naive: Naive::new(n_blocks, BLOCK, exact), rng: Rng::new(seed), n_refused: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.below(n as u64)).unwrap()
    }

    fn tokens(&mut self, most: u64) -> Vec<u32> {
        (0..self.rng.between(1, most)).map(|_| u32::from(self.rng.below(8) == 0)).collect()
    }

    /// All that can be seen of the cache but for what was counted.
    fn seen(&self) -> (Vec<glake_kvcache::BlockId>, Stats, Vec<Vec<glake_kvcache::BlockId>>) {
        let blocks = self.cache.sequences().map(|id| self.cache.blocks(id).unwrap().to_vec()).collect();
        (self.cache.free_order(), self.cache.stats(), blocks)
    }

    /// One operation on both sides. What is refused leaves everything as it was.
    fn step(&mut self) {
        let before = self.seen();
        let result = match self.rng.below(100) {
            0..28 => self.start(),
            28..40 => self.append(),
            40..58 => self.commit(),
            58..62 => self.fork(),
            62..90 => self.free(),
            90..92 => self.pin(),
            92..94 => self.unpin(),
            94..96 => self.reserve(),
            96..97 => self.limit(),
            _ => self.reset(),
        };
        if let Err(error) = result {
            assert_eq!(self.seen(), before, "{error}");
            self.n_refused += u32::from(matches!(error, CacheError::NoBlocks { .. }));
        }
        self.naive.check(&self.cache);
    }

    fn start(&mut self) -> Result<(), CacheError> {
        let prompt = self.tokens(40);
        let salt = if self.below(4) == 0 { b"salt".as_slice() } else { b"" };
        let reservation = if self.below(3) == 0 { self.naive.reservation } else { None };
        let mut request = Request::new(&prompt).salt(salt);
        if let Some(reservation) = reservation {
            request = request.reservation(reservation);
        }
        let known = self.cache.cached_tokens(request);
        let started = self.cache.start(request)?;
        assert_eq!(started.cached_tokens, known);
        self.naive.started(&self.cache, started, &prompt, salt, reservation);
        Ok(())
    }

    fn append(&mut self) -> Result<(), CacheError> {
        let Some(at) = self.pick() else { return Ok(()) };
        let id = self.naive.sequences[at].id;
        let most = if self.below(4) == 0 { 12 } else { 1 };
        let tokens = self.tokens(most);
        let appended = match tokens[..] {
            [token] => self.cache.append(id, token)?,
            _ => self.cache.append_all(id, &tokens)?,
        };
        self.naive.appended(&self.cache, at, &tokens, appended);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), CacheError> {
        let Some(at) = self.pick() else { return Ok(()) };
        let sequence = &self.naive.sequences[at];
        let most = sequence.tokens.len() + usize::from(self.rng.below(20) == 0);
        let id = sequence.id;
        let n_tokens = if self.rng.below(2) == 0 { most } else { self.below(most + 1) };
        let n_tokens = u32::try_from(n_tokens).unwrap();
        self.cache.commit(id, n_tokens)?;
        self.naive.committed(at, n_tokens);
        Ok(())
    }

    fn fork(&mut self) -> Result<(), CacheError> {
        let Some(at) = self.pick() else { return Ok(()) };
        let child = self.cache.fork(self.naive.sequences[at].id)?;
        self.naive.forked(at, child);
        Ok(())
    }

    fn free(&mut self) -> Result<(), CacheError> {
        let Some(at) = self.pick() else { return Ok(()) };
        let sequence = self.naive.sequences.swap_remove(at);
        self.cache.free(sequence.id)?;
        assert_eq!(self.cache.free(sequence.id), Err(CacheError::UnknownSequence(sequence.id)));
        self.naive.released(&sequence.blocks);
        self.retire();
        Ok(())
    }

    fn pin(&mut self) -> Result<(), CacheError> {
        let Some(at) = self.pick() else { return Ok(()) };
        let pin = self.cache.pin(self.naive.sequences[at].id)?;
        self.naive.pinned(at, pin);
        Ok(())
    }

    fn unpin(&mut self) -> Result<(), CacheError> {
        let Some((pin, blocks)) = self.naive.pins.pop() else { return Ok(()) };
        self.cache.unpin(pin)?;
        self.naive.released(&blocks);
        self.retire();
        Ok(())
    }

    fn reserve(&mut self) -> Result<(), CacheError> {
        if let Some(reservation) = self.naive.reservation.take() {
            let left = self.cache.release_reservation(reservation)?;
            assert_eq!(left, std::mem::take(&mut self.naive.reserved));
            return Ok(());
        }
        let n_blocks = u32::try_from(self.below(6)).unwrap();
        self.naive.reservation = Some(self.cache.reserve(n_blocks)?);
        self.naive.reserved = n_blocks;
        Ok(())
    }

    fn limit(&mut self) -> Result<(), CacheError> {
        let pages = u32::try_from(1 + self.below(self.cache.n_pages() as usize)).unwrap();
        let excess = self.cache.set_limit_pages(pages)?;
        assert_eq!(excess, self.cache.n_held_pages().saturating_sub(pages));
        self.retire();
        Ok(())
    }

    /// Carries out what the cache says of its pages.
    fn retire(&mut self) {
        let changes: Vec<LimitChange> = self.cache.drain_limit_changes().collect();
        self.naive.changed(&changes, self.cache.config());
    }

    fn reset(&mut self) -> Result<(), CacheError> {
        // Rarely: what is cached is what the rest is about.
        if self.below(10) > 0 || !self.naive.sequences.is_empty() && self.below(10) > 0 {
            return Ok(());
        }
        self.cache.reset()?;
        self.naive.reset(&self.cache);
        Ok(())
    }

    fn pick(&mut self) -> Option<usize> {
        let n = self.naive.sequences.len();
        (n > 0).then(|| self.below(n))
    }
}

fn rounds(n_rounds: u32) {
    let block = |blocks_per_page| Strategy::Block { blocks_per_page };
    let seeds = 0..20;
    for seed in seeds.clone() {
        let mut run = Run::new(seed, 24, Strategy::Unified, Lru::default(), Exact::Yes);
        (0..n_rounds / 20).for_each(|_| run.step());
        assert!(run.n_refused > n_rounds / 2000, "{} refused", run.n_refused);
        assert!(run.naive.n_hits > n_rounds / 1000, "{} hits", run.naive.n_hits);
    }
    for seed in seeds.take(5) {
        let mut run = Run::new(seed, 24, block(3), Lru::default(), Exact::No);
        (0..n_rounds / 20).for_each(|_| run.step());
        let mut run = Run::new(seed, 24, Strategy::Unified, Segmented::new(40), Exact::No);
        (0..n_rounds / 20).for_each(|_| run.step());
    }
}

/// Behaviour 12: random rounds on a two-token vocabulary: private blocks are disjoint, nothing is listed twice, counters are right, and
/// a failed call leaves the state as it was.
#[test]
fn behaviour_12_random_rounds_keep_the_books_right() {
    rounds(20_000);
}

#[test]
#[ignore = "the long run, of a million rounds"]
fn behaviour_12_a_million_random_rounds_keep_the_books_right() {
    rounds(1_000_000);
}
