//! Host time of an allocation and its free: glake's pool beside its peers, without a GPU.
//!
//! All pools lie over a storage that hands out addresses and counts, so that only their own books are
//! measured. Rounds of the contestants take turns, so that noise of the machine hits all of them.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a benchmark panics to fail")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::cast_precision_loss, reason = "ratios of counts and times")]

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;

mod contest;
mod cubecl;
mod glake;
mod ledger;
mod offset;
mod report;

use contest::Sharing::{Own, Shared};
use contest::{Contest, Contestant, Sizes, State};
use report::Row;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Many and short, so that other programs on the machine hit few of them.
const N_ROUNDS: usize = 101;
const ROUND: Duration = Duration::from_millis(2);
/// To have every size served once, and the clock of the processor up.
const WARM_UP: Duration = Duration::from_millis(200);

/// Host time of glake's pool beside its peers.
#[derive(Parser)]
struct Args {
    /// Free intervals in the pools.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000, 100_000])]
    free: Vec<usize>,
    /// Threads that work at a time.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8])]
    threads: Vec<usize>,
    /// Where to write the figures as JSON lines.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() {
    let args = Args::parse();
    let mut json = args.json.map(|path| File::create(path).unwrap());
    let n_pools = args.threads.iter().copied().max().unwrap_or(1);
    report::print_head();
    for (mix, min_bytes, max_bytes) in
        [("1-64 KiB", KIB, 64 * KIB - 1), ("256 KiB-8 MiB", 256 * KIB, 8 * MIB - 1)]
    {
        for &n_free in &args.free {
            let state = State { min_bytes, max_bytes, n_free };
            let mut contestants = contestants(state, n_pools);
            for &n_threads in &args.threads {
                let rows = measure(&mut contestants, state, n_threads, mix);
                report::print(&rows);
                for row in &rows {
                    if let Some(json) = &mut json {
                        writeln!(json, "{}", serde_json::to_string(row).unwrap()).unwrap();
                    }
                }
            }
        }
    }
}

/// All that can be brought into `state`, each with pools for `n` threads.
fn contestants(state: State, n: usize) -> Vec<Box<dyn Contest>> {
    let mut contestants: Vec<Box<dyn Contest>> = vec![
        Box::new(Contestant::new("glake", Own, glake::own(n), state)),
        Box::new(Contestant::new("glake", Shared, glake::shared(n), state)),
        Box::new(Contestant::new("offset-allocator", Own, offset::own(n), state)),
        Box::new(Contestant::new("offset-allocator", Shared, offset::shared(n), state)),
        Box::new(Contestant::new("cubecl adaptive", Own, cubecl::adaptive(n), state)),
    ];
    if state.n_free <= cubecl::MAX_EXCLUSIVE {
        contestants.push(Box::new(Contestant::new("cubecl exclusive", Own, cubecl::exclusive(n), state)));
    }
    contestants
}

/// Warms every contestant up, then lets them take turns.
fn measure(
    contestants: &mut [Box<dyn Contest>],
    state: State,
    n_threads: usize,
    mix: &'static str,
) -> Vec<Row> {
    let sizes = state.pair_sizes();
    let n_pairs: Vec<usize> =
        contestants.iter_mut().map(|contestant| warm_up(contestant.as_mut(), n_threads, &sizes)).collect();
    let calls_before: Vec<u64> =
        contestants.iter_mut().map(|contestant| contestant.n_device_calls()).collect();
    let mut rounds_ns = vec![Vec::new(); contestants.len()];
    for round in 0..N_ROUNDS {
        for turn in 0..contestants.len() {
            let i = (round + turn) % contestants.len();
            let wall = contestants[i].round(n_threads, n_pairs[i], &sizes);
            rounds_ns[i].push(wall.as_nanos() as f64 / (n_pairs[i] * n_threads) as f64);
        }
    }
    let mut rows = Vec::new();
    for (i, contestant) in contestants.iter_mut().enumerate() {
        let n_calls = contestant.n_device_calls() - calls_before[i];
        rows.push(Row {
            mix,
            n_free: state.n_free,
            n_threads,
            contestant: contestant.name(),
            sharing: contestant.sharing(),
            ns_per_pair: report::median(&rounds_ns[i]),
            to_glake: f64::NAN,
            device_calls_per_pair: n_calls as f64 / (N_ROUNDS * n_pairs[i] * n_threads) as f64,
            rounds_ns: std::mem::take(&mut rounds_ns[i]),
        });
    }
    report::compare(&mut rows);
    rows
}

/// Lets `contestant` run for a while; the pairs of each thread that fill a round.
fn warm_up(contestant: &mut dyn Contest, n_threads: usize, sizes: &Sizes) -> usize {
    let start = Instant::now();
    let mut n_pairs = 1;
    loop {
        // The shortest of a few: one in which a thread had to wait says nothing.
        let walls = (0..5).map(|_| contestant.round(n_threads, n_pairs, sizes));
        let is_filled = walls.min().is_some_and(|wall| wall >= ROUND);
        if is_filled && start.elapsed() >= WARM_UP {
            return n_pairs;
        }
        if !is_filled {
            n_pairs *= 2;
        }
    }
}
