//! Background steps, driven by hand, and the mode in which handles stay where they are.

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::{Call, Driver, VirtualMemory};
use glake_core::sim::{Completion, SimConfig};

use super::rig::{DEVICE, MIB, Rig};
use crate::{Mode, Step};

fn n(rig: &Rig, call: Call) -> u64 {
    rig.sim.ledger(DEVICE).unwrap().n(call)
}

/// Makes `rig` gather again and again.
fn churn(rig: &mut Rig) {
    for i in 0..200 {
        let sizes = [(3 + i % 5) * 2 * MIB, (2 + i % 3) * 2 * MIB, (4 + i % 7) * 2 * MIB];
        let made = sizes.map(|bytes| rig.allocate(bytes));
        let kept = rig.allocate(2 * MIB);
        made.into_iter().for_each(|ptr| rig.free(ptr));
        rig.allocate(24 * MIB);
        rig.free(kept);
        let last = rig.live.last().unwrap().ptr;
        rig.free(last);
    }
}

#[test]
fn steps_unmap_what_requests_would() {
    let mut rig = Rig::manual(|config| config.limit_bytes(64 * MIB));
    rig.pool.leave_to_steps();
    churn(&mut rig);
    let has_much = |rig: &Rig| rig.pool.stats().stale_bytes > 2 * rig.pool.stats().reserved_bytes;
    assert!(has_much(&rig), "the program leaves mappings behind: {:?}", rig.pool.stats());
    let before = n(&rig, Call::Unmap);
    assert_eq!(rig.pool.step(), Ok(Step::Idle), "work that uses them is pending");
    assert_eq!(n(&rig, Call::Unmap), before);
    rig.sim.complete_all();
    while rig.pool.step().unwrap() == Step::Unmapped {
        rig.check();
    }
    assert!(n(&rig, Call::Unmap) > before);
    assert!(!has_much(&rig));
    rig.free_all();
    rig.finish();
}

#[test]
fn without_steps_a_miss_unmaps_some() {
    let mut rig = Rig::manual(|config| config.limit_bytes(64 * MIB));
    churn(&mut rig);
    rig.sim.complete_all();
    let (unmaps, misses) = (n(&rig, Call::Unmap), rig.pool.stats().n_misses);
    rig.allocate(64 * MIB);
    assert_eq!(rig.pool.stats().n_misses, misses + 1);
    assert!(n(&rig, Call::Unmap) > unmaps);
    rig.free_all();
    rig.finish();
}

#[test]
fn headroom_is_created_ahead_so_that_a_request_needs_no_driver() {
    let mut rig = Rig::immediate(|config| config.headroom_bytes(20 * MIB));
    let mut n_steps = 0;
    while rig.pool.step().unwrap() == Step::Grew {
        n_steps += 1;
        rig.check();
    }
    assert_eq!(n_steps, 3, "8 MiB a step");
    assert_eq!(rig.pool.stats().reserved_bytes, 24 * MIB);
    let before = rig.sim.ledger(DEVICE).unwrap().n_calls();
    rig.allocate(20 * MIB);
    assert_eq!(rig.sim.ledger(DEVICE).unwrap().n_calls(), before);
    assert_eq!(rig.pool.step(), Ok(Step::Grew), "and it is made up for");
    rig.free_all();
    rig.check();
    rig.finish();
}

#[test]
fn headroom_stays_within_the_limit() {
    let mut rig = Rig::immediate(|config| config.headroom_bytes(20 * MIB).limit_bytes(10 * MIB));
    while rig.pool.step().unwrap() == Step::Grew {}
    assert_eq!(rig.pool.stats().reserved_bytes, 10 * MIB);
    rig.finish();
}

#[test]
fn memory_is_given_back_where_others_are_short_of_it() {
    let sim = SimConfig::h200(1).memory_bytes(64 * MIB).completion(Completion::Manual);
    let mut rig = Rig::new(sim, |config| config.leave_bytes(32 * MIB));
    let (kept, freed) = (rig.allocate(8 * MIB), rig.allocate(40 * MIB));
    assert_eq!(rig.pool.step(), Ok(Step::Idle), "all of it is used");
    rig.free(freed);
    assert_eq!(rig.pool.step(), Ok(Step::Idle), "the device is not done with it");
    rig.sim.complete_all();
    let _ = rig.pool.trim(u64::MAX);
    rig.pool
        .order
        .ensure_event(rig.pool.order.tag(crate::order::StreamIndex::from_index(1)), &*rig.spy)
        .unwrap();
    rig.sim.complete_all();
    let mut n_steps = 0;
    while rig.pool.step().unwrap() == Step::Shrank {
        n_steps += 1;
        rig.check();
    }
    assert!(n_steps >= 2, "one handle at a time");
    let free_bytes = rig.sim.memory_info(DEVICE).unwrap().free_bytes;
    assert!((32 * MIB..42 * MIB).contains(&free_bytes), "no more than that: {free_bytes}");
    rig.free(kept);
    rig.finish();
}

#[test]
fn headroom_takes_nothing_that_others_are_to_be_left() {
    let sim = SimConfig::h200(1).memory_bytes(64 * MIB);
    let mut rig = Rig::new(sim, |config| config.headroom_bytes(48 * MIB).leave_bytes(46 * MIB));
    let n_grown = (0..9).take_while(|_| rig.pool.step().unwrap() == Step::Grew).count();
    assert_eq!(n_grown, 3, "8 MiB a step, and then there is nothing to do");
    assert_eq!(rig.sim.memory_info(DEVICE).unwrap().free_bytes, 46 * MIB);
    rig.finish();
}

#[test]
fn pinned_memory_is_never_mapped_twice() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Pinned).limit_bytes(256 * MIB));
    churn(&mut rig);
    let stats = rig.pool.stats();
    assert_eq!((stats.n_stitches, stats.stale_bytes, stats.n_revived), (0, 0, 0));
    rig.pool.defragment().unwrap();
    assert_eq!(rig.pool.stats().n_stitches, 0);
    rig.check();
    rig.finish();
}

#[test]
fn a_pinned_pool_that_is_out_of_memory_gave_its_spare_unit_away() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Pinned).limit_bytes(8 * MIB));
    rig.allocate(6 * MIB);
    for _ in 0..3 {
        let small = rig.allocate(600);
        rig.free(small);
        let refused = rig.try_allocate(rig.request(4 * MIB));
        assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
        rig.check();
    }
    rig.free_all();
    rig.finish();
}

#[test]
fn pinned_memory_that_is_cut_up_is_created_anew() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Pinned).limit_bytes(32 * MIB));
    let all: Vec<_> = (0..8).map(|_| rig.allocate(4 * MIB)).collect();
    for ptr in all.iter().step_by(2) {
        rig.free(*ptr);
    }
    rig.allocate(14 * MIB);
    rig.check();
    assert_eq!(rig.pool.stats().n_stitches, 0);
    assert!(rig.physical_bytes() <= 32 * MIB);
    rig.free_all();
    rig.finish();
}
