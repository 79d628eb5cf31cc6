//! What threads of the host copy together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Builder};

use super::MemcpyRate;
use super::budget::Miss;
use super::fit::{Sample, median};

/// How often each number of threads is timed.
const N_ROUNDS: usize = 3;
/// How often each thread copies its part in a round, at most. The more threads, the shorter one pass.
const MAX_PASSES: usize = 4;

/// Nanoseconds, for threads to ask for.
pub(super) type Clock<'a> = &'a (dyn Fn() -> u64 + Sync);

/// The rates of 1, 2, 4 and so on to `n_cpus` threads that copy from `src`, which is longer, to `dst`; begins nothing
/// after `end_ns`. The second value says which number of threads was not measured, with all larger ones, and why.
pub(super) fn rates(
    dst: &mut [u8],
    src: &[u8],
    n_cpus: u64,
    clock: Clock<'_>,
    end_ns: u64,
) -> (Vec<MemcpyRate>, Option<(u64, Miss)>) {
    let mut rates = Vec::new();
    for n_threads in numbers(n_cpus) {
        match rate(dst, src, n_threads, clock, end_ns) {
            Ok(bytes_per_ms) => rates.push(MemcpyRate { n_threads, bytes_per_ms }),
            Err(miss) => return (rates, Some((n_threads, miss))),
        }
    }
    (rates, None)
}

/// Powers of two below `n`, and `n`.
fn numbers(n: u64) -> Vec<u64> {
    let powers = (0..u64::BITS).map(|shift| 1 << shift);
    powers.take_while(|power| *power < n).chain([n.max(1)]).collect()
}

fn rate(dst: &mut [u8], src: &[u8], n_threads: u64, clock: Clock<'_>, end_ns: u64) -> Result<u64, Miss> {
    let n = usize::try_from(n_threads).unwrap_or(usize::MAX);
    let mut rounds = Vec::with_capacity(N_ROUNDS);
    let mut bytes = 0;
    for _ in 0..N_ROUNDS {
        if clock() >= end_ns {
            break;
        }
        let sample = round(dst, src, n, clock).ok_or(Miss::Untimed)?;
        bytes = sample.bytes;
        rounds.push(sample.ns);
        if sample.ns == 0 {
            return Err(Miss::Untimed);
        }
    }
    if rounds.is_empty() {
        return Err(Miss::Budget);
    }
    Sample { bytes, ns: median(&rounds) }.bytes_per_ms().ok_or(Miss::Untimed)
}

/// Copies once, from when all threads are there to the end of the last one. `None` where there cannot be so many.
fn round(dst: &mut [u8], src: &[u8], n: usize, clock: Clock<'_>) -> Option<Sample> {
    let part = dst.len().div_ceil(n).max(1);
    let n_passes = n.min(MAX_PASSES);
    let (n_ready, may_go) = (AtomicUsize::new(0), AtomicBool::new(false));
    let bytes = (dst.len() * n_passes) as u64;
    let spread = src.len().saturating_sub(dst.len()) / n_passes;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (at, dst) in dst.chunks_mut(part).enumerate() {
            let (n_ready, may_go) = (&n_ready, &may_go);
            let copy = move || {
                n_ready.fetch_add(1, Ordering::Release);
                while !may_go.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                for pass in 0..n_passes {
                    let from = at * part + pass * spread;
                    if let Some(src) = src.get(from..from + dst.len()) {
                        dst.copy_from_slice(src);
                    }
                    std::hint::black_box(&mut *dst);
                }
                clock()
            };
            let Ok(thread) = Builder::new().spawn_scoped(scope, copy) else {
                may_go.store(true, Ordering::Release);
                return None;
            };
            threads.push(thread);
        }
        while n_ready.load(Ordering::Acquire) < threads.len() {
            thread::yield_now();
        }
        let start_ns = clock();
        may_go.store(true, Ordering::Release);
        let ends = threads.into_iter().filter_map(|thread| thread.join().ok());
        Some(Sample { bytes, ns: ends.max()?.saturating_sub(start_ns) })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const KIB: usize = 1 << 10;

    /// A clock that is read once for the budget, once for the start and once by each thread of a round, and goes on by
    /// `step_ns` each time.
    fn measured(n_cpus: u64, step_ns: u64, end_ns: u64) -> (Vec<MemcpyRate>, Option<(u64, Miss)>) {
        let now_ns = AtomicU64::new(0);
        let clock = || now_ns.fetch_add(step_ns, Ordering::SeqCst);
        let (mut dst, src) = (vec![0; 64 * KIB], vec![7; 96 * KIB]);
        let (rates, missing) = rates(&mut dst, &src, n_cpus, &clock, end_ns);
        assert!(rates.is_empty() || dst == src[..64 * KIB], "all of it is copied");
        (rates, missing)
    }

    #[test]
    fn rates_by_the_clock_it_is_given() {
        // With n threads the last of them ends n steps behind the start, and min(n, 4) passes are done.
        let bytes = 64 << 10;
        let (rates, missing) = measured(6, 1_000_000, u64::MAX);
        let rates: Vec<_> = rates.iter().map(|rate| (rate.n_threads, rate.bytes_per_ms)).collect();
        assert_eq!(rates, [(1, bytes), (2, bytes), (4, bytes), (6, bytes * 4 / 6)]);
        assert_eq!(missing, None);
    }

    #[test]
    fn a_clock_that_stands_still_tells_nothing() {
        assert_eq!(measured(4, 0, u64::MAX), (vec![], Some((1, Miss::Untimed))));
    }

    #[test]
    fn nothing_begins_after_the_end() {
        assert_eq!(measured(4, 1000, 0), (vec![], Some((1, Miss::Budget))));
        // Nine readings for one thread; one more round of two threads may begin.
        let (rates, missing) = measured(4, 1000, 10_000);
        assert_eq!((rates.len(), missing), (2, Some((4, Miss::Budget))));
    }

    #[test]
    fn powers_of_two_and_all() {
        assert_eq!(numbers(0), [1]);
        assert_eq!(numbers(1), [1]);
        assert_eq!(numbers(8), [1, 2, 4, 8]);
        assert_eq!(numbers(12), [1, 2, 4, 8, 12]);
    }
}
