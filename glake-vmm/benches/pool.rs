//! The pool's host time on the simulated driver. Every figure is of one allocation and its free,
//! or of one operation of a trace.
//!
//! `cargo bench -p glake-vmm --bench pool`
#![allow(missing_docs, reason = "criterion's macros make functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark panics to fail")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::cast_possible_truncation, reason = "indices below a length")]
#![allow(clippy::cast_precision_loss, reason = "a ratio of counts")]

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use glake_core::adapt::Locked;
use glake_core::alloc::{Allocation, Allocator, Request};
use glake_core::driver::{Driver, StreamOrder};
use glake_core::sim::{SimConfig, SimDriver};
use glake_core::trace;
use glake_core::units::{DeviceId, DevicePtr, StreamId};
use glake_testkit::replay::{Plan, Pools, Silent, run};
use glake_testkit::rng::Rng;
use glake_vmm::{Config, SharedPool, StitchPool};

/// Pairs in one batch: so many objects live at a time.
const BATCH: usize = 256;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The repository's trace.
const TRACE: &[u8] = include_bytes!("../../traces/gpt2m_steps.csv.gz");

fn pool() -> (StitchPool, StreamId) {
    let driver = Arc::new(SimConfig::h200(1).memory_bytes(1 << 40).build());
    let stream = driver.create_stream(DeviceId(0)).unwrap();
    (StitchPool::new(driver, Config::new(DeviceId(0))).unwrap(), stream)
}

/// The numbers below `n` in a random order.
fn shuffled(rng: &mut Rng, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    order
}

/// Allocates objects of `sizes` and frees them in `order`.
fn batch(
    pool: &mut impl Allocator,
    stream: StreamId,
    sizes: &[u64],
    order: &[usize],
    live: &mut [DevicePtr],
) {
    for (ptr, &bytes) in live.iter_mut().zip(sizes) {
        *ptr = pool.allocate(Request::new(bytes, stream)).unwrap().ptr;
    }
    for &i in order {
        pool.free(black_box(live[i]), stream).unwrap();
    }
}

/// Runs `turn`, which makes `n` pairs, about `n_pairs / n` times; the time of `n_pairs` pairs.
fn scaled(n_pairs: u64, n: usize, mut turn: impl FnMut()) -> Duration {
    let n_turns = n_pairs.div_ceil(n as u64);
    let start = Instant::now();
    for _ in 0..n_turns {
        turn();
    }
    start.elapsed().mul_f64(n_pairs as f64 / (n_turns * n as u64) as f64)
}

/// 256 objects of up to 4 KiB, freed in another order, as they come to a pool that has served
/// such batches before.
fn small_pairs(c: &mut Criterion) {
    let mut rng = Rng::new(1);
    let (mut pool, stream) = pool();
    let sizes: Vec<u64> = (0..BATCH).map(|_| rng.between(1, 4 * KIB)).collect();
    let order = shuffled(&mut rng, BATCH);
    let mut live = [DevicePtr(0); BATCH];
    c.bench_function("small pair", |b| {
        b.iter_custom(|n| scaled(n, BATCH, || batch(&mut pool, stream, &sizes, &order, &mut live)));
    });
}

/// As [`small_pairs`], in each of several threads on a stream of its own: once through a lock of the
/// whole pool, once through one of each stream. The time of a pair in a thread.
fn small_pairs_in_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("small pair in threads");
    for n_threads in [1, 2, 8] {
        let driver = Arc::new(SimConfig::h200(1).memory_bytes(1 << 40).build());
        let streams: Vec<_> = (0..n_threads).map(|_| driver.create_stream(DeviceId(0)).unwrap()).collect();
        let locked = Locked::new(StitchPool::new(driver.clone(), Config::new(DeviceId(0))).unwrap());
        let shared = SharedPool::new(driver, Config::new(DeviceId(0))).unwrap();
        group.bench_function(BenchmarkId::new("locked", n_threads), |b| {
            b.iter_custom(|n| in_threads(&streams, n, || &locked));
        });
        group.bench_function(BenchmarkId::new("shared", n_threads), |b| {
            b.iter_custom(|n| in_threads(&streams, n, || &shared));
        });
    }
    group.finish();
}

/// Makes `n_pairs` pairs in one thread for each stream; from the start of the first to the end of the last.
fn in_threads<A: Allocator + Send>(streams: &[StreamId], n_pairs: u64, share: impl Fn() -> A) -> Duration {
    let mut rng = Rng::new(1);
    let sizes: Vec<u64> = (0..BATCH).map(|_| rng.between(1, 4 * KIB)).collect();
    let order = shuffled(&mut rng, BATCH);
    let (sizes, order) = (&sizes, &order);
    let start_together = Barrier::new(streams.len());
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter()
            .map(|&stream| {
                let (mut pool, start_together) = (share(), &start_together);
                scope.spawn(move || {
                    let mut live = [DevicePtr(0); BATCH];
                    batch(&mut pool, stream, sizes, order, &mut live);
                    start_together.wait();
                    scaled(n_pairs, BATCH, || batch(&mut pool, stream, sizes, order, &mut live))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max()
    });
    times.unwrap()
}

/// The same object again and again: what a warm loop of a program does.
fn repeated_pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("repeated pair");
    for (name, bytes) in [("1 KiB", KIB), ("64 KiB", 64 * KIB), ("16 MiB", 16 * MIB)] {
        let (mut pool, stream) = pool();
        group.bench_function(name, |b| {
            b.iter(|| {
                let allocation = pool.allocate(Request::new(black_box(bytes), stream)).unwrap();
                pool.free(allocation.ptr, stream).unwrap();
            });
        });
    }
    group.finish();
}

/// The same for every stream and the host, from a pool for many threads: freed on a stream whose work is
/// done, behind an event now and then.
fn repeated_pairs_for_all(c: &mut Criterion) {
    let mut group = c.benchmark_group("repeated pair for all");
    for (name, bytes) in [("1 KiB", KIB), ("64 KiB", 64 * KIB), ("16 MiB", 16 * MIB)] {
        let driver = Arc::new(SimConfig::h200(1).memory_bytes(1 << 40).build());
        let stream = driver.create_stream(DeviceId(0)).unwrap();
        let pool = SharedPool::new(driver, Config::new(DeviceId(0))).unwrap();
        group.bench_function(name, |b| {
            b.iter(|| {
                let allocation = pool.allocate_for_all(black_box(bytes)).unwrap();
                pool.free(allocation.ptr, stream).unwrap();
            });
        });
    }
    group.finish();
}

/// A pool with `n` free blocks of 256 KiB to 1 MiB, live ones between them.
fn with_intervals(n: usize) -> (StitchPool, StreamId) {
    let mut rng = Rng::new(n as u64);
    let (mut pool, stream) = pool();
    let all: Vec<Allocation> = (0..2 * n)
        .map(|_| pool.allocate(Request::new(rng.between(256 * KIB, MIB), stream)).unwrap())
        .collect();
    for allocation in all.iter().step_by(2) {
        pool.free(allocation.ptr, stream).unwrap();
    }
    (pool, stream)
}

/// Pairs of sizes that the free blocks hold, among few and among many free blocks.
fn large_pairs(c: &mut Criterion) {
    let mut group = c.benchmark_group("large pair among intervals");
    for n in [10, 1_000, 100_000] {
        let mut rng = Rng::new(2);
        // Made when it is wanted: a filter may leave it out.
        let mut made = None;
        let sizes: Vec<u64> = (0..BATCH).map(|_| rng.between(256 * KIB, 640 * KIB)).collect();
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            let (pool, stream) = made.get_or_insert_with(|| with_intervals(n));
            let (misses, stream) = (pool.stats().n_misses, *stream);
            b.iter_custom(|n_pairs| {
                scaled(n_pairs, BATCH, || {
                    for &bytes in &sizes {
                        let allocation = pool.allocate(Request::new(bytes, stream)).unwrap();
                        pool.free(black_box(allocation.ptr), stream).unwrap();
                    }
                })
            });
            assert_eq!(pool.stats().n_misses, misses, "every pair is a hit");
        });
    }
    group.finish();
}

/// From an address inside to its allocation, among few and among many; and from the last byte of a
/// single one of 64 GiB.
fn found_allocations(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocation found");
    let mut bench = |name: &str, n: usize, bytes: &dyn Fn(&mut Rng) -> u64| {
        let mut made = None;
        group.bench_function(name, |b| {
            let (pool, inside) = made.get_or_insert_with(|| {
                let mut rng = Rng::new(n as u64);
                let (mut pool, stream) = pool();
                let all: Vec<Allocation> =
                    (0..n).map(|_| pool.allocate(Request::new(bytes(&mut rng), stream)).unwrap()).collect();
                let last = |i: usize| all[i].ptr + (all[i].bytes - 1);
                (pool, shuffled(&mut rng, n).into_iter().take(BATCH).map(last).collect::<Vec<_>>())
            });
            let mut i = 0;
            b.iter(|| {
                i = (i + 1) % inside.len();
                pool.allocation_at(black_box(inside[i])).unwrap()
            });
        });
    };
    for n in [10, 100_000] {
        bench(&format!("small among {n}"), n, &|rng| rng.log_between(1, 100 * KIB));
        bench(&format!("large among {n}"), n, &|rng| rng.between(256 * KIB, 4 * MIB));
    }
    bench("in 64 GiB", 1, &|_| 64 << 30);
    group.finish();
}

/// The repository's trace from a new pool on, the simulated driver's own time included; per
/// operation.
fn replayed_trace(c: &mut Criterion) {
    c.bench_function("operation of the trace", |b| {
        let plan = Plan::from_events(trace::decode(TRACE).unwrap()).unwrap();
        b.iter_custom(|n| scaled(n, plan.steps.len(), || replay(&plan)));
    });
}

fn replay(plan: &Plan) {
    let driver: Arc<dyn Driver> = Arc::new(SimDriver::h200(1));
    let streams = (0..plan.n_streams).map(|_| driver.create_stream(DeviceId(0)).unwrap()).collect();
    let mut pools = Pools::each(streams, |_| {
        let pool = StitchPool::new(Arc::clone(&driver), Config::new(DeviceId(0)))?;
        Ok(Box::new(pool) as Box<dyn Allocator>)
    })
    .unwrap();
    assert_eq!(run(plan, &mut pools, &mut Silent).n_refused, 0);
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    targets = small_pairs, small_pairs_in_threads, repeated_pairs, repeated_pairs_for_all, large_pairs, found_allocations, replayed_trace
}
criterion_main!(benches);
