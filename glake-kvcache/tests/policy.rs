//! Orders in which blocks are given up.
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

use glake_kvcache::policy::{Blocks, List, Policy, Segmented};
use glake_kvcache::{BlockId, Config, KvCache, Request};

fn ask<P: Policy>(cache: &mut KvCache<P>, token: u32) -> u32 {
    let prompt = [token, token];
    let started = cache.start(Request::new(&prompt)).unwrap();
    cache.commit(started.sequence, 2).unwrap();
    cache.free(started.sequence).unwrap();
    started.cached_tokens
}

/// What was hit once outlives a flood of what never is, up to its share.
#[test]
fn segmented_keeps_what_was_hit() {
    let config = Config::new(8, 1);
    let mut cache = KvCache::with(&config, Segmented::new(25), ()).unwrap();
    assert_eq!(ask(&mut cache, 1), 0);
    assert_eq!(ask(&mut cache, 1), 1);
    for token in 100..120 {
        ask(&mut cache, token);
    }
    assert_eq!(ask(&mut cache, 1), 1, "kept");

    let mut cache = KvCache::new(&config).unwrap();
    ask(&mut cache, 1);
    ask(&mut cache, 1);
    for token in 100..120 {
        ask(&mut cache, token);
    }
    assert_eq!(ask(&mut cache, 1), 0, "given up, by age alone");
}

/// More than the share is given up by age.
#[test]
fn segmented_keeps_no_more_than_its_share() {
    let mut cache = KvCache::with(&Config::new(16, 1), Segmented::new(25), ()).unwrap();
    for token in 1..=5 {
        ask(&mut cache, token);
        ask(&mut cache, token);
    }
    for token in 100..140 {
        ask(&mut cache, token);
    }
    let kept: Vec<u32> =
        (1..=5).filter(|token| cache.cached_tokens(Request::new(&[*token, 0])) == 1).collect();
    assert_eq!(kept, [2, 3, 4, 5]);
}

/// A policy of one's own: the newest goes first.
#[derive(Debug, Default)]
struct Newest(List);

impl Policy for Newest {
    fn reset(&mut self, _n_blocks: u32) {
        self.0 = List::default();
    }

    fn insert(&mut self, blocks: &mut Blocks, block: BlockId) {
        self.0.push_front(blocks, block);
    }

    fn remove(&mut self, blocks: &mut Blocks, block: BlockId) {
        self.0.remove(blocks, block);
    }

    fn victim(&self) -> Option<BlockId> {
        self.0.first()
    }

    fn order(&self, blocks: &Blocks) -> Vec<BlockId> {
        self.0.iter(blocks).collect()
    }
}

#[test]
fn policies_can_be_ones_own() {
    let mut cache = KvCache::with(&Config::new(4, 1), Newest::default(), ()).unwrap();
    for token in 1..10 {
        ask(&mut cache, token);
    }
    // Two blocks a prompt: the last one takes those of the one before.
    assert_eq!(ask(&mut cache, 1), 1);
}
