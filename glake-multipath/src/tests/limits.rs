//! Sizes at their limits, and transfers that need what others have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use glake_core::driver::DriverError;
use glake_core::sim::{Fault, Target};

use super::*;
use crate::slots::Slots;
use crate::{Priority, Progress, TransferError};

const SLOT: u64 = 64 << 10;

fn small() -> Config {
    Config::new().chunk_bytes(SLOT).slot_bytes(SLOT).stage_from_bytes(256 << 10).relay_from_bytes(0)
}

#[test]
fn what_comes_back_from_a_lane_without_slots_fits_those_of_the_others() {
    // The last chunk of a lane takes what would be a crumb along.
    let bytes = 5 * SLOT + SLOT / 4;
    let mut n_failed = 0;
    for nth in 0..80 {
        let rig = Rig::new(2, small());
        let dst = rig.memory(GPU, bytes);
        let mut source = rig.pinned(bytes);
        (*source).as_mut().copy_from_slice(&noise(bytes, nth));
        rig.engine.on(GPU).write(dst, (*source).as_ref()).unwrap();
        rig.fill(dst, bytes, 0xee);
        rig.driver.plan(Fault::nth(nth));
        let Ok(report) = rig.engine.on(GPU).write(dst, (*source).as_ref()) else { continue };
        rig.driver.clear_faults();
        if report.lanes[0].error.is_none() {
            continue;
        }
        n_failed += 1;
        let relayed = report.lanes[1];
        assert!(relayed.bytes <= relayed.n_chunks * SLOT, "call {nth}: {report:?}");
        let mut back = vec![0; usize::try_from(bytes).unwrap()];
        rig.engine.on(GPU).read(dst, &mut back).unwrap();
        assert!(back == (*source).as_ref(), "call {nth}");
    }
    assert!(n_failed > 0);
}

#[test]
fn without_room_for_a_slot_memory_is_copied_as_it_is_and_a_file_is_refused() {
    let mut path = std::env::temp_dir();
    path.push(format!("glake-multipath-limits-{}", std::process::id()));
    std::fs::write(&path, noise(MIB, 1)).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    for config in [small().pinned_bytes(SLOT - 1), small().slot_bytes(u64::MAX)] {
        let rig = Rig::new(2, config.n_threads(2));
        let (source, dst) = (noise(MIB, 2), rig.memory(GPU, MIB));
        rig.engine.on(GPU).write(dst, &source).unwrap();
        let mut back = vec![0; source.len()];
        rig.engine.on(GPU).read(dst, &mut back).unwrap();
        assert!(back == source);
        let all = [Segment { host_offset: 0, device: dst, bytes: MIB }];
        let error = rig.engine.on(GPU).write_file(&all, &file).unwrap_err();
        let TransferError::NoPath { missing, .. } = error else { panic!("{error:?}") };
        assert_eq!(*missing, all);
        rig.engine.on(GPU).write_file(&[], &file).unwrap();
    }
}

#[test]
fn chunks_for_which_no_relay_has_room_go_directly() {
    for config in [small().chunk_bytes(u64::MAX).staging_bytes(u64::MAX), small().chunk_bytes(64 * MIB)] {
        let rig = Rig::new(2, config);
        let (source, dst) = (noise(MIB, 3), rig.memory(GPU, MIB));
        let report = rig.engine.on(GPU).write(dst, &source).unwrap();
        assert_eq!(report.lanes.len(), 1);
    }
}

/// A write whose callback starts another one, of priority `other`, while its threads have slots.
fn write_within(rig: &Rig, own: Priority, other: Priority) {
    let (source, dst) = (noise(MIB, 4), rig.memory(GPU, 2 * MIB));
    let (say, said) = mpsc::channel();
    let (said, is_first) = (Mutex::new(said), AtomicBool::new(true));
    let say = |_: Progress| {
        let _ = say.send(());
    };
    let write_other = || {
        let transfer = rig.engine.on(GPU).priority(other).on_progress(&say);
        transfer.write(dst + MIB, &source).unwrap();
    };
    std::thread::scope(|scope| {
        let tell = |_: Progress| {
            if is_first.swap(false, Ordering::SeqCst) {
                scope.spawn(write_other);
                // Until it is under way: it moves something, or waits for slots.
                let _ = said.lock().unwrap().recv_timeout(Duration::from_millis(50));
            }
        };
        rig.engine.on(GPU).priority(own).on_progress(&tell).write(dst, &source).unwrap();
    });
    let mut back = vec![0; 2 << 20];
    rig.engine.on(GPU).read(dst, &mut back).unwrap();
    assert!(back[..1 << 20] == source && back[1 << 20..] == source);
}

#[test]
fn what_is_urgent_gets_the_slots_of_what_waits_for_it() {
    for n_threads in [1, 3] {
        let rig = Rig::new(2, small().n_threads(n_threads).pinned_bytes(2 * SLOT));
        write_within(&rig, Priority::Low, Priority::High);
        write_within(&rig, Priority::Normal, Priority::Normal);
        write_within(&rig, Priority::High, Priority::Low);
    }
}

#[test]
fn a_transfer_waits_for_slots_where_no_more_can_be_pinned() {
    let driver = Arc::new(SimDriver::h200(1));
    let slots = Slots::new(Arc::clone(&driver) as _, SLOT, 4 * SLOT);
    driver.plan(Fault::nth(1).of(Target::Copies).from_then_on());
    let slot = slots.take(GPU).unwrap().unwrap();
    assert!(slots.take(GPU).unwrap().is_none(), "one is lent, and comes back");
    slots.put(slot);
    assert!(slots.take(GPU).unwrap().is_some());
    slots.forget();
    assert_eq!(slots.take(GPU).unwrap_err(), DriverError::Planned, "there is none to wait for");
}
