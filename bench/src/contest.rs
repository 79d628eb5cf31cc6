//! One contestant: pools brought into a fragmented state, and rounds of pairs against the clock.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use glake_testkit::rng::Rng;

/// Sizes of the pairs; a round goes through them. An array, so that the loop need not divide.
pub(crate) type Sizes = [u64; 4096];

/// A pool as one thread sees it.
pub(crate) trait Pool: Send {
    /// What it hands out.
    type Object: Send;

    fn allocate(&mut self, bytes: u64) -> Self::Object;

    fn free(&mut self, object: Self::Object);

    /// Allocates objects that are to stay: not measured, so it may take a short cut.
    fn fill(&mut self, sizes: impl Iterator<Item = u64>) -> Vec<Self::Object> {
        sizes.map(|bytes| self.allocate(bytes)).collect()
    }

    /// Calls that reached the driver or the storage.
    fn n_device_calls(&mut self) -> u64;
}

/// Who uses a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Sharing {
    /// Each thread has a pool of its own.
    Own,
    /// All threads have one.
    Shared,
}

/// The state that the pools are brought into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Sizes from here...
    pub(crate) min_bytes: u64,
    /// ...up to here, as many small as large ones.
    pub(crate) max_bytes: u64,
    /// Free intervals between live objects.
    pub(crate) n_free: usize,
}

impl State {
    /// Sizes of the mix, without end.
    pub(crate) fn sizes(self, seed: u64) -> impl Iterator<Item = u64> {
        let mut rng = Rng::new(seed);
        std::iter::repeat_with(move || rng.log_between(self.min_bytes, self.max_bytes))
    }

    /// Those of the pairs.
    pub(crate) fn pair_sizes(self) -> Sizes {
        let mut sizes = self.sizes(2);
        std::array::from_fn(|_| sizes.next().unwrap_or(self.min_bytes))
    }
}

/// A contestant, whatever its pools are.
pub(crate) trait Contest {
    fn name(&self) -> &'static str;

    fn sharing(&self) -> Sharing;

    /// Makes `n_pairs` pairs of `sizes` on each of `n_threads` threads; the time from the first start to the
    /// last end.
    fn round(&mut self, n_threads: usize, n_pairs: usize, sizes: &Sizes) -> Duration;

    fn n_device_calls(&mut self) -> u64;
}

pub(crate) struct Contestant<P: Pool> {
    name: &'static str,
    sharing: Sharing,
    /// One for each thread; those of a shared pool are handles of one.
    pools: Vec<P>,
    /// What lies between the free intervals.
    live: Vec<P::Object>,
}

impl<P: Pool> Contestant<P> {
    /// Brings `pools` into `state`.
    pub(crate) fn new(name: &'static str, sharing: Sharing, mut pools: Vec<P>, state: State) -> Self {
        let n_filled = if sharing == Sharing::Own { pools.len() } else { 1 };
        let n_at_once = thread::available_parallelism().map_or(1, usize::from);
        let mut live = Vec::new();
        for pools in pools[..n_filled].chunks_mut(n_at_once) {
            thread::scope(|scope| {
                let fill = |pool| scope.spawn(move || fragment(pool, state));
                let filling: Vec<_> = pools.iter_mut().map(fill).collect();
                live.extend(filling.into_iter().flat_map(|thread| thread.join().unwrap()));
            });
        }
        Self { name, sharing, pools, live }
    }
}

/// Allocates twice as many objects as `pool` is to have free intervals and frees every second; those
/// that stay.
fn fragment<P: Pool>(pool: &mut P, state: State) -> Vec<P::Object> {
    // The largest first: some peers set the size of their pages by it, and start anew at a larger one.
    let largest = pool.allocate(state.max_bytes);
    pool.free(largest);
    let all = pool.fill(state.sizes(1).take(2 * state.n_free));
    let mut kept = Vec::with_capacity(state.n_free);
    for (i, object) in all.into_iter().enumerate() {
        if i % 2 == 0 {
            pool.free(object);
        } else {
            kept.push(object);
        }
    }
    kept
}

impl<P: Pool> Contest for Contestant<P> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn sharing(&self) -> Sharing {
        self.sharing
    }

    fn round(&mut self, n_threads: usize, n_pairs: usize, sizes: &Sizes) -> Duration {
        black_box(&mut self.live);
        let barrier = Barrier::new(n_threads);
        let spans: Vec<(Instant, Instant)> = thread::scope(|scope| {
            let run = |(i, pool): (usize, _)| {
                let first = i * sizes.len() / n_threads;
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    pairs(pool, sizes, first, n_pairs)
                })
            };
            let threads: Vec<_> = self.pools[..n_threads].iter_mut().enumerate().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let start = spans.iter().map(|span| span.0).min();
        let end = spans.iter().map(|span| span.1).max();
        end.zip(start).map_or(Duration::ZERO, |(end, start)| end - start)
    }

    fn n_device_calls(&mut self) -> u64 {
        let n_counted = if self.sharing == Sharing::Own { self.pools.len() } else { 1 };
        self.pools[..n_counted].iter_mut().map(Pool::n_device_calls).sum()
    }
}

/// `n` times an allocation and its free, of `sizes` in turn from the `first` on; when that began and
/// ended.
fn pairs<P: Pool>(pool: &mut P, sizes: &Sizes, first: usize, n: usize) -> (Instant, Instant) {
    let start = Instant::now();
    for i in first..first + n {
        let object = pool.allocate(black_box(sizes[i % sizes.len()]));
        pool.free(black_box(object));
    }
    (start, Instant::now())
}
