//! Which allocation an address lies in.

use glake_core::alloc::Allocation;
use glake_core::units::{AddressRange, DevicePtr};
use glake_testkit::rng::Rng;

use super::rig::{KIB, MIB, Rig};

/// What is found from the first, a middle and the last byte of `allocation`.
fn found(rig: &Rig, allocation: &Allocation) -> [Option<AddressRange>; 3] {
    let last = allocation.bytes - 1;
    [0, last / 2, last].map(|at| rig.pool.allocation_at(allocation.ptr + at))
}

fn whole(allocation: &Allocation) -> AddressRange {
    AddressRange::new(allocation.ptr, allocation.bytes.next_multiple_of(512))
}

#[test]
fn every_byte_of_a_live_allocation_leads_to_it_and_no_other_does() {
    let rig = Rig::new(2, 1 << 30);
    let mut rng = Rng::new(3);
    let mut live: Vec<Allocation> = Vec::new();
    for i in 0..2_000_usize {
        if rng.below(5) < 2 && !live.is_empty() {
            let freed = live.swap_remove(rng.below(live.len() as u64) as usize);
            rig.free(freed, i % 2);
            assert_eq!(found(&rig, &freed), [None; 3], "{freed:?} is free, or held");
        } else if let Ok(made) = rig.try_allocate(i % 2, rng.log_between(1, 20 * MIB)) {
            live.push(made);
        }
        if i % 50 == 0 {
            for allocation in &live {
                assert_eq!(found(&rig, allocation), [Some(whole(allocation)); 3], "{allocation:?}");
            }
            rig.sim.complete_all();
        }
    }
    live.into_iter().for_each(|allocation| rig.free(allocation, 0));
    rig.sim.complete_all();
    rig.finish();
}

#[test]
fn nothing_is_found_outside_nor_in_memory_that_is_freed_but_in_use() {
    let rig = Rig::new(2, 1 << 30);
    assert_eq!(rig.pool.allocation_at(DevicePtr(0)), None);
    assert_eq!(rig.pool.allocation_at(rig.pool.arena.start), None);
    assert_eq!(rig.pool.allocation_at(rig.pool.arena.end()), None);
    for bytes in [3 * KIB, 3 * MIB] {
        let held = rig.allocate(0, bytes);
        rig.record_use(held, 1);
        rig.free(held, 0);
        assert_eq!(found(&rig, &held), [None; 3]);
    }
    rig.finish();
}

#[test]
fn a_free_that_was_put_off_counts() {
    let rig = Rig::new(1, 1 << 30);
    let freed = rig.allocate(0, 3 * MIB);
    rig.oracle.lock().unwrap().freed(freed.ptr, rig.streams[0]);
    std::thread::scope(|scope| {
        let locked = rig.pool.central.lock().unwrap();
        scope.spawn(|| rig.pool.free_soon(freed.ptr, rig.streams[0]).unwrap()).join().unwrap();
        drop(locked);
    });
    assert_eq!(found(&rig, &freed), [None; 3]);
    rig.finish();
}
