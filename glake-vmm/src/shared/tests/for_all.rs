//! Memory for every stream and the host at once.

use glake_core::driver::{DeviceOps, Driver};
use glake_core::units::AddressRange;

use super::rig::{DEVICE, KIB, MIB, Rig};

#[test]
fn small_objects_for_all_need_no_driver_once_there_is_a_unit() {
    let rig = Rig::new(1, 1 << 30);
    let first = rig.try_allocate_for_all(KIB).unwrap();
    let calls = || rig.sim.ledger(DEVICE).unwrap();
    let before = calls();
    let locked = rig.pool.central.lock().unwrap();
    let all: Vec<_> = (1..100).map(|i| rig.try_allocate_for_all(i * 100).unwrap()).collect();
    drop(locked);
    assert_eq!(calls(), before);
    all.into_iter().chain([first]).for_each(|allocation| rig.free(allocation, 0));
    rig.finish();
}

#[test]
fn a_small_object_for_all_comes_back_when_every_stream_is_done_with_it() {
    let rig = Rig::new(2, 1 << 30);
    // All that a unit holds.
    let all: Vec<_> = (0..10).map(|_| rig.try_allocate_for_all(204 * KIB).unwrap()).collect();
    for &stream in &rig.streams {
        rig.sim.fill_pattern(AddressRange::new(all[0].ptr, 64), 1, stream).unwrap();
    }
    rig.free_from_anywhere(all[0]).unwrap();
    let other = rig.try_allocate_for_all(204 * KIB).unwrap();
    assert_ne!(other.ptr, all[0].ptr, "it is in use");
    rig.sim.complete_all();
    let more: Vec<_> = (0..10).map(|_| rig.try_allocate_for_all(204 * KIB).unwrap()).collect();
    assert_eq!(more[9].ptr, all[0].ptr, "when the second unit is full");
    for allocation in all.into_iter().skip(1).chain(more).chain([other]) {
        rig.free(allocation, 1);
    }
    rig.finish();
}

#[test]
fn a_unit_for_all_goes_back_and_serves_streams_without_a_wait() {
    let rig = Rig::new(2, 4 * MIB);
    let small = rig.try_allocate_for_all(KIB).unwrap();
    rig.free(small, 0);
    rig.sim.complete_all();
    let n_waits = || rig.sim.ledger(DEVICE).unwrap().n(glake_core::driver::Call::Wait);
    let large = rig.allocate(1, 4 * MIB);
    assert_eq!(n_waits(), 0);
    rig.free(large, 1);
    // Out of memory but for what the stream is at.
    let small = rig.try_allocate_for_all(KIB).unwrap();
    let large = rig.try_allocate_for_all(2 * MIB).unwrap();
    rig.free_from_anywhere(small).unwrap();
    rig.free(large, 1);
    rig.finish();
}
