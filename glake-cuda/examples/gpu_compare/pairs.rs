//! Warm allocation and free: glake's pool beside `cuMemAllocAsync` and `cuMemFreeAsync`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use glake_core::alloc::{Allocator, Request};
use glake_core::units::DevicePtr;
use glake_testkit::rng::Rng;
use glake_vmm::{Config, StitchPool};

use crate::{DEVICE, Machine, bar, median, raw};

/// Rounds of either side, in turn; the first few warm up.
const ROUNDS: usize = 25;
const WARM_UP: usize = 4;
/// Pairs in a round.
const PAIRS: usize = 4000;
const LIVE: usize = 2000;

/// Something to allocate from, on one stream.
trait Side {
    fn allocate(&mut self, bytes: u64) -> Result<u64, Box<dyn Error>>;
    fn free(&mut self, at: u64) -> Result<(), Box<dyn Error>>;
}

struct Pool<'a>(&'a Machine, StitchPool);

impl Side for Pool<'_> {
    fn allocate(&mut self, bytes: u64) -> Result<u64, Box<dyn Error>> {
        Ok(self.1.allocate(Request::new(bytes, self.0.id))?.ptr.0)
    }

    fn free(&mut self, at: u64) -> Result<(), Box<dyn Error>> {
        Ok(self.1.free(DevicePtr(at), self.0.id)?)
    }
}

struct Async<'a>(&'a Machine);

impl Side for Async<'_> {
    fn allocate(&mut self, bytes: u64) -> Result<u64, Box<dyn Error>> {
        raw::allocate_async(self.0, usize::try_from(bytes)?)
    }

    fn free(&mut self, at: u64) -> Result<(), Box<dyn Error>> {
        raw::free_async(self.0, at)
    }
}

/// Live allocations: address and size.
type Live = Vec<(u64, u64)>;

/// One round of a side; returns nanoseconds a pair.
type Turn<'a> = &'a mut dyn FnMut(&mut dyn Side, &mut Live, u64) -> Result<f64, Box<dyn Error>>;

/// One pair after another: each size is allocated and freed at once.
fn at_once(side: &mut dyn Side, sizes: &[u64]) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for bytes in sizes.iter().cycle().take(PAIRS) {
        let at = side.allocate(*bytes)?;
        side.free(at)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

/// Two random live allocations are freed and allocated anew, in the other order, so that sizes
/// move about; again and again.
fn in_exchange(side: &mut dyn Side, live: &mut Live, seed: u64) -> Result<f64, Box<dyn Error>> {
    let mut rng = Rng::new(seed);
    let n = live.len();
    let mut pick = || usize::try_from(rng.below(n as u64)).unwrap_or(0);
    let picks: Vec<(usize, usize)> = (0..PAIRS / 2).map(|_| (pick(), pick())).collect();
    let picks: Vec<_> = picks.into_iter().map(|(i, j)| (i, if i == j { (j + 1) % n } else { j })).collect();
    let start = Instant::now();
    for (i, j) in picks {
        let [(a, a_bytes), (b, b_bytes)] = [live[i], live[j]];
        side.free(a)?;
        side.free(b)?;
        live[j] = (side.allocate(b_bytes)?, b_bytes);
        live[i] = (side.allocate(a_bytes)?, a_bytes);
    }
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

/// glake's pool, `cuMemAllocAsync`, and what lives in each.
struct Sides<'a> {
    machine: &'a Machine,
    pool: Pool<'a>,
    own: Async<'a>,
    live: [Live; 2],
}

impl Sides<'_> {
    /// The medians of rounds of one and the other in turn, in nanoseconds a pair.
    fn rounds(&mut self, turn: Turn<'_>) -> Result<[f64; 2], Box<dyn Error>> {
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            let ns = [
                turn(&mut self.pool, &mut self.live[0], round as u64 % 2)?,
                turn(&mut self.own, &mut self.live[1], round as u64 % 2)?,
            ];
            self.machine.stream.synchronize()?;
            if round >= WARM_UP {
                figures.iter_mut().zip(ns).for_each(|(figures, ns)| figures.push(ns));
            }
        }
        Ok(figures.map(median))
    }

    fn live(&mut self, sizes: &[u64]) -> Result<(), Box<dyn Error>> {
        for &bytes in sizes {
            self.live[0].push((self.pool.allocate(bytes)?, bytes));
            self.live[1].push((self.own.allocate(bytes)?, bytes));
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), Box<dyn Error>> {
        for (at, _) in std::mem::take(&mut self.live[1]) {
            self.own.free(at)?;
        }
        raw::give_back(self.machine)
    }
}

/// Prints a line and returns how many times faster the pool is.
fn line(what: &str, [pool, own]: [f64; 2]) -> f64 {
    println!("  {what:<34} {pool:>8.1} {own:>10.1} {:>8.1}x", own / pool);
    own / pool
}

/// Prints a table of pairs.
pub(crate) fn compare(machine: &Machine) -> Result<(), Box<dyn Error>> {
    raw::keep_all(machine)?;
    println!("pairs of allocation and free, ns             pool  cuMem..Async");
    let pool = StitchPool::new(Arc::new(machine.driver.clone()), Config::new(DEVICE))?;
    let pool = Pool(machine, pool);
    let mut sides = Sides { machine, pool, own: Async(machine), live: Default::default() };

    let mut least = f64::INFINITY;
    for bytes in [1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20] {
        let ns = sides.rounds(&mut |side, _, _| at_once(side, &[bytes]))?;
        least = least.min(line(&format!("nothing else live, {} KiB", bytes >> 10), ns));
    }
    bar("pairs, nothing else live, the least of all sizes", least, 6.0);

    let mut rng = Rng::new(1);
    let mut sizes = |n: usize| (0..n).map(|_| rng.log_between(512, 16 << 20)).collect::<Vec<u64>>();
    sides.live(&sizes(LIVE))?;
    let mixed = sizes(256);
    let ns = sides.rounds(&mut |side, _, _| at_once(side, &mixed))?;
    let mut least = line("2,000 live, mixed sizes, at once", ns);
    let misses = sides.pool.1.stats().n_misses;
    let ns = sides.rounds(&mut |side, live, seed| in_exchange(side, live, seed))?;
    least = least.min(line("2,000 live, mixed, in exchange", ns));
    println!("  misses of the pool in exchange: {}", sides.pool.1.stats().n_misses - misses);
    bar("pairs, 2,000 live, the least of both", least, 15.0);
    println!("  {}", sides.pool.1.stats());
    sides.end()
}
