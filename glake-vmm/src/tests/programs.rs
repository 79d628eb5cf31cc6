//! Random programs with every invariant checked, under work that is done early or late.

use glake_core::alloc::AllocError;
use glake_core::sim::{Completion, SimConfig};
use glake_core::units::DevicePtr;
use glake_testkit::program::{programs, seeded};
use glake_testkit::rng::Rng;
use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};

use super::rig::{Rig, Step, step};
use crate::{Config, Mode};

const MEMORY_BYTES: u64 = 1 << 30;

type Outcomes = Vec<Result<DevicePtr, AllocError>>;

/// Runs `steps`, with all checks after every `check_every` of them and at the end.
fn run(mut rig: Rig, steps: impl Iterator<Item = Step>, check_every: usize) -> Outcomes {
    let mut outcomes = Vec::new();
    for (i, step) in steps.enumerate() {
        if let Some(outcome) = rig.step(step) {
            let typed = matches!(
                outcome,
                Ok(_) | Err(AllocError::ZeroBytes | AllocError::OutOfMemory(_) | AllocError::TooLarge { .. })
            );
            assert!(typed, "{step:?}: {outcome:?}");
            outcomes.push(outcome);
        }
        if (i + 1) % check_every == 0 {
            rig.check();
        }
    }
    rig.check();
    rig.free_all();
    rig.check();
    // Invariant 10: with nothing live, everything is clean but the spare unit.
    rig.pool.give_up_spares();
    assert_eq!(rig.pool.blocks.clean_bytes(), rig.pool.physical_bytes());
    rig.finish();
    outcomes
}

fn long(seed: u64, n: usize, max_bytes: u64) -> impl Iterator<Item = Step> {
    let mut rng = Rng::new(seed);
    seeded(seed, n).into_iter().map(move |action| step(action, rng.next(), rng.next(), max_bytes))
}

fn small_device(completion: Completion, mode: Mode) -> Rig {
    let sim = SimConfig::h200(1).memory_bytes(MEMORY_BYTES).completion(completion);
    Rig::new(sim, |config| config.mode(mode))
}

fn short_programs(completion: Completion, mode: Mode) {
    let cases = Cases { cases: 24, failure_persistence: None, ..Cases::default() };
    let steps = (programs(90), any::<u64>());
    let run_one = |(program, seed): (Vec<_>, u64)| {
        let mut rng = Rng::new(seed);
        let steps = program.into_iter().map(|action| step(action, rng.next(), rng.next(), MEMORY_BYTES / 4));
        run(small_device(completion, mode), steps, 1);
        Ok(())
    };
    TestRunner::new(cases).run(&steps, run_one).unwrap();
}

#[test]
fn short_programs_with_work_done_late() {
    short_programs(Completion::Manual, Mode::Default);
}

#[test]
fn short_programs_with_work_done_late_in_compact_mode() {
    short_programs(Completion::Manual, Mode::Compact);
}

#[test]
fn short_programs_with_work_done_at_once() {
    short_programs(Completion::Immediate, Mode::Default);
}

#[test]
fn short_programs_with_work_done_after_a_lag() {
    short_programs(Completion::Lag(3_000_000), Mode::Default);
}

#[test]
fn long_programs_on_a_small_device() {
    for (seed, mode) in [(1, Mode::Default), (2, Mode::Compact)] {
        run(small_device(Completion::Manual, mode), long(seed, 5000, MEMORY_BYTES / 4), 500);
    }
}

#[test]
fn long_programs_with_requests_up_to_64_gib() {
    for stitch_above_bytes in [0, 20 << 30] {
        let set = |config: Config| config.stitch_above_bytes(stitch_above_bytes);
        run(Rig::manual(set), long(3, 250, 64 << 30), 250);
    }
}

#[test]
fn same_operations_and_same_completion_order_give_same_addresses() {
    for mode in [Mode::Default, Mode::Compact] {
        let steps = || long(7, 3000, MEMORY_BYTES / 4);
        let once = || run(small_device(Completion::Manual, mode), steps(), usize::MAX);
        assert_eq!(once(), once());
    }
}
