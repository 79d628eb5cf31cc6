//! Golden figures: the repository's trace, replayed on the simulator.
//!
//! A change of policy shows in the diff of `figures.txt`; `GLAKE_UPDATE_GOLDEN=1 cargo test --test
//! golden` writes it anew.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]
#![allow(clippy::cast_possible_truncation, reason = "an index below a length fits")]
#![allow(unreachable_pub, dead_code, reason = "modules shared with the example `replay`")]

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

use glake_core::driver::StreamOrder;
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::trace::{self, Event, Op};
use glake_core::units::{DeviceId, EventId, PAGE_BYTES};
use glake_testkit::caching::Caching;
use glake_testkit::replay::{self, Both, Observed, Plan, Pools, Watch};
use glake_testkit::rng::Rng;

#[path = "../../examples/replay/figures.rs"]
mod figures;
#[path = "../../examples/replay/policy.rs"]
mod policy;
#[path = "../../examples/replay/session.rs"]
mod session;
#[path = "../../examples/replay/time.rs"]
mod time;

use figures::{Checked, CheckedBytes, Figures};
use policy::{Mode, Policy};
use session::{Beside, Setup};
use time::Time;

/// The repository's traces.
const TRACES: [(&str, &str); 3] = [
    ("gpt2m_steps", concat!(env!("CARGO_MANIFEST_DIR"), "/traces/gpt2m_steps.csv.gz")),
    ("candle_gpt", concat!(env!("CARGO_MANIFEST_DIR"), "/traces/candle_gpt.csv.gz")),
    ("burn_gpt", concat!(env!("CARGO_MANIFEST_DIR"), "/traces/burn_gpt.csv.gz")),
];
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/figures.txt");

fn read(path: &str) -> Plan {
    Plan::from_events(trace::open(path).unwrap()).unwrap()
}

fn plan() -> Plan {
    read(TRACES[0].1)
}

fn setup(policy: Policy, mode: Mode) -> Setup {
    let beside = Beside { oracle: Some(()), bytes: None };
    Setup { policy, mode, cap: None, stitch_above_bytes: None, beside, delay_ns: 0, gpu_lag_ms: 0.0 }
}

/// One line of what does not depend on the machine.
fn line(figures: &Figures) -> String {
    format!(
        "{:<8} {:<8} cap {:>11}: physical {:>11}, utilization {:.4}, calls {:>5} / {:>4}, \
         driver {:>6.1} / {:>5.1} ms, longest {:>5.2} ms ({:+.2}), failed {}\n",
        figures.policy,
        figures.mode,
        figures.limit_bytes.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string()),
        figures.peak_physical_bytes,
        figures.utilization,
        figures.driver_calls,
        figures.driver_calls_last_third,
        figures.driver_ms,
        figures.driver_ms_last_third,
        figures.longest_allocation_ms,
        figures.longest_allocation_over_budget_ms,
        figures.failed_allocations,
    )
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test is told by the environment to write its golden file")]
fn the_repositorys_traces_give_the_golden_figures() {
    let runs =
        [(Policy::Caching, Mode::Default), (Policy::Glake, Mode::Default), (Policy::Glake, Mode::Compact)];
    let mut text = String::new();
    for (name, path) in TRACES {
        let plan = read(path);
        let (n, peak) = (plan.steps.len(), plan.peak_requested_bytes);
        writeln!(text, "{name}: {n} operations, peak requested {peak}").unwrap();
        for (policy, mode) in runs {
            for cap in [None, Some(1.02)] {
                let figures = Setup { cap, ..setup(policy, mode) }.on_sim(&plan).unwrap().figures;
                assert_eq!(figures.check, Some(Checked::default()), "{name} {policy:?} {mode:?} {cap:?}");
                assert_eq!(figures.failed_frees, 0);
                text += &line(&figures);
            }
        }
    }
    if env::var("GLAKE_UPDATE_GOLDEN").is_ok() {
        fs::write(GOLDEN, &text).unwrap();
    }
    let golden = fs::read_to_string(Path::new(GOLDEN)).unwrap_or_default();
    assert_eq!(text, golden, "GLAKE_UPDATE_GOLDEN=1 accepts the new figures");
}

/// On the whole run the model reserves to the byte what `PyTorch` reserved; on this cut it reserves
/// the following.
#[test]
fn caching_reserves_what_pytorch_reserves() {
    const KNOWN_BYTES: u64 = 17_152_606_208;
    let figures = setup(Policy::Caching, Mode::Default).on_sim(&plan()).unwrap().figures;
    let off_bytes = figures.peak_physical_bytes.abs_diff(KNOWN_BYTES);
    assert!(
        off_bytes <= KNOWN_BYTES / 50,
        "{} is not within 2 % of {KNOWN_BYTES}",
        figures.peak_physical_bytes
    );
}

/// Real bytes under a device that lags: gathers happen while kernels that use the old addresses
/// are pending, and each allocation keeps its pattern until it is freed.
#[test]
fn no_byte_is_lost_in_gathers_under_pending_work() {
    let plan = Plan::from_events(crossing_lifetimes(90).into_iter().map(Ok)).unwrap();
    let beside = Beside { oracle: Some(()), bytes: Some(()) };
    let delays = Setup { beside, delay_ns: 20_000, gpu_lag_ms: 2.0, ..setup(Policy::Glake, Mode::Compact) };
    let figures = delays.on_sim(&plan).unwrap().figures;
    assert_eq!(figures.check, Some(Checked::default()));
    let CheckedBytes { corrupted_words, pending_gathers } = figures.bytes.unwrap();
    assert_eq!(corrupted_words, 0);
    assert!(pending_gathers >= 3, "{pending_gathers} gathers under pending work");
}

/// An event recorded at time t of the trace passes at t and the lag, whatever driver calls cost meanwhile.
#[test]
fn the_gpu_lags_behind_in_the_traces_time() {
    let allocate = |id, at_us| Event { op: Op::Allocate { bytes: 40 << 20, stream: 0 }, id, at_us };
    let events = [(0, 0), (1, 4_990), (2, 5_000)].map(|(id, at_us)| Ok(allocate(id, at_us)));
    let plan = Plan::from_events(events).unwrap();
    let sim = Arc::new(SimConfig::h200(1).completion(Completion::Lag(5_000_000)).build());
    let stream = sim.create_stream(DeviceId(0)).unwrap();
    let pool = Caching::new(sim.clone(), DeviceId(0), u64::MAX);
    let mut pools = Pools::shared(vec![stream], Box::new(pool));
    let asks = Asks { sim: sim.clone(), event: None, answers: Vec::new() };
    let mut watch = Both(Time::new(sim, &plan), asks);
    replay::run(&plan, &mut pools, &mut watch);
    assert_eq!(watch.1.answers, [false, true]);
}

/// Records an event at the first operation and asks for it at each later one.
struct Asks {
    sim: Arc<SimDriver>,
    event: Option<EventId>,
    answers: Vec<bool>,
}

impl Watch for Asks {
    fn see(&mut self, _: usize, _: &Pools, observed: Observed<'_>) {
        if let Observed::Allocating(request) = observed {
            match self.event {
                None => self.event = Some(self.sim.record(request.stream).unwrap()),
                Some(event) => self.answers.push(self.sim.query(event).unwrap()),
            }
        }
    }
}

/// Made-up streams free what one stream frees, and share what they free.
#[test]
fn made_up_streams_have_figures() {
    let events = crossing_lifetimes(90);
    let plan = Plan::from_events(events.into_iter().map(Ok)).unwrap();
    let alone = setup(Policy::Glake, Mode::Default).on_sim(&plan).unwrap().figures;
    let plan = plan.round_robin(8);
    let turns = setup(Policy::Glake, Mode::Default).on_sim(&plan).unwrap().figures;
    assert_eq!((turns.n_streams, turns.check), (8, Some(Checked::default())));
    assert_eq!((turns.freed_bytes, turns.synchronizations), (alone.freed_bytes, 0));
    assert!(turns.freed_bytes > 80 * PAGE_BYTES && alone.waits == 0, "{alone:?}");
    assert!(turns.events > 0 && turns.events_per_16mib_freed > 0.0, "{turns:?}");
}

/// A few pages at a time, freed out of order, so that free pages lie scattered.
fn crossing_lifetimes(n: u64) -> Vec<Event> {
    let mut rng = Rng::new(3);
    let mut events = Vec::new();
    let mut live = Vec::new();
    for id in 0..n {
        let bytes = rng.between(1, 5) * PAGE_BYTES;
        events.push(Event { op: Op::Allocate { bytes, stream: 0 }, id, at_us: 100 * id });
        live.push(id);
        while live.len() as u64 > 4 + id % 5 {
            let id = live.swap_remove(rng.below(live.len() as u64) as usize);
            events.push(Event { op: Op::Free, id, at_us: events.len() as u64 });
        }
    }
    events
}
