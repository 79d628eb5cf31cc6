//! Memory that another device may use, too.

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::{Call, DeviceOps, Driver, DriverError, StreamOrder};
use glake_core::sim::{Fault, SimConfig, Target};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES, StreamId};
use glake_testkit::program::seeded;
use glake_testkit::rng::Rng;

use super::rig::{DEVICE, MIB, Rig, step};
use crate::{Config, Mode, SharedPool};

const FAR: DeviceId = DeviceId(1);

/// A pool on the first of two devices, and a stream of the second.
fn two_devices(set: impl FnOnce(Config) -> Config) -> (Rig, StreamId) {
    let rig = Rig::new(SimConfig::h200(2).memory_bytes(256 * MIB), set);
    let far = rig.sim.create_stream(FAR).unwrap();
    (rig, far)
}

/// The first granule, at least, is left to the rig.
fn word(ptr: DevicePtr) -> AddressRange {
    AddressRange::new(ptr + 512, 8)
}

/// Writes to each page on `far`.
fn write(rig: &Rig, far: StreamId, ptr: DevicePtr, bytes: u64) -> Result<(), DriverError> {
    let words = (0..bytes).step_by(PAGE_BYTES as usize).map(|at| word(ptr + at));
    words.into_iter().try_for_each(|word| rig.sim.fill_pattern(word, ptr.0, far))
}

#[test]
fn a_device_reaches_memory_of_before_and_after_and_what_moves() {
    for bytes in [1000, 4 * MIB] {
        let (mut rig, far) = two_devices(|config| config.mode(Mode::Compact).limit_bytes(32 * MIB));
        let before = rig.allocate(bytes);
        assert!(matches!(write(&rig, far, before, bytes), Err(DriverError::NoAccess(_))));
        rig.pool.grant_access(FAR).unwrap();
        write(&rig, far, before, bytes).unwrap();
        let after: Vec<DevicePtr> = (0..6).map(|_| rig.allocate(4 * MIB)).collect();
        after.iter().for_each(|&ptr| write(&rig, far, ptr, 4 * MIB).unwrap());
        after.iter().step_by(2).for_each(|&ptr| rig.free(ptr));
        let gathered = rig.allocate(12 * MIB);
        assert!(rig.pool.stats().n_stitches > 0);
        write(&rig, far, gathered, 12 * MIB).unwrap();
        // What one device writes the other reads.
        rig.sim.check_pattern(word(gathered), gathered.0, rig.stream).unwrap();
        assert_eq!(rig.sim.mismatches(rig.stream), Ok(0));
    }
}

#[test]
fn a_device_reaches_homes_to_which_handles_return() {
    let (mut rig, far) = two_devices(|config| config.mode(Mode::Compact).limit_bytes(16 * MIB));
    let pieces: Vec<DevicePtr> = (0..4).map(|_| rig.allocate(4 * MIB)).collect();
    pieces.iter().step_by(2).for_each(|&ptr| rig.free(ptr));
    let gathered = rig.allocate(8 * MIB);
    assert!(rig.pool.stats().stale_bytes > 0);
    rig.pool.grant_access(FAR).unwrap();
    rig.free(gathered);
    let n = rig.sim.ledger(DEVICE).unwrap().n(Call::SetAccess);
    assert_eq!(rig.allocate(4 * MIB), pieces[0], "at home");
    assert_eq!(rig.sim.ledger(DEVICE).unwrap().n(Call::SetAccess), n);
    write(&rig, far, pieces[0], 4 * MIB).unwrap();
}

#[test]
fn a_device_reaches_all_memory_of_random_programs() {
    for (seed, mode) in [(1, Mode::Default), (2, Mode::Compact), (3, Mode::Pinned)] {
        let (mut rig, far) = two_devices(|config| config.mode(mode));
        let mut rng = Rng::new(seed);
        for (i, action) in seeded(seed, 600).into_iter().enumerate() {
            rig.step(step(action, rng.next(), rng.next(), 48 * MIB));
            if i == 200 {
                rig.pool.grant_access(FAR).unwrap();
            }
            for live in rig.live.iter().filter(|live| live.bytes > 600) {
                let reached = write(&rig, far, live.ptr, live.bytes);
                assert_eq!(reached.is_ok(), i >= 200, "{live:?} at {i}: {reached:?}");
            }
        }
        rig.check();
    }
}

#[test]
fn there_is_nothing_to_grant_twice_nor_to_oneself() {
    let (mut rig, _) = two_devices(|config| config);
    rig.allocate(MIB);
    rig.pool.grant_access(FAR).unwrap();
    let n = rig.sim.ledger(DEVICE).unwrap().n_calls();
    rig.pool.grant_access(FAR).unwrap();
    rig.pool.grant_access(DEVICE).unwrap();
    assert_eq!(rig.sim.ledger(DEVICE).unwrap().n_calls(), n);
}

#[test]
fn a_device_that_cannot_reach_the_memory_is_refused_even_by_an_empty_pool() {
    for bytes in [0, 4 * MIB] {
        let (mut rig, far) = two_devices(|config| config);
        if bytes > 0 {
            rig.allocate(bytes);
        }
        let nowhere = DeviceId(7);
        let error = AllocError::Driver(DriverError::InvalidDevice(nowhere));
        let reserved = rig.physical_bytes();
        assert_eq!(rig.pool.grant_access(nowhere), Err(error));
        assert_eq!(rig.physical_bytes(), reserved);
        rig.pool.grant_access(FAR).unwrap();
        let ptr = rig.allocate(12 * MIB);
        write(&rig, far, ptr, 12 * MIB).unwrap();
        rig.check();
    }
}

/// Whether the fault was hit.
fn with_fault(is_empty: bool, fault: Fault, what: &str) -> bool {
    let (mut rig, far) = two_devices(|config| config.mode(Mode::Compact).limit_bytes(64 * MIB));
    if !is_empty {
        // Homes in several runs, and stale mappings behind one.
        let pieces: Vec<DevicePtr> = (0..6).map(|_| rig.allocate(4 * MIB)).collect();
        pieces.iter().step_by(2).for_each(|&ptr| rig.free(ptr));
        let gathered = rig.allocate(12 * MIB);
        rig.pool.defragment().unwrap();
        rig.free(gathered);
        rig.allocate(13 * MIB);
    }
    let before = rig.pool.snapshot();
    rig.sim.plan(fault);
    let granted = rig.pool.grant_access(FAR);
    let is_hit = rig.sim.n_faults() > 0;
    rig.sim.clear_faults();
    rig.check();
    if let Err(error) = granted {
        assert!(is_hit, "{what}: {error}");
        rig.pool.snapshot().assert_same_live(&before, what);
        let live = rig.live.clone();
        for allocation in live {
            let reached = write(&rig, far, allocation.ptr, allocation.bytes);
            assert!(matches!(reached, Err(DriverError::NoAccess(_))), "{what}: {reached:?}");
        }
        let ptr = rig.allocate(16 * MIB);
        assert!(matches!(write(&rig, far, ptr, 16 * MIB), Err(DriverError::NoAccess(_))), "{what}");
        rig.free(ptr);
        rig.pool.grant_access(FAR).unwrap();
    }
    let ptr = rig.allocate(16 * MIB);
    write(&rig, far, ptr, 16 * MIB).unwrap();
    rig.free_all();
    rig.finish();
    is_hit
}

#[test]
fn any_call_of_a_grant_may_fail() {
    for is_empty in [true, false] {
        let fails = |k: &u64| with_fault(is_empty, Fault::nth(*k), &format!("call {k}, {is_empty}"));
        let n = (0..1000).take_while(fails).count();
        assert!(n >= 3, "{n} calls were hit");
    }
}

#[test]
fn what_a_failing_driver_cannot_take_back_does_no_harm() {
    let (mut rig, far) = two_devices(|config| config.mode(Mode::Compact));
    let pieces: Vec<DevicePtr> = (0..6).map(|_| rig.allocate(4 * MIB)).collect();
    pieces.iter().step_by(2).for_each(|&ptr| rig.free(ptr));
    rig.pool.trim(0).unwrap();
    rig.sim.plan(Fault::nth(1).of(Target::One(Call::SetAccess)).from_then_on());
    assert_eq!(rig.pool.grant_access(FAR), Err(AllocError::Driver(DriverError::Planned)));
    rig.sim.clear_faults();
    assert_eq!(write(&rig, far, pieces[1], 8), Ok(()), "as documented");
    let new = rig.allocate(4 * MIB);
    assert!(matches!(write(&rig, far, new, 8), Err(DriverError::NoAccess(_))));
    rig.check();
}

#[test]
fn a_shared_pool_grants_access_to_small_and_large() {
    let (rig, far) = two_devices(|config| config);
    let pool = SharedPool::new(rig.sim.clone(), Config::new(DEVICE)).unwrap();
    let before = pool.allocate_for_all(1000).unwrap();
    pool.grant_access(FAR).unwrap();
    let after = [pool.allocate_for_all(1000), pool.allocate(rig.request(4 * MIB))].map(Result::unwrap);
    for allocation in after.into_iter().chain([before]) {
        write(&rig, far, allocation.ptr, allocation.bytes).unwrap();
    }
}
