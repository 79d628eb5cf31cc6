//! The ways a pool ends, where a driver call fails on the way.

use glake_core::alloc::{AllocError, Allocator};
use glake_core::driver::{Call, Driver, DriverError, StreamOrder};
use glake_core::sim::{Fault, Target};

use super::rig::{DEVICE, MIB, Rig};

#[test]
fn a_trim_that_cannot_release_leaks_nothing() {
    let mut rig = Rig::manual(|config| config);
    rig.allocate(8 * MIB);
    rig.free_all();
    rig.sim.plan(Fault::nth(0).of(Target::One(Call::Release)));
    assert_eq!(rig.pool.trim(0), Err(AllocError::Driver(DriverError::Planned)));
    rig.check();
    assert_eq!(rig.physical_bytes(), 4 * MIB);
    rig.pool.trim(0).unwrap();
    assert_eq!(rig.physical_bytes(), 0);
    rig.finish();
}

#[test]
fn close_gives_everything_back_before_it_returns() {
    let mut rig = Rig::manual(|config| config);
    rig.allocate(8 * MIB);
    let Rig { sim, pool, .. } = rig;
    pool.close().unwrap();
    assert_eq!(sim.ledger(DEVICE).unwrap().physical_bytes, 0);
}

#[test]
fn a_drop_that_cannot_record_an_event_unmaps_nothing_under_pending_work() {
    let mut rig = Rig::manual(|config| config);
    rig.allocate(8 * MIB);
    let Rig { sim, pool, stream, .. } = rig;
    sim.destroy_stream(stream).unwrap();
    drop(pool);
    assert_eq!(sim.ledger(DEVICE).unwrap().physical_bytes, 8 * MIB);
    sim.complete_all();
    // The work touched its memory, and the device lives.
    assert!(sim.create_stream(DEVICE).is_ok());
}
