//! Traces of requests through the books of a KV cache: hits, time, waste.
//!
//!     cargo run --release --example kv_replay -- [--json] --trace FILE [--pool N]
#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::cast_precision_loss, reason = "figures are shown with few digits")]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use glake::kvcache::policy::{Lru, Segmented};

use args::{Args, Order};
use replay::{Round, round};
use trace::Trace;

mod args;
mod replay;
mod trace;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What is printed.
#[derive(Debug, serde::Serialize)]
struct Figures<'a> {
    trace: &'a str,
    kind: &'a str,
    policy: Order,
    pool_blocks: u32,
    block_tokens: u32,
    hashed_tokens_per_block: u32,
    running: usize,
    requests: usize,
    refused: u64,
    block_refs: u64,
    hit_blocks: u64,
    hit_rate: f64,
    ns_per_block_ref: f64,
    evictions: u64,
    waste: f64,
    rounds: usize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv_replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome<()> {
    let trace = Trace::read(&args.trace, args.block_tokens, args.whole)?;
    let name = args.trace.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let once = || match args.policy {
        Order::Lru => round(&trace, args.pool, Lru::default(), args.running),
        Order::Segmented => round(&trace, args.pool, Segmented::default(), args.running),
    };
    let mut best = once()?;
    for _ in 1..args.rounds {
        let next = once()?;
        best.time = best.time.min(next.time);
    }
    let figures = figures(args, &name, &trace, &best);
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        figures.show();
    }
    Ok(())
}

fn figures<'a>(args: &Args, name: &'a str, trace: &Trace, best: &Round) -> Figures<'a> {
    let per = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
    let counts = best.stats.counts;
    Figures {
        trace: name,
        kind: trace.kind,
        policy: args.policy,
        pool_blocks: args.pool,
        block_tokens: trace.block_tokens,
        hashed_tokens_per_block: trace.kept_tokens,
        running: args.running.max(1),
        requests: trace.requests.len(),
        refused: best.refused,
        block_refs: best.block_refs,
        hit_blocks: counts.hit_blocks,
        hit_rate: per(counts.hit_blocks, best.block_refs),
        ns_per_block_ref: best.time.as_nanos() as f64 / best.block_refs.max(1) as f64,
        evictions: counts.evictions,
        waste: best.waste,
        rounds: args.rounds.max(1),
    }
}

impl Figures<'_> {
    fn show(&self) {
        println!(
            "{} ({}), {} blocks of {} tokens",
            self.trace, self.kind, self.pool_blocks, self.block_tokens
        );
        println!("requests               {:>10}, {} refused", self.requests, self.refused);
        println!("block references       {:>10}", self.block_refs);
        println!("found                  {:>10.2} %", 100.0 * self.hit_rate);
        println!("evictions              {:>10}", self.evictions);
        println!("waste                  {:>10.2} %", 100.0 * self.waste);
        println!(
            "host time a reference  {:>10.1} ns, fastest of {} rounds",
            self.ns_per_block_ref, self.rounds
        );
    }
}
