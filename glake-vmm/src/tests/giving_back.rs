//! Trim, limit, defragment, the spare unit, and stitching only when memory is short.

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::{Call, Driver};
use glake_core::units::{DevicePtr, PAGE_BYTES};

use super::rig::{DEVICE, MIB, Rig};
use crate::Mode;

fn n_calls(rig: &Rig) -> u64 {
    rig.sim.ledger(DEVICE).unwrap().n_calls()
}

#[test]
fn trim_takes_the_longest_clean_run_first_and_stops_in_time() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    let blocks: Vec<DevicePtr> = [3, 1, 20, 1, 5, 1].iter().map(|n| rig.allocate(n * 2 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    assert_eq!(rig.pool.trim(28 * PAGE_BYTES).unwrap(), 3 * PAGE_BYTES);
    rig.check();
    // Three pages from the high end of the run of twenty.
    assert_eq!(rig.pool.slots.holes().collect::<Vec<_>>(), [21..24]);
    assert_eq!(rig.pool.trim(0).unwrap(), 25 * PAGE_BYTES);
    assert_eq!(rig.physical_bytes(), 3 * PAGE_BYTES, "what is live");
    rig.check();
}

#[test]
fn trim_keeps_what_shares_a_handle_with_something_live() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    let low = rig.allocate(MIB);
    let high = rig.allocate(5 * MIB);
    rig.free(high);
    assert_eq!(rig.pool.trim(0).unwrap(), 2 * PAGE_BYTES);
    assert_eq!(rig.pool.stats().largest_free_bytes, MIB);
    rig.free(low);
    assert_eq!(rig.pool.trim(0).unwrap(), PAGE_BYTES);
    rig.check();
}

#[test]
fn a_limit_is_exact_to_the_page() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(10 * MIB + 1));
    rig.allocate(10 * MIB);
    let Err(AllocError::OutOfMemory(report)) = rig.try_allocate(rig.request(1)) else { panic!("no limit") };
    assert_eq!((report.limit_bytes, report.reserved_bytes, report.free_bytes), (10 * MIB + 1, 10 * MIB, 0));
    assert_eq!(rig.pool.set_limit_bytes(12 * MIB).unwrap(), 0);
    rig.allocate(2 * MIB);
    rig.try_allocate(rig.request(512)).unwrap_err();
    rig.check();
}

#[test]
fn a_lower_limit_gives_back_what_is_free_and_keeps_what_is_live() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    let (live, free) = (rig.allocate(6 * MIB), rig.allocate(20 * MIB));
    rig.free(free);
    assert_eq!(rig.pool.set_limit_bytes(10 * MIB).unwrap(), 16 * MIB);
    assert_eq!(rig.pool.set_limit_bytes(2 * MIB).unwrap(), 4 * MIB);
    assert_eq!(rig.physical_bytes(), 6 * MIB);
    rig.try_allocate(rig.request(1)).unwrap_err();
    rig.free(live);
    let again = rig.allocate(6 * MIB);
    assert_eq!(again, live, "above the limit, but there");
    rig.check();
}

#[test]
fn defragment_joins_what_is_clean_and_unmaps_what_is_stale() {
    let mut rig = Rig::manual(|config| config.mode(Mode::Compact));
    let blocks: Vec<DevicePtr> = (0..9).map(|_| rig.allocate(4 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    let kept: Vec<_> = rig.live.clone();
    let done = rig.pool.defragment().unwrap();
    assert_eq!(done.largest_free_bytes, 20 * MIB);
    // The last run stays where it is, and the other four go there.
    assert_eq!((done.gathered_bytes, done.unmapped_bytes), (16 * MIB, 16 * MIB));
    assert_eq!(rig.live, kept);
    rig.check();
    let before = n_calls(&rig);
    let again = rig.pool.defragment().unwrap();
    assert_eq!((again.gathered_bytes, again.unmapped_bytes), (0, 0));
    assert_eq!(n_calls(&rig), before, "there was nothing to do");
    rig.free_all();
    rig.finish();
}

#[test]
fn one_free_unit_is_kept_and_given_up_for_a_large_object() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(4 * MIB));
    let small = rig.allocate(100);
    rig.free(small);
    assert_eq!(rig.pool.spare_starts().len(), 1);
    let before = n_calls(&rig);
    for _ in 0..3 {
        let again = rig.allocate(100);
        assert_eq!(again, small);
        rig.free(again);
    }
    assert_eq!(n_calls(&rig), before, "the unit did not come and go");
    rig.allocate(4 * MIB);
    assert_eq!(rig.pool.spare_starts(), []);
    rig.check();
}

#[test]
fn a_refused_request_leaves_the_spare_unit() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(8 * MIB));
    let small = rig.allocate(100);
    rig.allocate(4 * MIB);
    rig.free(small);
    let before = rig.pool.snapshot();
    rig.try_allocate(rig.request(9 * MIB)).unwrap_err();
    rig.pool.snapshot().assert_follows(&before, "out of memory");
    rig.check();
}

#[test]
fn a_second_free_unit_goes_back_at_once() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    let small: Vec<DevicePtr> = (0..30).map(|_| rig.allocate(200 << 10)).collect();
    small.iter().for_each(|&object| rig.free(object));
    rig.check();
    assert_eq!(rig.pool.blocks.clean_bytes(), rig.pool.physical_bytes() - PAGE_BYTES);
}

#[test]
fn while_memory_is_plenty_nothing_is_stitched() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact).stitch_above_bytes(60 * MIB));
    let blocks: Vec<DevicePtr> = (0..10).map(|_| rig.allocate(4 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    rig.allocate(20 * MIB);
    assert_eq!((rig.pool.stats().n_stitches, rig.physical_bytes()), (0, 60 * MIB));
    rig.allocate(20 * MIB);
    assert_eq!((rig.pool.stats().n_stitches, rig.physical_bytes()), (1, 60 * MIB));
    rig.check();
}

#[test]
fn below_the_threshold_a_full_device_is_stitched_all_the_same() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(40 * MIB).stitch_above_bytes(u64::MAX));
    let blocks: Vec<DevicePtr> = (0..10).map(|_| rig.allocate(4 * MIB)).collect();
    blocks.iter().step_by(2).for_each(|&block| rig.free(block));
    rig.allocate(20 * MIB);
    assert_eq!((rig.pool.stats().n_stitches, rig.physical_bytes()), (1, 40 * MIB));
    rig.check();
}

#[test]
fn addresses_are_used_again_after_a_trim() {
    let mut rig = Rig::immediate(|config| config);
    let first = rig.allocate(50 * MIB);
    rig.free(first);
    for _ in 0..10 {
        rig.pool.trim(0).unwrap();
        assert_eq!(rig.pool.slots.end(), 0);
        let again = rig.allocate(50 * MIB);
        assert_eq!(again, first);
        rig.free(again);
    }
    assert_eq!(rig.pool.slots.n_known_pages(), 25);
    rig.finish();
}

#[test]
fn mappings_that_are_gone_do_not_pile_up_behind_an_old_one() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    rig.allocate(200 * MIB);
    // The oldest mapping stays, as there are few for so much memory.
    for round in 0..400 {
        let held: Vec<DevicePtr> = (0..4).map(|i| rig.allocate((2 + (i + round) % 3) * MIB)).collect();
        held.iter().skip(1).step_by(2).for_each(|&block| rig.free(block));
        let large = rig.allocate((5 + round % 4) * MIB);
        held.iter().step_by(2).for_each(|&block| rig.free(block));
        rig.free(large);
    }
    assert!(rig.pool.stats().n_stitches + rig.pool.stats().n_revived > 50);
    assert!(rig.pool.stale.n_by_age() <= 2 * rig.pool.stale.iter().count() + 65);
    rig.check();
}

#[test]
fn a_free_and_a_fit_call_no_driver() {
    let mut rig = Rig::immediate(|config| config);
    let blocks: Vec<DevicePtr> = (1..9).map(|i| rig.allocate(i * MIB)).collect();
    let before = n_calls(&rig);
    for &block in &blocks {
        rig.free(block);
    }
    for i in 1..9 {
        rig.allocate(i * MIB);
    }
    assert_eq!(n_calls(&rig), before);
    assert_eq!(rig.sim.ledger(DEVICE).unwrap().n(Call::Record), 0);
}
