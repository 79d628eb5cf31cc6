//! What becomes of a transfer that a stream waits for where calls fail.

use std::sync::LazyLock;

use glake_core::driver::{Call, Copies, DriverError, SharedBytes, StreamOrder};
use glake_core::sim::{Fault, Target};
use glake_core::units::StreamId;

use super::enqueued::run_in_some_order;
use super::*;
use crate::{Report, TransferError};

const BYTES: u64 = MIB + 5;
/// What is written.
static WRITTEN: LazyLock<Vec<u8>> = LazyLock::new(|| noise(BYTES, 2));

/// What came of a transfer with `fault` in it.
struct Trial {
    n_faults: u64,
    outcome: Result<Report, TransferError>,
}

/// Enqueues a transfer to or from the device with `fault` in it, behind another one if `is_warm`, or else
/// drops the engine while it is pending, and checks everything that must hold whatever
/// comes of it.
fn trial(is_read: bool, is_warm: bool, fault: Fault) -> Trial {
    let config = Config::new().chunk_bytes(64 << 10).relay_from_bytes(0);
    let rig = Rig::over(
        SimConfig::h200(if is_warm { 4 } else { 3 }).completion(Completion::Manual).build(),
        config,
    );
    let (stream, memory) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, BYTES));
    let free = |driver: &SimDriver| [0, 1, 2].map(|n| driver.memory_info(DeviceId(n)).map(|m| m.free_bytes));
    let before = free(&rig.driver);
    if is_warm {
        rig.engine.on(GPU).enqueue_write(memory, Arc::new(vec![9; 1 << 20]), stream).unwrap();
    }
    rig.driver.fill(AddressRange::new(memory, BYTES), 1, stream).unwrap();
    rig.driver.plan(fault);
    let written = WRITTEN.clone();
    let source: SharedBytes = Arc::new(written.clone());
    let weak = Arc::downgrade(&source);
    let (outcome, read) = if is_read {
        drop(source);
        let buffer = Box::new(vec![0; usize::try_from(BYTES).unwrap()]);
        match rig.engine.on(GPU).enqueue_read(memory, buffer, stream) {
            Ok(read) => (Ok(read.report().clone()), Some(read)),
            Err(failed) => (Err(failed.error), Some(failed.buffer)),
        }
    } else {
        (rig.engine.on(GPU).enqueue_write(memory, source, stream), None)
    };
    let n_faults = rig.driver.n_faults();
    rig.driver.clear_faults();
    let loses = (0..3).any(|n| rig.driver.memory_info(DeviceId(n)) == Err(DriverError::DeviceLost));
    // What follows on the stream wins, of what was enqueued however it ended.
    let last = AddressRange::new(memory + 500_000, 1000);
    rig.driver.fill(last, 3, stream).unwrap();
    let Rig { driver, engine } = rig;
    let engine = is_warm.then_some(engine);
    let seed =
        format!("{fault:?}").bytes().fold(0, |seed: u64, byte| seed * 31 % 1_000_003 + u64::from(byte));
    run_in_some_order(&driver, &mut Rng::new(seed));
    drop(engine);
    driver.complete_all();
    let missing: &[Segment] = match &outcome {
        Ok(_) => &[],
        Err(TransferError::NoPath { missing, .. }) => missing,
        Err(TransferError::Driver(_)) => &[Segment { host_offset: 0, device: memory, bytes: BYTES }],
        Err(error) => panic!("{error:?}"),
    };
    let is_missing =
        |at: u64| missing.iter().any(|one| (one.host_offset..one.host_offset + one.bytes).contains(&at));
    let arrives = |bytes: &[u8], mut expected: Vec<u8>, is_last_filled: bool| {
        if is_last_filled {
            expected[500_000..501_000].fill(3);
        }
        if bytes == expected {
            return;
        }
        for (at, (byte, expected)) in (0..).zip(bytes.iter().zip(&expected)) {
            let is_filled = is_last_filled && (500_000..501_000).contains(&at);
            let is_right = byte == expected || (is_missing(at) && !is_filled);
            assert!(is_right, "{byte} at {at} of {fault:?}: {outcome:?}");
        }
    };
    if let Some(read) = read {
        match read.wait() {
            Ok(buffer) => arrives((*buffer).as_ref(), vec![1; written.len()], false),
            // A buffer that a lost device may have written does not come back.
            Err(error) => assert_eq!((error, loses), (DriverError::DeviceLost, true), "{fault:?}"),
        }
    } else {
        let mut found = vec![0; usize::try_from(BYTES).unwrap()];
        driver.read(memory, &mut found, StreamId::LEGACY).unwrap();
        arrives(&found, written, true);
    }
    assert_eq!(weak.strong_count(), 0, "{fault:?}");
    let after = free(&driver);
    for (before, after) in before.iter().zip(after) {
        assert!(after == Err(DriverError::DeviceLost) || after == *before, "{fault:?}: {before:?} {after:?}");
    }
    Trial { n_faults, outcome }
}

#[test]
fn whichever_call_fails_everything_arrives_or_is_named() {
    for (is_read, is_warm) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut n_ok, mut nth) = (0, 0);
        loop {
            let Trial { n_faults, outcome } = trial(is_read, is_warm, Fault::nth(nth));
            n_ok += u64::from(outcome.is_ok());
            if n_faults == 0 {
                break;
            }
            nth += 1;
        }
        // Only what comes before any lane is given something fails the whole.
        assert!(nth > 30 && nth - n_ok < 5, "{n_ok} of {nth} went well");
    }
}

#[test]
fn when_all_lanes_fail_the_error_names_what_is_missing() {
    let mut n_partial = 0;
    for nth in (0..40).step_by(2) {
        let fault = Fault::nth(nth).of(Target::Copies).from_then_on();
        for is_read in [false, true] {
            let Trial { n_faults, outcome } = trial(is_read, false, fault);
            let Err(TransferError::NoPath { missing, source }) = outcome else { continue };
            assert!(n_faults >= 3);
            assert_eq!(*source, DriverError::Planned);
            let left: u64 = missing.iter().map(|segment| segment.bytes).sum();
            n_partial += u64::from(0 < left && left < BYTES);
        }
    }
    assert!(n_partial > 10, "{n_partial}");
}

#[test]
fn what_a_lost_relay_had_goes_over_the_others() {
    let mut n_redone = 0;
    for nth in 0..100 {
        // The end of a lane, too, is a call that may say so.
        let target = if nth % 2 == 0 { Target::Copies } else { Target::One(Call::Record) };
        let fault = Fault::nth(nth / 2).of(target).lose(DeviceId(1));
        for (is_read, is_warm) in [(false, false), (false, true), (true, true)] {
            if let Ok(report) = trial(is_read, is_warm, fault).outcome {
                assert_eq!(report.lanes.iter().map(|lane| lane.bytes).sum::<u64>(), BYTES);
                n_redone += u64::from(report.lanes.iter().any(|lane| lane.error.is_some()));
            }
        }
    }
    assert!(n_redone > 10, "{n_redone}");
}
