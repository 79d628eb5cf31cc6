//! The repository's trace of requests through the books of a KV cache, beside a model that knows only the trace's ids.
#![cfg(feature = "kvcache")]
#![allow(clippy::unwrap_used, reason = "a test panics to fail")]
#![allow(clippy::cast_possible_truncation, reason = "indices below a length")]

use std::collections::BTreeMap;
use std::path::Path;

use glake::kvcache::policy::Lru;

use replay::round;
use trace::Trace;

#[path = "../examples/kv_replay/replay.rs"]
mod replay;
#[path = "../examples/kv_replay/trace.rs"]
mod trace;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Hits and evictions of a least recently used order in which a request's last block comes first.
fn model(trace: &Trace, pool: usize) -> (u64, u64) {
    let (mut hits, mut evictions) = (0, 0);
    // When a block was used last, and the other way round.
    let mut used: BTreeMap<u32, u64> = BTreeMap::new();
    let mut order: BTreeMap<u64, u32> = BTreeMap::new();
    let mut now = 0;
    for request in &trace.requests {
        let ids: Vec<u32> = request.prompt(trace).chunks(2).map(|tokens| tokens[0]).collect();
        let n_full = request.prompt_tokens as usize / 2;
        // Never all of a prompt.
        let findable = (request.prompt_tokens as usize - 1) / 2;
        let found = ids[..findable].iter().take_while(|id| used.contains_key(id)).count();
        hits += found as u64;
        for id in &ids[..found] {
            order.remove(&used.remove(id).unwrap());
        }
        while order.len() + ids.len() > pool {
            let (_, id) = order.pop_first().unwrap();
            used.remove(&id);
            evictions += 1;
        }
        for id in ids[..n_full].iter().rev() {
            now += 1;
            // An equal block of an older request, if the prompt's last one was not to be found.
            if let Some(before) = used.insert(*id, now) {
                order.remove(&before);
            }
            order.insert(now, *id);
        }
    }
    (hits, evictions)
}

#[test]
fn a_real_trace_hits_what_a_model_of_it_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/mooncake_conversation.jsonl.gz");
    let trace = Trace::read(&path, 16, false).unwrap();
    assert_eq!((trace.kind, trace.requests.len()), ("mooncake", 2750));
    for pool in [500, 5000, 20_000] {
        let round = round(&trace, pool, Lru::default(), 1).unwrap();
        let (hits, evictions) = model(&trace, pool as usize);
        assert_eq!((round.refused, round.stats.counts.hit_blocks), (0, hits));
        // The model has one of equal blocks where the cache has two.
        assert!(round.stats.counts.evictions.abs_diff(evictions) <= 50, "{:?} {evictions}", round.stats);
        assert!(hits > 2000, "{hits}");
        assert!((0.01..0.03).contains(&round.waste));
        assert!(round.time.as_nanos() > 0 && round.block_refs > 70_000);
    }
}

#[test]
fn requests_that_run_at_once_hold_their_blocks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/mooncake_conversation.jsonl.gz");
    let trace = Trace::read(&path, 16, true).unwrap();
    let alone = round(&trace, 5000, Lru::default(), 1).unwrap();
    let crowd = round(&trace, 5000, Lru::default(), 64).unwrap();
    assert_eq!((crowd.refused, crowd.stats.n_used), (0, 0));
    assert!(crowd.stats.counts.hit_blocks < alone.stats.counts.hit_blocks);
}

#[test]
fn lengths_alone_share_nothing_and_waste_ends_of_blocks() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\nt,10,7\nt,16,16\nt,1,0\n";
    let path = std::env::temp_dir().join(format!("glake-kv-replay-{}.csv", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let trace = Trace::read(&path, 16, false);
    std::fs::remove_file(&path).unwrap();
    let round = round(&trace.unwrap(), 100, Lru::default(), 2).unwrap();
    assert_eq!((round.block_refs, round.stats.counts.hit_blocks, round.refused), (5, 0, 0));
    assert!((round.waste - (1.0 - 50.0 / 80.0)).abs() < 1e-9);
}
