//! What an honest KV cache does, a test for each behaviour, under its name. Those of pages under running kernels and of
//! attention belong to what maps and reads the pages.

#![allow(clippy::unwrap_used, reason = "a test panics to fail")]
#![allow(clippy::panic, reason = "a test panics to fail")]

use glake_kvcache::event::{EventLog, Noted};
use glake_kvcache::policy::Lru;
use glake_kvcache::{
    BlockId, CacheError, Config, KvCache, LimitChange, PageId, PageState, Request, Salt, SequenceId, Started,
    Strategy, Token,
};

const BLOCK: u32 = 16;

fn cache(n_blocks: u32) -> KvCache {
    KvCache::new(&Config::new(n_blocks, BLOCK)).unwrap()
}

fn listened(n_blocks: u32) -> KvCache<Lru, EventLog> {
    KvCache::with(&Config::new(n_blocks, BLOCK), Lru::default(), EventLog::default()).unwrap()
}

fn tokens(range: std::ops::Range<Token>) -> Vec<Token> {
    range.collect()
}

/// Starts and commits all of a prompt.
fn run(cache: &mut KvCache, prompt: &[Token]) -> Started {
    let started = cache.start(Request::new(prompt)).unwrap();
    cache.commit(started.sequence, u32::try_from(prompt.len()).unwrap()).unwrap();
    started
}

fn ids(numbers: impl IntoIterator<Item = u32>) -> Vec<BlockId> {
    numbers.into_iter().map(BlockId).collect()
}

/// Behaviour 1: 55 tokens in blocks of 16, 10 blocks: 4 blocks, 3 of them found by the same prefix of 48 tokens: 2 users each, 1 new
/// block, 5 free.
#[test]
fn behaviour_01_a_prefix_is_hit_block_by_block() {
    let mut cache = cache(10);
    let first = run(&mut cache, &tokens(0..55));
    assert_eq!((first.cached_tokens, first.n_new_blocks), (0, 4));
    assert_eq!(cache.blocks(first.sequence).unwrap(), ids(0..4));

    let mut prompt = tokens(0..48);
    prompt.extend(100..107);
    let second = run(&mut cache, &prompt);
    assert_eq!((second.cached_tokens, second.n_new_blocks), (48, 1));
    assert_eq!(cache.blocks(second.sequence).unwrap(), ids([0, 1, 2, 4]));
    assert_eq!([0, 1, 2, 3, 4].map(|block| cache.users(BlockId(block)).unwrap()), [2, 2, 2, 1, 1]);
    assert_eq!(cache.stats().n_free, 5);
}

/// Behaviour 2: After both end all are free: blocks without contents go first, cached ones last, in reverse order within a request.
#[test]
fn behaviour_02_free_blocks_are_given_away_in_order() {
    let mut cache = cache(10);
    let first = run(&mut cache, &tokens(0..55)).sequence;
    let mut prompt = tokens(0..48);
    prompt.extend(100..107);
    let second = run(&mut cache, &prompt).sequence;
    cache.free(first).unwrap();
    cache.free(second).unwrap();
    assert_eq!(cache.stats().n_free, 10);
    assert_eq!(cache.free_order(), ids([4, 3, 5, 6, 7, 8, 9, 2, 1, 0]));
}

/// Behaviour 3: A hit on a freed block revives it, and it is never the victim of the same allocation.
#[test]
fn behaviour_03_a_hit_is_no_victim_of_its_own_allocation() {
    let mut cache = cache(4);
    let first = run(&mut cache, &tokens(0..64)).sequence;
    cache.free(first).unwrap();
    assert_eq!(cache.free_order(), ids([3, 2, 1, 0]));
    // Two are hit; the two others are all that is left, and both are needed.
    let mut prompt = tokens(0..32);
    prompt.extend(200..232);
    let second = cache.start(Request::new(&prompt)).unwrap();
    assert_eq!((second.cached_tokens, second.n_new_blocks), (32, 2));
    assert_eq!(cache.blocks(second.sequence).unwrap(), ids([0, 1, 3, 2]));
    // One more would have to be a hit of its own.
    cache.free(second.sequence).unwrap();
    prompt.extend(300..316);
    let before = cache.free_order();
    assert_eq!(cache.start(Request::new(&prompt)), Err(CacheError::NoBlocks { needed: 5, available: 4 }));
    assert_eq!(cache.free_order(), before);
}

/// Behaviour 4: Reallocation clears the old contents; a later look-up misses.
#[test]
fn behaviour_04_reallocated_blocks_are_not_found() {
    let mut cache = cache(2);
    let first = run(&mut cache, &tokens(0..32)).sequence;
    cache.free(first).unwrap();
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..40))), 32);
    let second = cache.start(Request::new(&tokens(500..501))).unwrap().sequence;
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..40))), 16);
    let third = cache.start(Request::new(&tokens(600..601))).unwrap().sequence;
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..40))), 0);
    cache.free(second).unwrap();
    cache.free(third).unwrap();
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..40))), 0);
}

/// Behaviour 5: An allocation that cannot be met is an error with users, free count and order unchanged.
#[test]
fn behaviour_05_what_cannot_be_met_changes_nothing() {
    let mut cache = cache(6);
    let kept = run(&mut cache, &tokens(0..48)).sequence;
    let other = run(&mut cache, &tokens(100..132)).sequence;
    cache.free(other).unwrap();
    let state = |cache: &KvCache| {
        let users: Vec<u32> = (0..6).map(|block| cache.users(BlockId(block)).unwrap()).collect();
        (users, cache.free_order(), cache.stats(), cache.blocks(kept).unwrap().to_vec())
    };
    let before = state(&cache);
    // One block is a hit in use, two are hits that are free, one is blank: three more are not there.
    let mut prompt = tokens(100..132);
    prompt.extend(200..264);
    let refused = cache.start(Request::new(&prompt).salt(b""));
    assert_eq!(refused, Err(CacheError::NoBlocks { needed: 6, available: 3 }));
    assert_eq!(state(&cache), before);
    let refused = cache.append_all(kept, &tokens(0..64));
    assert_eq!(refused, Err(CacheError::NoBlocks { needed: 4, available: 3 }));
    assert_eq!(state(&cache), before);
    assert_eq!(cache.reserve(4), Err(CacheError::NoBlocks { needed: 4, available: 3 }));
    assert_eq!(state(&cache), before);
}

/// Behaviour 6: Another salt, adapter or image: no hit; the same: all.
#[test]
fn behaviour_06_salts_keep_apart() {
    let mut cache = cache(40);
    let salts = [
        Salt::new(),
        Salt::new().adapter(b"a"),
        Salt::new().image(b"a"),
        Salt::new().tenant(b"a"),
        Salt::new().adapter(b"a").image(b"b"),
        Salt::new().adapter(b"ab"),
    ];
    let prompt = tokens(0..33);
    for salt in &salts {
        let request = Request::new(&prompt).salt(salt.as_bytes());
        let started = cache.start(request).unwrap();
        assert_eq!(started.cached_tokens, 0, "{salt:?}");
        cache.commit(started.sequence, 33).unwrap();
        cache.free(started.sequence).unwrap();
    }
    for salt in &salts {
        assert_eq!(cache.cached_tokens(Request::new(&prompt).salt(salt.as_bytes())), 32, "{salt:?}");
    }
}

/// Behaviour 7: Four more tokens inside a block: no new block; crossing: exactly one, and the filled block can be hit.
#[test]
fn behaviour_07_growth_takes_a_block_at_a_time() {
    let mut cache = cache(10);
    let sequence = run(&mut cache, &tokens(0..10)).sequence;
    for token in 10..14 {
        let at = cache.append(sequence, token).unwrap();
        assert_eq!((at.block, at.offset, at.copy), (BlockId(0), token, None));
    }
    assert_eq!(cache.stats().n_free, 9);
    for token in 14..17 {
        cache.append(sequence, token).unwrap();
    }
    assert_eq!(cache.stats().n_free, 8);
    assert_eq!(cache.blocks(sequence).unwrap(), ids([0, 1]));
    // Not before its keys and values are computed.
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..20))), 0);
    cache.commit(sequence, 15).unwrap();
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..20))), 0);
    cache.commit(sequence, 16).unwrap();
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..20))), 16);
}

/// Behaviour 8: Of a prompt that is all cached, at most all but one token count as computed.
#[test]
fn behaviour_08_the_last_token_is_always_computed() {
    let mut cache = cache(10);
    run(&mut cache, &tokens(0..48));
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..48))), 32);
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..49))), 48);
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..16))), 0);
    let second = cache.start(Request::new(&tokens(0..48))).unwrap();
    assert_eq!((second.cached_tokens, second.n_new_blocks), (32, 1));
}

/// Behaviour 9: Of two equal blocks under one hash, giving up one keeps the other found.
#[test]
fn behaviour_09_equal_blocks_outlive_each_other() {
    for first_goes in [true, false] {
        let mut cache = cache(2);
        let a = cache.start(Request::new(&tokens(0..16))).unwrap().sequence;
        let b = cache.start(Request::new(&tokens(0..16))).unwrap().sequence;
        cache.commit(a, 16).unwrap();
        cache.commit(b, 16).unwrap();
        let (goes, stays) = if first_goes { (a, b) } else { (b, a) };
        let kept = cache.blocks(stays).unwrap()[0];
        cache.free(goes).unwrap();
        cache.free(stays).unwrap();
        let other = cache.start(Request::new(&tokens(900..901))).unwrap().sequence;
        assert_ne!(cache.blocks(other).unwrap(), [kept]);
        assert_eq!(cache.cached_tokens(Request::new(&tokens(0..17))), 16);
        cache.free(other).unwrap();
        let third = cache.start(Request::new(&tokens(0..17))).unwrap();
        assert_eq!((third.cached_tokens, cache.blocks(third.sequence).unwrap()[0]), (16, kept));
    }
}

/// Behaviour 9, which of them is taken: one in use, and the lowest, whatever the hashes are.
#[test]
fn behaviour_09_of_equal_blocks_one_in_use_is_taken() {
    for seed in 0..50 {
        let mut cache = KvCache::new(&Config::new(4, BLOCK).seed([seed, 1])).unwrap();
        let [a, b, c] = [0, 1, 2].map(|_| cache.start(Request::new(&tokens(0..16))).unwrap().sequence);
        for sequence in [c, b, a] {
            cache.commit(sequence, 16).unwrap();
        }
        let taken = |cache: &mut KvCache| {
            let started = cache.start(Request::new(&tokens(0..17))).unwrap();
            let block = cache.blocks(started.sequence).unwrap()[0];
            cache.free(started.sequence).unwrap();
            block
        };
        assert_eq!(taken(&mut cache), BlockId(0));
        cache.free(a).unwrap();
        assert_eq!(taken(&mut cache), BlockId(1));
        cache.free(b).unwrap();
        assert_eq!(taken(&mut cache), BlockId(2));
        cache.free(c).unwrap();
        assert_eq!(taken(&mut cache), BlockId(0));
    }
}

/// Behaviour 10: Reset refuses while anything is in use.
#[test]
fn behaviour_10_reset_refuses_while_blocks_are_in_use() {
    let mut cache = cache(10);
    let sequence = run(&mut cache, &tokens(0..40)).sequence;
    assert_eq!(cache.reset(), Err(CacheError::InUse { n_blocks: 3 }));
    let pin = cache.pin(sequence).unwrap();
    cache.free(sequence).unwrap();
    assert_eq!(cache.reset(), Err(CacheError::InUse { n_blocks: 2 }));
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..40))), 32);
    cache.unpin(pin).unwrap();
    cache.reset().unwrap();
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..40))), 0);
    assert_eq!((cache.stats().n_free, cache.stats().n_cached), (10, 0));
}

/// Behaviour 11: Events: store N → one Stored(N, parent); reuse → N Removed, then Stored; reset → Cleared.
#[test]
fn behaviour_11_events_tell_what_is_held() {
    let mut cache = listened(3);
    let drain = |cache: &mut KvCache<Lru, EventLog>| cache.sink_mut().drain().collect::<Vec<_>>();
    let first = cache.start(Request::new(&tokens(0..40))).unwrap().sequence;
    cache.commit(first, 40).unwrap();
    let events = drain(&mut cache);
    let [Noted::Stored(hashes, None)] = &events[..] else { panic!("{events:?}") };
    let [a, b] = hashes[..] else { panic!("{hashes:?}") };
    cache.append_all(first, &tokens(40..48)).unwrap();
    cache.commit(first, 48).unwrap();
    let events = drain(&mut cache);
    let [Noted::Stored(hashes, parent)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((hashes.len(), *parent), (1, Some(b)));
    let c = hashes[0];
    cache.free(first).unwrap();
    assert_eq!(drain(&mut cache), []);

    let second = cache.start(Request::new(&tokens(100..132))).unwrap().sequence;
    assert_eq!(drain(&mut cache), [Noted::Removed(c), Noted::Removed(b)]);
    cache.commit(second, 32).unwrap();
    let events = drain(&mut cache);
    assert!(
        matches!(&events[..], [Noted::Stored(hashes, None)] if hashes.len() == 2 && !hashes.contains(&a))
    );
    cache.free(second).unwrap();
    cache.reset().unwrap();
    assert_eq!(drain(&mut cache), [Noted::Cleared]);
}

/// Behaviour 11, of equal blocks: stored with the first, removed with the last.
#[test]
fn behaviour_11_events_tell_of_equal_blocks_once() {
    let mut cache = listened(2);
    let [a, b] = [0, 1].map(|_| cache.start(Request::new(&tokens(0..16))).unwrap().sequence);
    cache.commit(a, 16).unwrap();
    cache.commit(b, 16).unwrap();
    let events: Vec<_> = cache.sink_mut().drain().collect();
    let [Noted::Stored(hashes, None)] = &events[..] else { panic!("{events:?}") };
    let hash = hashes[0];
    cache.free(a).unwrap();
    cache.free(b).unwrap();
    cache.start(Request::new(&tokens(50..51))).unwrap();
    assert_eq!(cache.sink_mut().drain().count(), 0);
    cache.start(Request::new(&tokens(60..61))).unwrap();
    assert_eq!(cache.sink_mut().drain().collect::<Vec<_>>(), [Noted::Removed(hash)]);
}

/// Behaviour 13: A page with a live block is never given back; a lower limit waits while blocks are in use, and converges; growth
/// works again.
#[test]
fn behaviour_13_limits_wait_and_converge() {
    let config = Config::new(12, BLOCK).strategy(Strategy::Block { blocks_per_page: 2 });
    let mut cache = KvCache::new(&config).unwrap();
    let used = run(&mut cache, &tokens(0..80)).sequence; // blocks 0 to 4, pages 0 to 2
    let cached = run(&mut cache, &tokens(100..148)).sequence; // blocks 5 to 7, pages 2 and 3
    cache.free(cached).unwrap();
    let page = |cache: &KvCache, page| cache.page_state(PageId(page)).unwrap();
    assert_eq!(
        [0, 2, 3, 4].map(|at| page(&cache, at)),
        [PageState::Used, PageState::Used, PageState::Cached, PageState::Blank]
    );
    assert_eq!(cache.set_limit_pages(2).unwrap(), 1, "one more page than allowed is in use");
    let changes: Vec<_> = cache.drain_limit_changes().collect();
    assert_eq!(changes, [4, 5, 3].map(|page| LimitChange::Retired(PageId(page))));
    assert_eq!([0, 1, 2].map(|at| page(&cache, at)), [PageState::Used; 3]);
    assert_eq!(cache.n_available(), 0);
    assert_eq!(
        cache.start(Request::new(&tokens(900..901))),
        Err(CacheError::NoBlocks { needed: 1, available: 0 })
    );

    cache.free(used).unwrap();
    assert_eq!(cache.n_held_pages(), 2);
    let changes: Vec<_> = cache.drain_limit_changes().collect();
    assert_eq!(changes, [LimitChange::Retired(PageId(2))]);
    assert_eq!((cache.stats().n_free, cache.stats().n_retired), (4, 8));
    assert_eq!(cache.cached_tokens(Request::new(&tokens(100..148))), 0, "retired contents are not found");
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..80))), 64);

    assert_eq!(cache.set_limit_pages(6).unwrap(), 0);
    let changes: Vec<_> = cache.drain_limit_changes().collect();
    assert_eq!(changes, [2, 3, 4, 5].map(|page| LimitChange::Returned(PageId(page))));
    assert_eq!(cache.n_available(), 12);
    cache.start(Request::new(&tokens(0..192))).unwrap();
    for limit in [0, 7] {
        assert_eq!(cache.set_limit_pages(limit), Err(CacheError::LimitOutOfRange { pages: limit, most: 6 }));
    }
}

/// Behaviour 15: A writer that holds a slot which was reused cannot commit.
#[test]
fn behaviour_15_a_reused_slot_cannot_be_committed() {
    let mut cache = cache(10);
    let old = cache.start(Request::new(&tokens(0..40))).unwrap().sequence;
    cache.free(old).unwrap();
    let new = cache.start(Request::new(&tokens(100..140))).unwrap().sequence;
    let refused = |result: Result<(), CacheError>| assert_eq!(result, Err(CacheError::UnknownSequence(old)));
    refused(cache.commit(old, 40));
    refused(cache.append(old, 1).map(drop));
    refused(cache.append_all(old, &[1]).map(drop));
    refused(cache.fork(old).map(drop));
    refused(cache.pin(old).map(drop));
    refused(cache.swap_out(old).map(drop));
    refused(cache.free(old));
    assert_eq!(cache.cached_tokens(Request::new(&tokens(100..140))), 0);
    assert_eq!(cache.tokens(new).unwrap(), tokens(100..140));
    assert_eq!(cache.sequences().collect::<Vec<SequenceId>>(), [new]);
}
