//! What cannot be seen from outside: hashes that collide, places of the index, handles that are used up.

use glake_testkit::rng::Rng;

use crate::block_pool::BlockPool;
use crate::hash::{BlockHasher, HashKind};
use crate::ids::{BlockHash, BlockId, Token};
use crate::index::Index;
use crate::policy::Lru;
use crate::prefix::{Copies, Identity, Prefix};
use crate::slots::Slots;
use crate::{Config, KvCache, Request};

/// Hashes that all collide cost time, never a wrong block.
#[test]
fn a_hash_that_always_collides_never_gives_a_wrong_block() {
    let config = Config::new(64, 2);
    let mut cache = KvCache::colliding(&config);
    let mut honest = KvCache::new(&config).unwrap();
    let mut rng = Rng::new(7);
    for _ in 0..2000 {
        let prompt: Vec<Token> = (0..rng.between(1, 12)).map(|_| u32::from(rng.below(2) == 1)).collect();
        let salt = [b"a".as_slice(), b"b", b""][usize::try_from(rng.below(3)).unwrap()];
        let request = Request::new(&prompt).salt(salt);
        let (a, b) = (cache.start(request).unwrap(), honest.start(request).unwrap());
        assert_eq!((a.cached_tokens, a.n_new_blocks), (b.cached_tokens, b.n_new_blocks));
        assert_eq!(cache.tokens(a.sequence).unwrap(), prompt);
        let n_tokens = u32::try_from(prompt.len()).unwrap();
        cache.commit(a.sequence, n_tokens).unwrap();
        honest.commit(b.sequence, n_tokens).unwrap();
        cache.free(a.sequence).unwrap();
        honest.free(b.sequence).unwrap();
        assert_eq!(cache.free_order(), honest.free_order());
    }
}

/// Equal tokens under one hash, but behind another parent, are another block.
#[test]
fn a_block_is_told_by_its_parent_too() {
    let mut pool = BlockPool::new(4, Lru::default());
    let mut prefix = Prefix::new(4, 1);
    let mut taken = Vec::new();
    pool.take(3, &mut taken);
    let hash = BlockHash(1);
    let blocks = pool.blocks_mut();
    let (first, copies) = prefix.insert(blocks, taken[0], hash, Identity::root(0));
    assert_eq!(copies, Copies::Only);
    let (second, copies) = prefix.insert(blocks, taken[1], hash, Identity::root(1));
    assert_eq!(copies, Copies::Only);
    assert_ne!(first, second);
    let (third, copies) = prefix.insert(blocks, taken[2], hash, Identity::root(1));
    assert_eq!((third, copies), (second, Copies::More));
    assert_eq!(prefix.find(blocks, hash, Identity::root(0), &[0]), Some(taken[0]));
    assert_eq!(prefix.find(blocks, hash, Identity::root(2), &[0]), None);
    assert_eq!(prefix.find(blocks, hash, Identity::root(0), &[1]), None);
    assert_eq!(prefix.find(blocks, BlockHash(2), Identity::root(0), &[0]), None);
}

/// The table beside a list of its entries, with so few different hashes that buckets overflow and entries go past.
#[test]
fn the_index_finds_all_that_was_entered_and_nothing_else() {
    const BLOCKS: u32 = 200;
    let mut rng = Rng::new(1);
    let mut index = Index::new(BLOCKS);
    let mut entered = vec![None; BLOCKS as usize];
    for round in 0..200_000 {
        let block = BlockId(u32::try_from(rng.below(u64::from(BLOCKS))).unwrap());
        let entry = &mut entered[block.0 as usize];
        if let Some((hash, place)) = entry.take() {
            index.remove(place, || hash);
            assert_eq!(index.find(hash, |found| found == block), None);
        } else {
            // The upper half has the tag, the lower one the bucket.
            let hash = BlockHash(u128::from(rng.below(3)) << 121 | u128::from(rng.below(6)) << 61);
            let place = index.insert_alone(hash, block).unwrap_or_else(|| index.insert(hash, block));
            *entry = Some((hash, place));
        }
        if round % 1000 == 0 {
            for (entry, block) in entered.iter().zip(0..) {
                let Some((hash, _)) = *entry else { continue };
                assert_eq!(index.find(hash, |found| found.0 == block), Some(BlockId(block)));
                // Bytes of hashes collide, so that blocks of others may be candidates; those of no bucket on the way are not.
                let mut candidates = Vec::new();
                index.find(hash, |found| {
                    candidates.push(found);
                    false
                });
                assert!(candidates.iter().all(|found| entered[found.0 as usize].is_some()));
            }
        }
    }
    for (entry, block) in entered.iter_mut().zip(0..) {
        if let Some((hash, place)) = entry.take() {
            index.remove(place, || hash);
            assert_eq!(index.find(hash, |found| found.0 == block), None);
        }
    }
    assert!(index.is_clean(), "entries or counts are left");
}

fn hasher(kind: HashKind, block_tokens: u32) -> BlockHasher {
    BlockHasher::new(kind, [3, 4], block_tokens)
}

fn each_token_parent_and_salt_counts(kind: HashKind) {
    for block_tokens in [1, 2, 3, 4, 5, 16, 17, 32, 100] {
        let hasher = hasher(kind, block_tokens);
        let mut tokens: Vec<Token> = (0..block_tokens).collect();
        let root = hasher.root(b"");
        let mut seen = vec![root, hasher.root(b"a"), hasher.root(b"a\0"), hasher.block(root, &tokens)];
        seen.push(hasher.block(seen[1], &tokens));
        for at in 0..tokens.len() {
            for bit in [0, 31] {
                tokens[at] ^= 1 << bit;
                seen.push(hasher.block(root, &tokens));
                tokens[at] ^= 1 << bit;
            }
        }
        assert_eq!(hasher.block(root, &tokens), seen[3]);
        let all = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all, "{kind:?} {block_tokens}");
    }
}

#[test]
fn the_fast_hash_is_of_all_tokens_the_parent_and_the_salt() {
    each_token_parent_and_salt_counts(HashKind::Fast);
}

#[cfg(feature = "blake3")]
#[test]
fn the_cryptographic_hash_is_of_all_tokens_the_parent_and_the_salt() {
    each_token_parent_and_salt_counts(HashKind::Blake3);
    let seeded = |seed| BlockHasher::new(HashKind::Blake3, seed, 16).root(b"");
    assert_ne!(seeded([1, 2]), seeded([2, 1]));
}

/// The bits that choose buckets and tags are spread evenly over blocks that are alike.
#[test]
fn the_fast_hash_spreads() {
    let hasher = hasher(HashKind::Fast, 2);
    let root = hasher.root(b"");
    for shift in [56, 120, 0, 64] {
        let mut counts = [0_u32; 256];
        for token in 0..25_600 {
            let hash = hasher.block(root, &[token, 0]);
            counts[usize::try_from(hash.0 >> shift & 0xff).unwrap()] += 1;
        }
        // 100 expected: six standard deviations.
        assert!(counts.iter().all(|count| (40..=160).contains(count)), "{shift}: {counts:?}");
    }
}

#[test]
fn caches_have_seeds_of_their_own() {
    let seed = || Config::new(1, 1).seed_or_random();
    assert_ne!(seed(), seed());
    assert_eq!(Config::new(1, 1).seed([1, 2]).seed_or_random(), [1, 2]);
}

#[test]
fn a_place_is_good_for_one_use() {
    let mut slots: Slots<u32> = Slots::new();
    let (first, value) = slots.take().unwrap();
    *value = 5;
    slots.give_back(first);
    assert_eq!(slots.get(first), None);
    slots.give_back(first);
    let (second, _) = slots.take().unwrap();
    assert_ne!(first, second);
    assert_eq!(slots.get(second), Some(&5), "memory is kept");
    let (third, _) = slots.take().unwrap();
    assert_ne!(second.index, third.index, "given back twice, given away once");
}

/// Roots of salts that nobody uses are forgotten.
#[test]
fn salts_do_not_pile_up() {
    let mut cache = KvCache::new(&Config::new(4, 1)).unwrap();
    for salt in 0..1000_u32 {
        let started = cache.start(Request::new(&[1, 2, 3]).salt(&salt.to_le_bytes())).unwrap();
        cache.commit(started.sequence, 3).unwrap();
        cache.free(started.sequence).unwrap();
    }
    assert!(cache.n_roots() <= 5, "{}", cache.n_roots());
}
