//! Devices that are lost while they have something, and lanes that are told to wait.
#![allow(clippy::cast_possible_truncation, reason = "tests run on hosts of 64 bits")]

use glake_core::driver::{DeviceOps, StreamOrder};
use glake_core::sim::Fault;

use super::*;
use crate::{Cancel, Path, TransferError};

/// Small chunks, over all paths.
fn small() -> Config {
    Config::new()
        .chunk_bytes(64 << 10)
        .slot_bytes(64 << 10)
        .stage_from_bytes(256 << 10)
        .relay_from_bytes(0)
        .n_threads(1)
}

/// A write whose `nth` call, of whichever lane, loses one of two relays; whether any call did.
fn write_while_lost(nth: u64, is_pinned: bool) -> bool {
    let rig = Rig::new(3, small());
    let bytes = MIB / 2;
    let (source, dst) = (noise(bytes, nth), rig.memory(GPU, bytes));
    let mut pinned = rig.pinned(bytes);
    (*pinned).as_mut().copy_from_slice(&source);
    let write = || {
        let source = if is_pinned { (*pinned).as_ref() } else { &source };
        rig.engine.on(GPU).write(dst, source)
    };
    write().unwrap();
    rig.fill(dst, bytes, 0xee);
    rig.driver.plan(Fault::nth(nth).lose(DeviceId(1)));
    let written = write();
    rig.driver.clear_faults();
    if written.is_ok() {
        let mut back = vec![0; source.len()];
        rig.engine.on(GPU).read(dst, &mut back).unwrap();
        assert!(back == source, "call {nth}, pinned {is_pinned}: {written:?}");
    }
    rig.driver.n_faults() > 0
}

#[test]
fn whenever_a_relay_is_lost_what_it_had_arrives() {
    for is_pinned in [true, false] {
        let n = (0..1000).take_while(|nth| write_while_lost(*nth, is_pinned)).count();
        assert!((50..1000).contains(&n), "{n}");
    }
}

#[test]
fn a_transfer_behind_a_stream_goes_without_a_lost_relay() {
    let rig = Rig::new(2, small());
    let (source, dst) = (noise(MIB, 1), rig.memory(GPU, MIB));
    let stream = rig.driver.create_stream(GPU).unwrap();
    let report = rig.engine.on(GPU).after(stream).write(dst, &source).unwrap();
    assert_eq!(report.lanes.len(), 2);
    rig.driver.plan(Fault::nth(0).lose(DeviceId(1)));
    rig.driver.record(stream).unwrap_err();
    for _ in 0..2 {
        rig.fill(dst, MIB, 0xee);
        let report = rig.engine.on(GPU).after(stream).write(dst, &source).unwrap();
        assert_eq!(report.lanes[0].path, Path::Direct);
        assert_eq!(report.lanes[0].bytes, MIB);
        let mut back = vec![0; source.len()];
        rig.engine.on(GPU).read(dst, &mut back).unwrap();
        assert!(back == source);
    }
}

#[test]
fn a_cancelled_transfer_leaves_no_wait_to_those_that_follow() {
    for source in [vec![7; 1 << 20], vec![7; 100]] {
        let driver = SimConfig::h200(2).completion(Completion::Manual).build();
        let rig = Rig::over(driver, small());
        let (dst, stream) = (rig.memory(GPU, MIB), rig.driver.create_stream(GPU).unwrap());
        let cancel = Cancel::new();
        cancel.cancel();
        rig.driver.delay(stream, 1).unwrap();
        let transfer = rig.engine.on(GPU).after(stream).cancel(&cancel);
        let error = transfer.write(dst, &source).unwrap_err();
        assert!(matches!(error, TransferError::Cancelled { .. }), "{error:?}");
        rig.engine.on(GPU).write(dst, &source).unwrap();
        assert!(rig.driver.n_pending(stream).unwrap() > 0, "it waited for the other's stream");
        let other = rig.driver.create_stream(GPU).unwrap();
        rig.engine.on(GPU).after(stream).cancel(&cancel).write(dst, &source).unwrap_err();
        rig.engine.on(GPU).enqueue_read(dst, Box::new([0; 100]), other).unwrap().wait().unwrap();
        assert!(rig.driver.n_pending(stream).unwrap() > 0, "it was enqueued behind the other's stream");
    }
}

/// Whether what a pageable read does not name as missing has arrived, though its `nth` call loses the device that is
/// read; `None` if there is no such call.
fn read_while_lost(nth: u64) -> Option<bool> {
    let rig = Rig::new(3, small());
    let bytes = MIB / 2;
    let (source, src) = (noise(bytes, nth), rig.memory(GPU, bytes));
    rig.engine.on(GPU).write(src, &source).unwrap();
    let mut back = vec![0xee; source.len()];
    rig.engine.on(GPU).read(src, &mut vec![0; source.len()]).unwrap();
    rig.driver.plan(Fault::nth(nth).lose(GPU));
    let read = rig.engine.on(GPU).read(src, &mut back);
    rig.driver.clear_faults();
    let mut is_missing = vec![read.is_err(); source.len()];
    if let Err(TransferError::NoPath { missing, .. }) = &read {
        is_missing.fill(false);
        for segment in missing {
            is_missing[segment.host_offset as usize..][..segment.bytes as usize].fill(true);
        }
    }
    let has_arrived =
        back.iter().zip(&source).zip(&is_missing).all(|((a, b), is_missing)| *is_missing || a == b);
    (rig.driver.n_faults() > 0).then_some(has_arrived)
}

#[test]
fn whenever_the_device_that_is_read_is_lost_nothing_false_arrives() {
    let seen: Vec<_> = (0..1000).map_while(read_while_lost).collect();
    assert!((50..1000).contains(&seen.len()), "{}", seen.len());
    assert_eq!(seen.iter().position(|has_arrived| !has_arrived), None);
}
