//! Host time of a KV cache's books. `thrpt` counts blocks or tokens: 1 Gelem/s is a nanosecond each.
//!
//! `cargo bench -p glake-kvcache --features blake3 --bench kvcache`
#![allow(missing_docs, reason = "criterion's macros make functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark panics to fail")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use glake_kvcache::hash::{BlockHasher, HashKind};
use glake_kvcache::{Config, KvCache, Request, Token};

const BLOCK: u32 = 16;
/// Blocks of caches, small to large.
const SIZES: [u32; 4] = [1_000, 10_000, 100_000, 1_000_000];

fn cache(n_blocks: u32) -> KvCache {
    KvCache::new(&Config::new(n_blocks, BLOCK).seed([1, 2])).unwrap()
}

/// Tokens of `n_blocks` blocks, like no others of another `start`.
fn tokens(start: u32, n_blocks: u32) -> Vec<Token> {
    (0..n_blocks * BLOCK).map(|at| (start + at).wrapping_mul(0x9e37_79b9)).collect()
}

/// A cache that is full of what was asked before.
fn full(n_blocks: u32) -> KvCache {
    let mut cache = cache(n_blocks);
    for prompt in 0..n_blocks / 100 {
        ask(&mut cache, &tokens(prompt * 100_000, 100));
    }
    cache
}

/// A prompt from beginning to end.
fn ask(cache: &mut KvCache, prompt: &[Token]) {
    let started = cache.start(Request::new(prompt)).unwrap();
    cache.commit(started.sequence, prompt.len().try_into().unwrap()).unwrap();
    cache.free(started.sequence).unwrap();
}

/// Blocks taken by a sequence that grows, and given back: nothing is hashed, their tokens are written.
fn allocate_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate and free");
    for n_blocks in SIZES {
        for n in [1, 100] {
            let mut cache = cache(n_blocks);
            let sequence = cache.start(Request::new(&tokens(0, 1))).unwrap().sequence;
            let more = tokens(1, n);
            group.throughput(Throughput::Elements(n.into()));
            group.bench_function(BenchmarkId::new(format!("{n} blocks"), n_blocks), |b| {
                b.iter(|| {
                    cache.append_all(sequence, &more).unwrap();
                    cache.truncate(sequence, BLOCK).unwrap();
                });
            });
        }
    }
    group.finish();
}

/// A sequence of one block, begun and ended.
fn start_and_free(c: &mut Criterion) {
    let mut cache = cache(20_000);
    c.bench_function("start and free, one token", |b| {
        b.iter(|| {
            let started = cache.start(Request::new(&[1])).unwrap();
            cache.free(started.sequence).unwrap();
        });
    });
}

/// Tokens within a block: of each 16, the one that takes a block is appended outside of the time.
fn append(c: &mut Criterion) {
    let mut group = c.benchmark_group("append");
    let n = u64::from(BLOCK) - 1;
    group.throughput(Throughput::Elements(n));
    let mut cache = cache(20_000);
    let sequence = cache.start(Request::new(&[1])).unwrap().sequence;
    group.bench_function("within a block", |b| {
        b.iter(|| {
            for token in 1..BLOCK {
                black_box(cache.append(sequence, token).unwrap());
            }
            cache.truncate(sequence, 1).unwrap();
        });
    });
    group.finish();
}

/// 128 blocks that nobody uses are found and given back. Their hashes are computed in the time.
fn match_and_release(c: &mut Criterion) {
    let mut group = c.benchmark_group("match and release, 128 blocks");
    group.throughput(Throughput::Elements(128));
    for n_blocks in SIZES {
        let mut cache = full(n_blocks);
        let mut prompt = tokens(77, 128);
        prompt.push(0);
        ask(&mut cache, &prompt);
        group.bench_function(BenchmarkId::from_parameter(n_blocks), |b| {
            b.iter(|| {
                let started = cache.start(Request::new(&prompt)).unwrap();
                assert_eq!(started.cached_tokens, 2048);
                cache.free(started.sequence).unwrap();
            });
        });
    }
    group.finish();
}

/// Prompts of 100 blocks that are new, in a cache that is full: each block is evicted, written, hashed and indexed.
fn evict_and_commit(c: &mut Criterion) {
    let mut group = c.benchmark_group("evict and commit, 100 blocks");
    group.throughput(Throughput::Elements(100));
    for n_blocks in SIZES {
        let mut cache = full(n_blocks);
        let mut prompt = tokens(0, 100);
        let mut number = 0;
        group.bench_function(BenchmarkId::from_parameter(n_blocks), |b| {
            b.iter(|| {
                number += 1;
                prompt[0] = number;
                ask(&mut cache, &prompt);
            });
        });
    }
    group.finish();
}

fn hash(c: &mut Criterion) {
    let mut group = c.benchmark_group("hash");
    let kinds = [
        ("fast", HashKind::Fast),
        #[cfg(feature = "blake3")]
        ("blake3", HashKind::Blake3),
    ];
    for (name, kind) in kinds {
        for block_tokens in [16, 512] {
            let hasher = BlockHasher::new(kind, [1, 2], block_tokens);
            let tokens = tokens(0, 8192 / BLOCK);
            group.throughput(Throughput::Elements(8192));
            group.bench_function(BenchmarkId::new(name, block_tokens), |b| {
                b.iter(|| {
                    let root = hasher.root(&[]);
                    tokens.chunks(block_tokens as usize).fold(root, |hash, tokens| hasher.block(hash, tokens))
                });
            });
        }
    }
    group.finish();
}

criterion_group!(
    benches,
    allocate_and_free,
    start_and_free,
    append,
    match_and_release,
    evict_and_commit,
    hash
);
criterion_main!(benches);
