//! Copies from device to device: every byte, whichever way it goes, and what is missing where it goes none.
#![allow(clippy::cast_possible_truncation, reason = "tests run on hosts of 64 bits")]

use std::sync::atomic::{AtomicU64, Ordering};

use glake_core::driver::{Copies, DeviceOps, Driver, DriverError, StreamOrder};
use glake_core::sim::{Fault, Target};
use glake_core::units::StreamId;

use super::enqueued::run_in_some_order;
use super::*;
use crate::{Cancel, InvalidSegments, Path, Priority, Progress, Report, TransferError};

const OTHER: DeviceId = DeviceId(1);

/// Whom the two devices' memory is open to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bond {
    /// Peers, with access to the source.
    Open,
    /// Peers, without.
    Shut,
    None,
}

const BONDS: [Bond; 3] = [Bond::Open, Bond::Shut, Bond::None];

impl Bond {
    fn path(self) -> Path {
        match self {
            Self::Open => Path::Direct,
            Self::Shut => Path::Via(OTHER),
            Self::None => Path::Host,
        }
    }
}

fn small() -> Config {
    Config::new().chunk_bytes(64 << 10).slot_bytes(64 << 10).pinned_bytes(256 << 10)
}

/// Two devices, and memory of `bytes` on each: of the one that is copied from first.
struct Pair {
    rig: Rig,
    src: DevicePtr,
    dst: DevicePtr,
}

impl Pair {
    fn new(bond: Bond, config: SimConfig, bytes: u64) -> Self {
        let config = if bond == Bond::None { config.without_peers(GPU, OTHER) } else { config };
        let rig = Rig::over(config.build(), small());
        let (src, dst) = (rig.memory(OTHER, bytes), rig.memory(GPU, bytes));
        if bond == Bond::Open {
            let range = AddressRange::new(src, bytes.next_multiple_of(PAGE_BYTES));
            rig.driver.set_access(range, &[GPU], Access::ReadOnly).unwrap();
        }
        Self { rig, src, dst }
    }

    /// Fills the source with noise and the target with 0xee.
    fn prepare(&self, bytes: u64, seed: u64) -> Vec<u8> {
        let source = noise(bytes, seed);
        self.rig.engine.on(OTHER).write(self.src, &source).unwrap();
        self.rig.fill(self.dst, bytes, 0xee);
        source
    }

    fn copy(&self, bytes: u64) -> Result<Report, TransferError> {
        self.rig.engine.on(GPU).copy(self.dst, OTHER, self.src, bytes)
    }

    fn found(&self, bytes: u64) -> Vec<u8> {
        let mut found = vec![0; bytes as usize];
        self.rig.engine.on(GPU).read(self.dst, &mut found).unwrap();
        found
    }
}

fn bytes_of(missing: &[Segment]) -> u64 {
    missing.iter().map(|segment| segment.bytes).sum()
}

#[test]
fn random_segments_arrive_whichever_way_they_go() {
    for bond in BONDS {
        for seed in 0..24 {
            let mut rng = Rng::new(seed);
            let (n, most_bytes) = (seed + 1, 100 << (seed % 12));
            let (mut segments, source_bytes, bytes) = bytes::segments(&mut rng, n, most_bytes, DevicePtr(0));
            let at = rng.below(1000);
            let pair = Pair::new(bond, timed(2), source_bytes.max(bytes) + 2000);
            let source = pair.prepare(source_bytes + at, seed);
            pair.rig.fill(pair.dst, bytes, 0xee);
            for segment in &mut segments {
                segment.device.0 += pair.dst.0;
            }
            let from = AddressRange::new(pair.src + at, source_bytes);
            let report = pair.rig.engine.on(GPU).copy_segments(&segments, OTHER, from).unwrap();
            let mut expected = vec![0xee; bytes as usize];
            for segment in &segments {
                let start = (segment.device - pair.dst) as usize;
                let from = (at + segment.host_offset) as usize;
                let n = segment.bytes as usize;
                expected[start..start + n].copy_from_slice(&source[from..from + n]);
            }
            assert!(pair.found(bytes) == expected, "{bond:?}, seed {seed}");
            assert_eq!(report.bytes, bytes_of(&segments));
            if report.bytes > 0 {
                let moved = report.lanes.last().unwrap();
                assert_eq!((moved.path, moved.bytes), (bond.path(), report.bytes), "{report:?}");
            }
        }
    }
}

#[test]
fn one_device_copies_within_itself() {
    let rig = Rig::new(1, small());
    let memory = rig.memory(GPU, 4 * MIB);
    let source = noise(MIB + 7, 1);
    rig.engine.on(GPU).write(memory + 3, &source).unwrap();
    let report = rig.engine.on(GPU).copy(memory + 3 + MIB + 7, GPU, memory + 3, MIB + 7).unwrap();
    assert_eq!(report.lanes.iter().map(|lane| lane.path).collect::<Vec<_>>(), [Path::Direct]);
    let mut found = vec![0; source.len()];
    rig.engine.on(GPU).read(memory + 3 + MIB + 7, &mut found).unwrap();
    assert!(found == source);
}

#[test]
fn nothing_is_copied_without_a_call() {
    for bond in BONDS {
        let pair = Pair::new(bond, timed(2), MIB);
        let before = pair.rig.driver.ledger(GPU).unwrap();
        assert_eq!(pair.copy(0).unwrap(), Report::default());
        assert_eq!(pair.rig.driver.ledger(GPU).unwrap(), before);
        let stream = pair.rig.driver.create_stream(GPU).unwrap();
        pair.rig.engine.on(GPU).enqueue_copy(pair.dst, OTHER, pair.src, 0, stream).unwrap();
    }
}

#[test]
fn a_copy_onto_its_source_is_refused() {
    let rig = Rig::new(1, small());
    let memory = rig.memory(GPU, MIB);
    rig.fill(memory, MIB, 5);
    let copy = |to: u64, from: u64, bytes| rig.engine.on(GPU).copy(memory + to, GPU, memory + from, bytes);
    for (to, from) in [(0, 0), (99, 0), (0, 99)] {
        let error = copy(to, from, 100).unwrap_err();
        let TransferError::Segments(error) = error else { panic!("{error:?}") };
        assert!(matches!(*error, InvalidSegments::OntoSource(..)), "{error:?}");
    }
    copy(100, 0, 100).unwrap();
    copy(0, 100, 100).unwrap();
    // A segment onto another one's source.
    let parts = [(0, 1000), (500, 900), (400, 510)];
    let parts = parts.map(|(from, to)| Segment { host_offset: from, device: memory + to, bytes: 20 });
    let all = AddressRange::new(memory, MIB);
    let error = rig.engine.on(GPU).copy_segments(&parts, GPU, all).unwrap_err();
    let TransferError::Segments(error) = error else { panic!("{error:?}") };
    assert_eq!(*error, InvalidSegments::OntoSource(parts[1], parts[2]));
    let end = AddressRange::new(DevicePtr(u64::MAX - 5), 10);
    let error = rig.engine.on(GPU).copy_segments(&[], GPU, end).unwrap_err();
    assert!(
        matches!(error, TransferError::Segments(error) if matches!(*error, InvalidSegments::OutsideDevice(_)))
    );
}

#[test]
fn it_comes_behind_a_stream_of_either_device() {
    for bond in BONDS {
        for on in [GPU, OTHER] {
            let pair = Pair::new(bond, timed(2), MIB);
            let stream = pair.rig.driver.create_stream(on).unwrap();
            pair.rig.driver.delay(stream, 3_000_000).unwrap();
            let filled = if on == GPU { pair.dst } else { pair.src };
            pair.rig.driver.fill(AddressRange::new(filled, MIB), 9, stream).unwrap();
            pair.rig.engine.on(GPU).after(stream).copy(pair.dst, OTHER, pair.src, MIB).unwrap();
            let value = if on == GPU { 0 } else { 9 };
            assert!(pair.found(MIB).iter().all(|byte| *byte == value), "{bond:?} behind {on:?}");
        }
    }
}

#[test]
fn a_cancelled_copy_starts_no_more_chunks() {
    for bond in BONDS {
        let pair = Pair::new(bond, timed(2), 256 * MIB);
        let cancel = Cancel::new();
        let stop_at = if bond == Bond::Open { 64 * MIB } else { 512 << 10 };
        let tell = |progress: Progress| {
            assert_eq!(progress.total_bytes, 256 * MIB);
            if progress.done_bytes >= stop_at {
                cancel.cancel();
            }
        };
        let transfer = pair.rig.engine.on(GPU).cancel(&cancel).on_progress(&tell);
        let error = transfer.copy(pair.dst, OTHER, pair.src, 256 * MIB).unwrap_err();
        let TransferError::Cancelled { missing } = error else { panic!("{error:?}") };
        let moved = 256 * MIB - bytes_of(&missing);
        let chunk_bytes = if bond == Bond::Open { 64 * MIB } else { 64 << 10 };
        assert!((stop_at..=stop_at + 2 * chunk_bytes).contains(&moved), "{bond:?}: {moved}");
        let error = pair.rig.engine.on(GPU).cancel(&cancel).copy(pair.dst, OTHER, pair.src, 1).unwrap_err();
        assert!(matches!(error, TransferError::Cancelled { .. }));
    }
}

#[test]
fn progress_goes_on_where_another_way_does() {
    let pair = Pair::new(Bond::Open, timed(2), 256 * MIB);
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |progress: Progress| told.lock().unwrap().push(progress);
    pair.rig.driver.plan(Fault::nth(2).of(Target::Copies));
    let report =
        pair.rig.engine.on(GPU).on_progress(&tell).copy(pair.dst, OTHER, pair.src, 256 * MIB).unwrap();
    let paths: Vec<_> = report.lanes.iter().map(|lane| (lane.path, lane.error.is_some())).collect();
    assert_eq!(paths, [(Path::Direct, true), (Path::Via(OTHER), false)]);
    assert!(report.lanes[0].bytes > 0, "the first way moved some");
    let told = told.into_inner().unwrap();
    assert!(told.iter().all(|progress| progress.total_bytes == 256 * MIB));
    assert!(told.is_sorted_by_key(|progress| progress.done_bytes));
    assert_eq!(told.last().unwrap().done_bytes, 256 * MIB);
}

/// A copy whose `nth` call has `fault`; whether any did.
fn copy_with(bond: Bond, fault: Fault, is_warm: bool) -> (bool, Result<Report, TransferError>) {
    const BYTES: u64 = (256 << 10) + 5;
    let pair = Pair::new(bond, timed(2), BYTES);
    let source = pair.prepare(BYTES, 3);
    if is_warm {
        pair.copy(BYTES).unwrap();
        pair.rig.fill(pair.dst, BYTES, 0xee);
    }
    let free = |driver: &SimDriver| [GPU, OTHER].map(|n| driver.memory_info(n).map(|m| m.free_bytes));
    let before = free(&pair.rig.driver);
    pair.rig.driver.plan(fault);
    let outcome = pair.copy(BYTES);
    let was_hit = pair.rig.driver.n_faults() > 0;
    pair.rig.driver.clear_faults();
    let is_lost = pair.rig.driver.memory_info(GPU).is_err();
    let missing: &[Segment] = match &outcome {
        Ok(_) => &[],
        Err(TransferError::NoPath { missing, .. }) => missing,
        Err(error) => panic!("{error:?}"),
    };
    if !is_lost {
        let (found, mut is_missing) = (pair.found(BYTES), vec![false; BYTES as usize]);
        for segment in missing {
            assert_eq!(segment.device - pair.dst, segment.host_offset);
            let start = segment.host_offset as usize;
            is_missing[start..start + segment.bytes as usize].fill(true);
        }
        let is_right = |at: usize| is_missing[at] || found[at] == source[at];
        assert!((0..found.len()).all(is_right), "{bond:?} {fault:?}: {outcome:?}");
    }
    let Pair { rig: Rig { driver, engine }, .. } = pair;
    drop(engine);
    driver.complete_all();
    for (before, after) in before.iter().zip(free(&driver)) {
        let is_back = matches!((before, &after), (Ok(before), Ok(after)) if after >= before);
        assert!(is_back || after == Err(DriverError::DeviceLost), "{fault:?}: {before:?} {after:?}");
    }
    (was_hit, outcome)
}

#[test]
fn whichever_call_fails_another_way_is_taken_or_the_rest_is_named() {
    for bond in BONDS {
        for is_warm in [false, true] {
            let (mut n_failed, mut nth) = (0, 0);
            loop {
                let (was_hit, outcome) = copy_with(bond, Fault::nth(nth), is_warm);
                if !was_hit {
                    outcome.unwrap();
                    break;
                }
                n_failed += u64::from(outcome.is_err());
                nth += 1;
            }
            assert!(nth > 3, "{bond:?}: {nth}");
            // Only who has one way has none behind it.
            assert_eq!(n_failed > 0, bond == Bond::None, "{bond:?}: {n_failed} of {nth}");
        }
    }
}

#[test]
fn where_all_ways_fail_the_error_names_what_is_missing() {
    for bond in BONDS {
        let (mut n_partial, mut nth) = (0, 0);
        loop {
            let fault = Fault::nth(nth).of(Target::Copies).from_then_on();
            let (was_hit, outcome) = copy_with(bond, fault, true);
            if !was_hit {
                break;
            }
            if let Err(TransferError::NoPath { missing, source }) = outcome {
                assert_eq!(*source, DriverError::Planned);
                n_partial += u64::from((1..256 << 10).contains(&bytes_of(&missing)));
            }
            nth += 1;
        }
        assert_eq!(n_partial > 0, bond != Bond::Open, "{bond:?}: one chunk, and others");
    }
}

#[test]
fn a_device_that_is_lost_meanwhile_is_told() {
    for bond in BONDS {
        for device in [GPU, OTHER] {
            let mut nth = 0;
            loop {
                let (was_hit, outcome) = copy_with(bond, Fault::nth(nth).lose(device), nth % 2 == 0);
                if !was_hit {
                    break;
                }
                if let Err(TransferError::NoPath { missing, source }) = &outcome {
                    assert_eq!(**source, DriverError::DeviceLost, "{bond:?} {device:?} {nth}");
                    assert!(!missing.is_empty());
                }
                nth += 1;
            }
            assert!(nth > 3, "{bond:?}: {nth}");
        }
    }
}

#[test]
fn what_was_read_of_a_lost_device_does_not_count() {
    for bond in BONDS {
        let pair = Pair::new(bond, timed(2), MIB);
        let lose = |_: Progress| {
            pair.rig.driver.plan(Fault::nth(0).lose(OTHER));
            let _ = pair.rig.driver.memory_info(OTHER);
            pair.rig.driver.clear_faults();
        };
        let transfer = pair.rig.engine.on(GPU).on_progress(&lose);
        let error = transfer.copy(pair.dst, OTHER, pair.src, MIB).unwrap_err();
        let TransferError::NoPath { missing, source } = error else { panic!("{error:?}") };
        assert_eq!(*source, DriverError::DeviceLost, "{bond:?}");
        assert!(!missing.is_empty());
    }
}

#[test]
fn a_copy_of_low_priority_waits_for_one_on_either_device() {
    for device in [GPU, OTHER] {
        let pair = Pair::new(Bond::None, timed(2), 8 * MIB);
        let urgent = pair.rig.memory(device, 16 * MIB);
        let (low_bytes, seen_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (say, said) = std::sync::mpsc::channel();
        let said = std::sync::Mutex::new(said);
        let urgent_told = |progress: Progress| {
            let _ = say.send(());
            if progress.done_bytes == progress.total_bytes {
                seen_bytes.store(low_bytes.load(Ordering::SeqCst), Ordering::SeqCst);
            }
        };
        let write_urgent = || {
            let transfer = pair.rig.engine.on(device).priority(Priority::High).on_progress(&urgent_told);
            transfer.write(urgent, &vec![1; 16 << 20]).unwrap();
        };
        std::thread::scope(|scope| {
            let low_told = |progress: Progress| {
                if low_bytes.swap(progress.done_bytes, Ordering::SeqCst) == 0 {
                    scope.spawn(write_urgent);
                    said.lock().unwrap().recv().unwrap();
                }
            };
            let transfer = pair.rig.engine.on(GPU).priority(Priority::Low).on_progress(&low_told);
            transfer.copy(pair.dst, OTHER, pair.src, 8 * MIB).unwrap();
        });
        // What was under way when the urgent one began.
        let seen = seen_bytes.into_inner();
        assert!((64 << 10..=4 * (64 << 10)).contains(&seen), "{device:?}: {seen}");
    }
}

#[test]
fn it_waits_for_no_other_work_of_the_devices() {
    const LONG_NS: u64 = 900_000_000_000;
    for bond in BONDS {
        let pair = Pair::new(bond, timed(2), MIB);
        for device in [GPU, OTHER] {
            let stream = pair.rig.driver.create_stream(device).unwrap();
            pair.rig.driver.delay(stream, LONG_NS).unwrap();
        }
        pair.copy(MIB).unwrap();
        pair.copy(MIB).unwrap();
        assert!(pair.rig.driver.now_ns() < LONG_NS, "{bond:?}");
    }
}

#[test]
fn a_slot_that_could_not_be_filled_comes_back() {
    super::slots::ends(|| {
        for nth in 0..40 {
            let mut pair = Pair::new(Bond::None, timed(2), MIB);
            pair.rig.engine = Engine::with_topology(
                Arc::clone(&pair.rig.driver),
                small().pinned_bytes(64 << 10),
                Topology::of(&*pair.rig.driver).unwrap(),
            );
            let source = pair.prepare(MIB, nth);
            pair.rig.driver.plan(Fault::nth(nth));
            let _ = pair.copy(MIB);
            pair.rig.driver.clear_faults();
            pair.copy(MIB).unwrap();
            assert!(pair.found(MIB) == source, "fault {nth}");
        }
    });
}

#[test]
fn in_the_background_it_comes_behind_what_was_enqueued() {
    for bond in BONDS {
        let pair = Pair::new(bond, timed(2), MIB);
        let stream = pair.rig.driver.create_stream(OTHER).unwrap();
        pair.rig.driver.delay(stream, 3_000_000).unwrap();
        pair.rig.driver.fill(AddressRange::new(pair.src, MIB), 9, stream).unwrap();
        let pending = pair.rig.engine.on(GPU).after(stream).submit_copy(pair.dst, OTHER, pair.src, MIB);
        assert_eq!(pending.wait().unwrap().bytes, MIB);
        assert!(pair.found(MIB).iter().all(|byte| *byte == 9), "{bond:?}");
    }
}

#[test]
fn a_stream_waits_for_it_and_it_for_the_stream() {
    for bond in [Bond::Open, Bond::Shut] {
        for seed in 0..20 {
            let manual = SimConfig::h200(2).completion(Completion::Manual);
            let pair = Pair::new(bond, manual, MIB + 5);
            let source = noise(MIB + 5, seed);
            pair.rig.driver.write(pair.src, &source, pair.rig.driver.create_stream(OTHER).unwrap()).unwrap();
            let stream = pair.rig.driver.create_stream(GPU).unwrap();
            pair.rig.driver.fill(AddressRange::new(pair.dst, MIB + 5), 1, stream).unwrap();
            let transfer = pair.rig.engine.on(GPU);
            let report = transfer.enqueue_copy(pair.dst, OTHER, pair.src, MIB + 5, stream).unwrap();
            assert_eq!(report.lanes.last().unwrap().path, bond.path());
            pair.rig.driver.fill(AddressRange::new(pair.dst + 300_000, 100), 2, stream).unwrap();
            run_in_some_order(&pair.rig.driver, &mut Rng::new(seed));
            let (mut found, mut expected) = (vec![0; source.len()], source);
            pair.rig.driver.read(pair.dst, &mut found, StreamId::LEGACY).unwrap();
            expected[300_000..300_100].fill(2);
            assert!(found == expected, "{bond:?}, seed {seed}");
        }
    }
}

#[test]
fn no_stream_waits_for_a_copy_through_the_host() {
    let pair = Pair::new(Bond::None, timed(2), MIB);
    let stream = pair.rig.driver.create_stream(GPU).unwrap();
    let error = pair.rig.engine.on(GPU).enqueue_copy(pair.dst, OTHER, pair.src, MIB, stream).unwrap_err();
    let TransferError::NoPath { missing, source } = error else { panic!("{error:?}") };
    assert_eq!(*source, DriverError::NoPeerAccess(GPU));
    assert_eq!(*missing, [Segment { host_offset: 0, device: pair.dst, bytes: MIB }]);
}

#[test]
fn ways_overlap_their_halves() {
    // Over the host, each byte goes over two links at once; one behind the other would take twice as long.
    for (bond, bytes_per_us) in [(Bond::Open, 397_000), (Bond::Shut, 397_000), (Bond::None, 55_300)] {
        let mut pair = Pair::new(bond, timed(2), 256 * MIB);
        pair.rig.engine = Engine::with_topology(
            Arc::clone(&pair.rig.driver),
            Config::new(),
            Topology::of(&*pair.rig.driver).unwrap(),
        );
        pair.copy(256 * MIB).unwrap();
        let report = pair.copy(256 * MIB).unwrap();
        let of_link = report.bytes_per_s() / (bytes_per_us * 10_000);
        assert!((85..=100).contains(&of_link), "{bond:?}: {of_link} %");
    }
}
