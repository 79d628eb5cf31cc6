//! Whether every byte arrives, and no other.
#![allow(clippy::cast_possible_truncation, reason = "tests run on hosts of 64 bits")]

use glake_core::driver::{Copies, DeviceOps, DriverError, StreamOrder, VirtualMemory};
use glake_core::sim::{Fault, Target};

use super::*;
use crate::{Cancel, Path, TransferError};

/// Small chunks, over all paths.
fn small() -> Config {
    Config::new().chunk_bytes(64 << 10).slot_bytes(64 << 10).stage_from_bytes(256 << 10).relay_from_bytes(0)
}

/// Random segments of about `n` times `most_bytes`, with gaps, shuffled on the host side.
pub(super) fn segments(
    rng: &mut Rng,
    n: u64,
    most_bytes: u64,
    device: DevicePtr,
) -> (Vec<Segment>, u64, u64) {
    let mut sizes: Vec<u64> = (0..n).map(|_| rng.below(most_bytes)).collect();
    let (mut host, mut at) = (0, 0);
    let mut all: Vec<Segment> = Vec::new();
    for bytes in sizes.drain(..) {
        host += rng.below(100);
        at += rng.below(1000);
        all.push(Segment { host_offset: host, device: device + at, bytes });
        (host, at) = (host + bytes, at + bytes);
    }
    for i in (1..all.len()).rev() {
        let j = usize::try_from(rng.below(i as u64 + 1)).unwrap();
        // The same lengths, so that neither side overlaps.
        if all[i].bytes == all[j].bytes {
            let (a, b) = (all[i].host_offset, all[j].host_offset);
            (all[i].host_offset, all[j].host_offset) = (b, a);
        }
    }
    (all, host + 10, at + 10)
}

fn round_trip(rig: &Rig, seed: u64, n: u64, most_bytes: u64) {
    let mut rng = Rng::new(seed);
    let device = rig.memory(GPU, n * (most_bytes + 1000) + 10);
    let (segments, host_bytes, device_bytes) = segments(&mut rng, n, most_bytes, device);
    rig.fill(device, device_bytes, 0xee);
    let source = noise(host_bytes, seed);
    let pinned = pinned_noise(rig, host_bytes, seed);
    let source = if seed.is_multiple_of(2) { &source } else { (*pinned).as_ref() };
    let report = rig.engine.on(GPU).write_segments(&segments, source).unwrap();
    assert_eq!(report.bytes, segments.iter().map(|segment| segment.bytes).sum::<u64>());
    let mut expected = vec![0xee; usize::try_from(device_bytes).unwrap()];
    let range =
        |start: u64, bytes: u64| usize::try_from(start).unwrap()..usize::try_from(start + bytes).unwrap();
    for segment in &segments {
        let at = range(segment.device - device, segment.bytes);
        expected[at].copy_from_slice(&source[range(segment.host_offset, segment.bytes)]);
    }
    let mut found = vec![0; expected.len()];
    rig.engine.on(GPU).read(device, &mut found).unwrap();
    assert!(found == expected, "seed {seed}: what was written");
    let mut sink = vec![0xdd; source.len()];
    let mut expected = sink.clone();
    for segment in &segments {
        let at = range(segment.host_offset, segment.bytes);
        expected[at.clone()].copy_from_slice(&source[at]);
    }
    rig.engine.on(GPU).read_segments(&segments, &mut sink).unwrap();
    assert!(sink == expected, "seed {seed}: what was read");
    let mut sink = rig.pinned(host_bytes);
    (*sink).as_mut().fill(0xdd);
    rig.engine.on(GPU).read_segments(&segments, (*sink).as_mut()).unwrap();
    assert!((*sink).as_ref() == expected, "seed {seed}: what was read into pinned memory");
}

#[test]
fn random_segments_arrive() {
    for n_devices in [1, 2, 3] {
        let rig = Rig::new(n_devices, small().n_threads(n_devices as usize));
        for seed in 0..20 {
            round_trip(&rig, seed, seed + 1, 100 << (seed % 12));
        }
    }
}

/// `n` random transfers with one device's memory, each checked against a plain picture of both sides.
fn random_transfers(seed: u64, n: u64) {
    const BYTES: u64 = 600_000;
    let mut rng = Rng::new(seed);
    let n_devices = 1 + u32::try_from(rng.below(3)).unwrap();
    let chunk = rng.log_between(64 << 10, 1 << 20);
    let config = Config::new()
        .chunk_bytes(chunk)
        .slot_bytes(chunk / 2)
        .stage_from_bytes(256 << 10)
        .n_threads(1 + rng.below(3) as usize);
    let rig = Rig::new(n_devices, config.relay_from_bytes(rng.below(BYTES)));
    let home = DeviceId(u32::try_from(rng.below(u64::from(n_devices))).unwrap());
    let device = rig.memory(home, BYTES);
    let mut on_device = vec![0; BYTES as usize];
    let streams = [rig.driver.create_stream(home).unwrap(), rig.driver.create_stream(home).unwrap()];
    for nth in 0..n {
        let most_bytes = rng.log_between(1, BYTES / 2);
        let mut segments = Vec::new();
        let (mut host_at, mut at) = (0, 0);
        while segments.len() < 200 {
            let (gap, device_gap, bytes) = (rng.below(50), rng.below(50), rng.below(most_bytes) + 1);
            if host_at.max(at) + bytes + 50 > BYTES {
                break;
            }
            segments.push((host_at + gap, at + device_gap, bytes));
            (host_at, at) = (host_at + gap + bytes, at + device_gap + bytes);
        }
        let host_bytes = host_at + rng.below(9);
        let mut host: HostBuffer =
            if rng.below(2) == 0 { rig.pinned(host_bytes) } else { Box::new(vec![0; host_bytes as usize]) };
        let host = (*host).as_mut();
        host.copy_from_slice(&noise(host_bytes, rng.next()));
        let parts: Vec<Segment> = segments
            .iter()
            .map(|(host_offset, at, bytes)| Segment {
                host_offset: *host_offset,
                device: device + *at,
                bytes: *bytes,
            })
            .collect();
        let stream = streams[rng.below(2) as usize];
        let value = rng.next() as u8;
        if rng.below(2) == 0 {
            rig.driver.delay(stream, rng.below(50_000)).unwrap();
            rig.driver.fill(AddressRange::new(device, BYTES / 2), value, stream).unwrap();
            on_device[..BYTES as usize / 2].fill(value);
        }
        let transfer = rig.engine.on(home).after(stream);
        let ranges = segments.iter().map(|(host_at, at, bytes)| {
            (*host_at as usize..(host_at + bytes) as usize, *at as usize..(at + bytes) as usize)
        });
        if rng.below(2) == 0 {
            transfer.write_segments(&parts, host).unwrap();
            ranges.for_each(|(from, to)| on_device[to].copy_from_slice(&host[from]));
        } else {
            let mut expected = host.to_vec();
            ranges.for_each(|(to, from)| expected[to].copy_from_slice(&on_device[from]));
            transfer.read_segments(&parts, host).unwrap();
            assert!(host == expected, "seed {seed}, transfer {nth}: read");
        }
        if nth % 8 == 7 {
            let mut found = vec![0; BYTES as usize];
            rig.driver.read(device, &mut found, stream).unwrap();
            assert!(found == on_device, "seed {seed}, by transfer {nth}: written");
        }
    }
}

#[test]
fn random_transfers_arrive() {
    (0..12).for_each(|seed| random_transfers(seed, 40));
}

/// `cargo test --release -p glake-multipath --lib -- --ignored a_hundred_thousand`
#[test]
#[ignore = "takes minutes"]
fn a_hundred_thousand_transfers_arrive() {
    let threads: Vec<_> = (0..2u64)
        .map(|half| {
            std::thread::spawn(move || (0..500).for_each(|seed| random_transfers(seed * 2 + half, 100)))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn many_short_segments_arrive() {
    for n_devices in [1, 2] {
        let rig = Rig::new(n_devices, small().n_threads(2));
        for seed in 0..6 {
            round_trip(&rig, seed, 3000, 100 << seed);
        }
    }
}

#[test]
fn nothing_is_copied_in_no_time() {
    let rig = Rig::new(2, Config::new().relay_from_bytes(0));
    let dst = rig.memory(GPU, 1);
    let report = rig.engine.on(GPU).write(dst, &[]).unwrap();
    assert_eq!(report.bytes, 0);
    rig.engine.on(GPU).read(dst, &mut []).unwrap();
    assert!(rig.engine.on(GPU).write(DevicePtr(12), &[1]).is_err());
}

/// `bytes` of noise in pinned memory.
fn pinned_noise(rig: &Rig, bytes: u64, seed: u64) -> HostBuffer {
    let mut buffer = rig.pinned(bytes);
    (*buffer).as_mut().copy_from_slice(&noise(bytes, seed));
    buffer
}

#[test]
fn what_a_failed_lane_held_goes_over_the_others() {
    for nth in (0..60).step_by(3) {
        let rig = Rig::new(2, small());
        let (source, dst) = (pinned_noise(&rig, MIB + 5, nth), rig.memory(GPU, MIB + 5));
        rig.driver.plan(Fault::nth(nth).of(Target::Copies));
        let report = rig.engine.on(GPU).write(dst, (*source).as_ref()).unwrap();
        let failed: Vec<_> = report.lanes.iter().filter_map(|lane| lane.error).collect();
        assert_eq!(failed.len() as u64, rig.driver.n_faults(), "{report:?}");
        assert_eq!(report.lanes.iter().map(|lane| lane.bytes).sum::<u64>(), MIB + 5, "{report:?}");
        rig.driver.clear_faults();
        let mut back = vec![0; MIB as usize + 5];
        rig.engine.on(GPU).read(dst, &mut back).unwrap();
        assert!(back == (*source).as_ref(), "fault {nth}");
    }
}

#[test]
fn what_a_failed_lane_held_in_slots_goes_over_the_others() {
    for nth in 0..70 {
        let rig = Rig::new(2, small().n_threads(1));
        let (source, device) = (noise(MIB + 5, nth), rig.memory(GPU, MIB + 5));
        let before = free_of(&rig.driver);
        rig.driver.plan(Fault::nth(nth));
        let failed = rig.engine.on(GPU).write(device, &source).is_err();
        assert!(!failed || nth < 6, "fault {nth}: only before it began");
        if failed {
            rig.engine.on(GPU).write(device, &source).unwrap();
        }
        let mut back = vec![0; source.len()];
        rig.driver.plan(Fault::nth(nth));
        if rig.engine.on(GPU).read(device, &mut back).is_err() {
            assert!(nth < 6, "fault {nth}: only before it began");
            rig.engine.on(GPU).read(device, &mut back).unwrap();
        }
        assert!(back == source, "fault {nth}");
        rig.driver.clear_faults();
        drop(rig.engine);
        rig.driver.complete_all();
        assert_eq!(free_of(&rig.driver), before, "fault {nth}");
    }
}

fn free_of(driver: &SimDriver) -> u64 {
    driver.memory_info(DeviceId(1)).unwrap().free_bytes
}

#[test]
fn without_a_path_the_error_says_what_is_missing() {
    let rig = Rig::new(2, small());
    let dst = rig.memory(GPU, 4 * MIB);
    let mut source = rig.pinned(4 * MIB);
    (*source).as_mut().fill(3);
    rig.driver.plan(Fault::nth(40).of(Target::Copies).from_then_on());
    let error = rig.engine.on(GPU).write(dst, (*source).as_ref()).unwrap_err();
    let TransferError::NoPath { missing, source } = error else { panic!("{error:?}") };
    assert_eq!(*source, DriverError::Planned);
    rig.driver.clear_faults();
    let mut found = vec![0; 4 << 20];
    rig.engine.on(GPU).read(dst, &mut found).unwrap();
    let mut is_missing = vec![false; 4 << 20];
    for segment in &missing {
        let start = usize::try_from(segment.host_offset).unwrap();
        assert_eq!(segment.device - dst, segment.host_offset);
        is_missing[start..start + usize::try_from(segment.bytes).unwrap()].fill(true);
    }
    assert!(is_missing.iter().any(|missing| *missing) && !is_missing.iter().all(|missing| *missing));
    assert!(found.iter().zip(&is_missing).all(|(byte, missing)| *missing || *byte == 3));
}

#[test]
fn a_lost_relay_is_done_without() {
    let mut n_relayed = 0;
    for nth in 20..30 {
        let rig = Rig::new(2, small());
        let (source, dst) = (pinned_noise(&rig, 2 * MIB, nth), rig.memory(GPU, 2 * MIB));
        let source = (*source).as_ref();
        rig.driver.plan(Fault::nth(nth).of(Target::Copies).lose(DeviceId(1)));
        // The call at which the device is lost fails, of whichever lane it is.
        let Ok(report) = rig.engine.on(GPU).write(dst, source) else { continue };
        n_relayed += 1;
        assert_eq!(report.lanes[1].error, Some(DriverError::DeviceLost));
        let mut back = vec![0; source.len()];
        rig.engine.on(GPU).read(dst, &mut back).unwrap();
        assert!(back == source, "{report:?}");
        let report = rig.engine.on(GPU).write(dst, source).unwrap();
        assert_eq!(report.lanes.iter().map(|lane| lane.path).collect::<Vec<_>>(), [Path::Direct]);
    }
    assert!(n_relayed > 2, "{n_relayed}");
}

#[test]
fn a_cancelled_transfer_starts_no_more_chunks() {
    let rig = Rig::new(2, Config::new().chunk_bytes(MIB).relay_from_bytes(0));
    let dst = rig.memory(GPU, 64 * MIB);
    let cancel = Cancel::new();
    let tell = |progress: crate::Progress| {
        if progress.done_bytes >= 8 * MIB {
            cancel.cancel();
        }
    };
    let transfer = rig.engine.on(GPU).cancel(&cancel).on_progress(&tell);
    let error = transfer.write(dst, (*rig.pinned(64 * MIB)).as_ref()).unwrap_err();
    let TransferError::Cancelled { missing } = error else { panic!("{error:?}") };
    let left: u64 = missing.iter().map(|segment| segment.bytes).sum();
    // Two chunks on each lane were under way.
    assert!(((64 - 8 - 4) * MIB..=(64 - 8) * MIB).contains(&left), "{left}");
    let error = rig.engine.on(GPU).cancel(&cancel).write(dst, &[1]).unwrap_err();
    assert!(matches!(error, TransferError::Cancelled { .. }));
}

#[test]
fn a_file_is_read_into_slots() {
    let mut path = std::env::temp_dir();
    path.push(format!("glake-multipath-{}", std::process::id()));
    let content = noise(3 * MIB + 77, 5);
    std::fs::write(&path, &content).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let rig = Rig::new(2, small().n_threads(3));
    let device = rig.memory(GPU, 4 * MIB);
    let parts = [(77, 0, 2 * MIB), (5, 3 * MIB, 60), (2 * MIB + 90, 2 * MIB + 512, MIB / 2)];
    let segments =
        parts.map(|(offset, at, bytes)| Segment { host_offset: offset, device: device + at, bytes });
    rig.engine.on(GPU).write_file(&segments, &file).unwrap();
    for segment in segments {
        let mut found = vec![0; segment.bytes as usize];
        rig.engine.on(GPU).read(segment.device, &mut found).unwrap();
        let start = segment.host_offset as usize;
        assert!(found == content[start..start + found.len()], "{segment:?}");
    }
    // It ends before the last segment does.
    let segments = [
        Segment { host_offset: 0, device, bytes: MIB },
        Segment { host_offset: 3 * MIB, device: device + MIB, bytes: MIB },
    ];
    let error = rig.engine.on(GPU).write_file(&segments, &file).unwrap_err();
    let TransferError::Source { missing, source } = error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(missing.contains(&segments[1]), "{missing:?}");
}

#[test]
fn a_panic_in_a_callback_ends_the_transfer() {
    for source in [vec![1; 2 << 20], vec![1; 1000]] {
        let rig = Rig::new(2, small().n_threads(4));
        let dst = rig.memory(GPU, 2 * MIB);
        let tell = |_: crate::Progress| panic!("planned");
        let write = || rig.engine.on(GPU).on_progress(&tell).write(dst, &source);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
        assert!(panicked.is_err());
        rig.engine.on(GPU).write(dst, &source).unwrap();
    }
}

#[test]
fn transfers_share_few_slots() {
    let rig = Rig::new(2, small().n_threads(2).pinned_bytes(3 * (64 << 10)));
    let run = |seed: u64| {
        let device = rig.memory(GPU, 2 * MIB);
        let source = noise(2 * MIB, seed);
        for _ in 0..3 {
            rig.engine.on(GPU).write(device, &source).unwrap();
            let mut back = vec![0; source.len()];
            rig.engine.on(GPU).read(device, &mut back).unwrap();
            assert!(back == source, "{seed}");
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let run = &run;
            scope.spawn(move || run(seed));
        }
    });
}

#[test]
fn a_cancelled_transfer_through_slots_says_what_is_missing() {
    let rig = Rig::new(2, small().n_threads(3));
    let dst = rig.memory(GPU, 8 * MIB);
    let cancel = Cancel::new();
    let tell = |progress: crate::Progress| {
        if progress.done_bytes >= MIB {
            cancel.cancel();
        }
    };
    let error =
        rig.engine.on(GPU).cancel(&cancel).on_progress(&tell).write(dst, &vec![9; 8 << 20]).unwrap_err();
    let TransferError::Cancelled { missing } = error else { panic!("{error:?}") };
    let mut found = vec![0; 8 << 20];
    rig.engine.on(GPU).read(dst, &mut found).unwrap();
    let mut arrived = vec![true; 8 << 20];
    for segment in &missing {
        arrived[segment.host_offset as usize..][..segment.bytes as usize].fill(false);
    }
    assert!(found.iter().zip(&arrived).all(|(byte, arrived)| (*byte == 9) == *arrived));
    let left: u64 = missing.iter().map(|segment| segment.bytes).sum();
    assert!(left >= (8 - 1) * MIB - 10 * (64 << 10), "{left}");
}

#[test]
fn so_many_devices_relay() {
    for (n, most) in [(4, usize::MAX), (3, 2), (2, 1), (1, 0)] {
        let rig = Rig::new(4, small().most_relays(most));
        let (device, source) = (rig.memory(GPU, 4 * MIB), noise(4 * MIB, 6));
        let report = rig.engine.on(GPU).write(device, &source).unwrap();
        assert_eq!(report.lanes.len(), n);
    }
}
