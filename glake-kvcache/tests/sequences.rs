//! What sequences do besides beginning and ending: fork, swap, give way, be pinned, reserve; and what is refused.
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]

use glake_kvcache::{
    BlockId, CacheError, Config, ConfigError, CopyBlock, KvCache, Request, ReturnCosts, SequenceId,
    SequenceShape, Strategy, Token, Way,
};

fn cache(n_blocks: u32) -> KvCache {
    KvCache::new(&Config::new(n_blocks, 4)).unwrap()
}

fn tokens(range: std::ops::Range<Token>) -> Vec<Token> {
    range.collect()
}

fn run(cache: &mut KvCache, range: std::ops::Range<Token>) -> SequenceId {
    let prompt = tokens(range);
    let sequence = cache.start(Request::new(&prompt)).unwrap().sequence;
    cache.commit(sequence, u32::try_from(prompt.len()).unwrap()).unwrap();
    sequence
}

#[test]
fn a_fork_copies_the_block_that_is_not_full_and_no_other() {
    let mut cache = cache(8);
    let parent = run(&mut cache, 0..6);
    let child = cache.fork(parent).unwrap();
    assert_eq!((cache.users(BlockId(0)), cache.users(BlockId(1))), (Some(2), Some(2)));

    let at = cache.append(child, 70).unwrap();
    let copy = CopyBlock { from: BlockId(1), to: BlockId(2), n_tokens: 2 };
    assert_eq!((at.block, at.offset, at.copy), (BlockId(2), 2, Some(copy)));
    // The parent is alone in its block now.
    let at = cache.append(parent, 60).unwrap();
    assert_eq!((at.block, at.offset, at.copy), (BlockId(1), 2, None));
    assert_eq!(cache.tokens(parent).unwrap(), [0, 1, 2, 3, 4, 5, 60]);
    assert_eq!(cache.tokens(child).unwrap(), [0, 1, 2, 3, 4, 5, 70]);

    // Both fill their blocks; each is found by its own tokens.
    cache.append(parent, 61).unwrap();
    cache.append(child, 71).unwrap();
    cache.commit(parent, 8).unwrap();
    cache.commit(child, 8).unwrap();
    assert_eq!(cache.cached_tokens(Request::new(&[0, 1, 2, 3, 4, 5, 60, 61, 9])), 8);
    assert_eq!(cache.cached_tokens(Request::new(&[0, 1, 2, 3, 4, 5, 70, 71, 9])), 8);
    assert_eq!(cache.cached_tokens(Request::new(&[0, 1, 2, 3, 4, 5, 60, 71, 9])), 4);
}

#[test]
fn a_fork_at_the_end_of_a_block_copies_nothing() {
    let mut cache = cache(8);
    let parent = cache.start(Request::new(&tokens(0..8))).unwrap().sequence;
    let child = cache.fork(parent).unwrap();
    assert_eq!(cache.append(child, 1).unwrap().copy, None);
    assert_eq!(cache.append(parent, 2).unwrap().copy, None);
    // What both have is committed by either, once.
    cache.commit(child, 8).unwrap();
    cache.commit(parent, 8).unwrap();
    cache.free(child).unwrap();
    cache.free(parent).unwrap();
    assert_eq!((cache.stats().n_cached, cache.stats().n_free), (2, 8));
}

#[test]
fn a_copy_that_finds_no_block_changes_nothing() {
    let mut cache = cache(2);
    let parent = run(&mut cache, 0..6);
    let child = cache.fork(parent).unwrap();
    assert_eq!(cache.append(child, 9), Err(CacheError::NoBlocks { needed: 1, available: 0 }));
    assert_eq!(cache.blocks(child).unwrap(), cache.blocks(parent).unwrap());
    cache.free(parent).unwrap();
    let at = cache.append(child, 9).unwrap();
    assert_eq!((at.block, at.copy), (BlockId(1), None));
}

#[test]
fn tokens_are_taken_back_up_to_what_is_committed() {
    let mut cache = cache(8);
    let sequence = run(&mut cache, 0..6);
    cache.append_all(sequence, &tokens(6..19)).unwrap();
    assert_eq!(cache.stats().n_free, 3);
    cache.truncate(sequence, 30).unwrap();
    cache.truncate(sequence, 7).unwrap();
    assert_eq!((cache.tokens(sequence).unwrap(), cache.stats().n_free), (tokens(0..7), 6));
    assert_eq!(cache.append(sequence, 9).unwrap().offset, 3);
    cache.truncate(sequence, 4).unwrap();
    assert_eq!(cache.append(sequence, 9).unwrap().offset, 0);
    assert_eq!(cache.truncate(sequence, 3), Err(CacheError::Committed { kept: 3, committed: 4 }));
    assert_eq!(cache.tokens(sequence).unwrap(), [0, 1, 2, 3, 9]);
    assert_eq!(cache.truncate(sequence, 0), Err(CacheError::EmptyPrompt));

    // What a fork has committed can be found by others, and must not be written to.
    let fork = cache.fork(sequence).unwrap();
    cache.append_all(fork, &tokens(0..3)).unwrap();
    cache.append_all(sequence, &[]).unwrap();
    let second = cache.fork(fork).unwrap();
    cache.commit(second, 8).unwrap();
    assert_eq!(cache.truncate(fork, 6), Err(CacheError::Committed { kept: 6, committed: 8 }));
    assert_eq!(cache.tokens(fork).unwrap(), [0, 1, 2, 3, 9, 0, 1, 2]);
}

#[test]
fn a_swapped_sequence_copies_in_what_is_not_cached() {
    let mut cache = cache(8);
    let prompt = tokens(0..14);
    let request = Request::new(&prompt).salt(b"tenant");
    let sequence = cache.start(request).unwrap().sequence;
    cache.commit(sequence, 14).unwrap();
    let swapped = cache.swap_out(sequence).unwrap();
    assert_eq!(swapped.blocks, [0, 1, 2, 3].map(BlockId));
    cache.free(sequence).unwrap();
    // All but one block of what is free is given to another, blank ones and the last of the sequence first.
    let other = cache.start(Request::new(&tokens(50..73))).unwrap().sequence;
    assert_eq!(cache.cached_tokens(request), 8);

    let refused = cache.swap_in(&swapped, None);
    assert_eq!(refused, Err(CacheError::NoBlocks { needed: 4, available: 2 }));
    cache.free(other).unwrap();
    let back = cache.swap_in(&swapped, None).unwrap();
    assert_eq!(cache.blocks(back.sequence).unwrap()[..2], [0, 1].map(BlockId));
    assert_eq!(back.copies.iter().map(|copy| copy.0).collect::<Vec<_>>(), [2, 3]);
    assert!(back.copies.iter().all(|(at, block)| cache.blocks(back.sequence).unwrap()[*at] == *block));
    assert_eq!(cache.tokens(back.sequence).unwrap(), tokens(0..14));
}

#[test]
fn sequences_give_way_in_order_by_the_cheaper_way() {
    let mut cache = cache(10);
    let long = run(&mut cache, 0..16);
    let short = run(&mut cache, 100..104);
    let fork = cache.fork(long).unwrap();
    let costs = ReturnCosts { recompute_token_ns: 10, swap_block_ns: 39, swap_room_blocks: 4 };
    assert_eq!(cache.n_available(), 5);
    assert_eq!(cache.plan_preemption(5, &[short], costs), Ok(Vec::new()));

    // A fork alone frees nothing; with the other all four go.
    let plan = cache.plan_preemption(10, &[fork, long, short], costs).unwrap();
    let plan: Vec<_> = plan.iter().map(|victim| (victim.sequence, victim.freed_blocks, victim.way)).collect();
    // Room for four blocks: the last, though cheaper to swap, has to be computed again.
    assert_eq!(plan, [(fork, 0, Way::Swap), (long, 4, Way::Swap), (short, 1, Way::Recompute)]);
    let costs = ReturnCosts { swap_block_ns: 41, ..costs };
    let plan = cache.plan_preemption(6, &[short, long], costs).unwrap();
    assert_eq!((plan.len(), plan[0].sequence, plan[0].way), (1, short, Way::Recompute));
    assert_eq!(
        cache.plan_preemption(7, &[short, fork], costs),
        Err(CacheError::NoBlocks { needed: 7, available: 6 })
    );
    cache.free(short).unwrap();
    assert_eq!(cache.plan_preemption(7, &[short], costs), Err(CacheError::UnknownSequence(short)));
}

#[test]
fn pinned_blocks_stay_and_are_limited() {
    let config = Config::new(6, 4).max_pinned_blocks(2);
    let mut cache = KvCache::new(&config).unwrap();
    let first = run(&mut cache, 0..9);
    let pin = cache.pin(first).unwrap();
    let again = cache.pin(first).unwrap();
    assert_eq!(cache.stats().n_pinned, 2, "blocks, not pins");
    cache.free(first).unwrap();
    let second = run(&mut cache, 100..104);
    assert_eq!(cache.pin(second), Err(CacheError::PinLimit { pinned: 3, most: 2 }));
    cache.free(second).unwrap();
    let flood = cache.start(Request::new(&tokens(200..216))).unwrap().sequence;
    assert_eq!(cache.append(flood, 1), Err(CacheError::NoBlocks { needed: 1, available: 0 }));
    assert_eq!(cache.cached_tokens(Request::new(&tokens(0..9))), 8);

    cache.unpin(pin).unwrap();
    assert_eq!(cache.unpin(pin), Err(CacheError::UnknownPin(pin)));
    assert_eq!(cache.n_available(), 0);
    cache.unpin(again).unwrap();
    assert_eq!((cache.n_available(), cache.stats().n_pinned), (2, 0));
    cache.append(flood, 1).unwrap();
}

#[test]
fn what_is_reserved_is_for_its_batch() {
    let mut cache = cache(10);
    assert_eq!(cache.reserve(11), Err(CacheError::NoBlocks { needed: 11, available: 10 }));
    let batch = cache.reserve(cache.blocks_of(8) * 3).unwrap();
    assert_eq!(cache.n_available(), 4);
    let other = cache.start(Request::new(&tokens(0..16))).unwrap().sequence;
    assert_eq!(cache.append(other, 1), Err(CacheError::NoBlocks { needed: 1, available: 0 }));
    // Each has the blocks it was promised, to its full length.
    for at in 0..3 {
        let prompt = [100 + at];
        let sequence = cache.start(Request::new(&prompt).reservation(batch)).unwrap().sequence;
        cache.append_all(sequence, &tokens(0..7)).unwrap();
        assert_eq!(cache.blocks(sequence).unwrap().len(), 2);
    }
    assert_eq!((cache.stats().n_reserved, cache.stats().n_free), (0, 0));
    assert_eq!(cache.release_reservation(batch), Ok(0));
    assert_eq!(cache.release_reservation(batch), Err(CacheError::UnknownReservation(batch)));
    let refused = cache.start(Request::new(&[1]).reservation(batch));
    assert_eq!(refused, Err(CacheError::UnknownReservation(batch)));

    cache.free(other).unwrap();
    let unused = cache.reserve(3).unwrap();
    assert_eq!((cache.n_available(), cache.release_reservation(unused)), (1, Ok(3)));
    assert_eq!(cache.n_available(), 4);
}

#[test]
fn as_many_fit_as_are_said_to() {
    for (prompt_tokens, output_tokens) in [(1, 0), (4, 0), (5, 3), (30, 9), (1, 63)] {
        let mut cache = cache(64);
        let held = cache.start(Request::new(&tokens(0..30))).unwrap().sequence;
        let shape = SequenceShape { prompt_tokens, output_tokens, shared_tokens: 0 };
        let n = cache.fits(shape);
        for at in 0..n {
            let start = 1000 * (at + 1);
            let sequence = cache.start(Request::new(&tokens(start..start + prompt_tokens))).unwrap().sequence;
            cache.append_all(sequence, &tokens(0..output_tokens)).unwrap();
        }
        assert_eq!(cache.fits(shape), 0);
        let total = prompt_tokens + output_tokens;
        let refused = cache.start(Request::new(&tokens(900_000..900_000 + total)));
        assert!(matches!(refused, Err(CacheError::NoBlocks { .. })));
        cache.free(held).unwrap();
    }
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let mut cache = KvCache::new(&Config::new(4, 4).max_sequence_tokens(6)).unwrap();
    assert_eq!(cache.start(Request::new(&[])), Err(CacheError::EmptyPrompt));
    assert_eq!(cache.cached_tokens(Request::new(&[])), 0);
    let long = tokens(0..7);
    assert_eq!(cache.start(Request::new(&long)), Err(CacheError::TooLong { tokens: 7, most: 6 }));
    let sequence = cache.start(Request::new(&long[..5])).unwrap().sequence;
    assert_eq!(cache.append_all(sequence, &[1, 2]), Err(CacheError::TooLong { tokens: 7, most: 6 }));
    assert_eq!(cache.commit(sequence, 6), Err(CacheError::NotAppended { computed: 6, tokens: 5 }));
    cache.append(sequence, 1).unwrap();
    assert_eq!(cache.append(sequence, 1), Err(CacheError::TooLong { tokens: 7, most: 6 }));
    let place = cache.append_all(sequence, &[]).unwrap();
    assert_eq!((place.block, place.offset, cache.n_tokens(sequence)), (BlockId(1), 2, Ok(6)));
    assert_eq!((cache.users(BlockId(4)), cache.page_state(glake_kvcache::PageId(4))), (None, None));
    cache.free(sequence).unwrap();
    assert_eq!(cache.free(sequence), Err(CacheError::UnknownSequence(sequence)));
    assert_eq!(cache.stats().n_free, 4);
}

#[test]
fn configurations_that_make_no_cache_are_refused() {
    let new = |config: Config| KvCache::new(&config).map(drop);
    assert_eq!(new(Config::new(0, 4)), Err(ConfigError::Blocks(0)));
    assert_eq!(new(Config::new((1 << 27) + 1, 4)), Err(ConfigError::Blocks((1 << 27) + 1)));
    assert_eq!(new(Config::new(4, 0)), Err(ConfigError::BlockTokens { block_tokens: 0, n_blocks: 4 }));
    for blocks_per_page in [0, 3] {
        let config = Config::new(4, 4).strategy(Strategy::Block { blocks_per_page });
        assert_eq!(new(config), Err(ConfigError::Pages { n_blocks: 4, blocks_per_page }));
    }
}
