//! How close transfers come to what the links carry, by the virtual clock.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{Progress, Report};

/// What one link carries, in bytes per second.
const LINK: u64 = 55_300_000_000;

/// A rig whose lanes are made, with memory.
fn warm(n_devices: u32, bytes: u64) -> (Rig, DevicePtr) {
    let rig = Rig::new(n_devices, Config::new());
    let memory = rig.memory(GPU, bytes);
    write(&rig, memory, 8 * MIB);
    (rig, memory)
}

fn write(rig: &Rig, dst: DevicePtr, bytes: u64) -> Report {
    rig.engine.on(GPU).write(dst, (*rig.pinned(bytes)).as_ref()).unwrap()
}

fn read(rig: &Rig, src: DevicePtr, bytes: u64) -> Report {
    rig.engine.on(GPU).read(src, (*rig.pinned(bytes)).as_mut()).unwrap()
}

/// How long a plain copy takes.
fn plain_ns(bytes: u64) -> u64 {
    2600 + bytes * 1000 / 55_400
}

#[test]
fn two_links_carry_twice_as_much() {
    let (rig, memory) = warm(2, 256 * MIB);
    for transfer in [write, read] {
        let report = transfer(&rig, memory, 256 * MIB);
        let rate = report.bytes_per_s();
        assert!(rate >= LINK * 2 / 100 * 97, "256 MiB at {rate} B/s: {report:?}");
        let report = transfer(&rig, memory, 64 * MIB);
        let times = plain_ns(64 * MIB) * 100 / report.ns;
        assert!(times >= 185, "64 MiB at {times} % of a plain copy's rate: {report:?}");
    }
}

#[test]
fn a_long_copy_reaches_the_sum_of_the_links() {
    let (rig, memory) = warm(2, 1 << 30);
    let report = write(&rig, memory, 1 << 30);
    assert!(report.bytes_per_s() >= LINK * 2 / 100 * 98, "{report:?}");
}

#[test]
fn four_links_carry_four_times_as_much() {
    let (rig, memory) = warm(4, 256 * MIB);
    let report = write(&rig, memory, 256 * MIB);
    assert!(report.bytes_per_s() >= LINK * 4 / 100 * 95, "{report:?}");
    assert_eq!(report.lanes.len(), 4);
}

#[test]
fn one_link_is_as_fast_as_a_plain_copy() {
    let (rig, memory) = warm(1, 128 * MIB);
    for shift in 16..=27 {
        let bytes = 1 << shift;
        for report in [write(&rig, memory, bytes), read(&rig, memory, bytes)] {
            let most = (plain_ns(bytes) * 100 / 98).max(plain_ns(bytes) + 3000);
            assert!(report.ns <= most, "{bytes} B took {} ns, plain {}", report.ns, plain_ns(bytes));
        }
    }
}

#[test]
fn a_slow_link_takes_fewer_chunks() {
    let (rig, memory) = warm(2, 256 * MIB);
    let slow = LinkRates { to_device_bytes_per_us: 55_400 / 2, ..LinkRates::h200() };
    rig.driver.set_links(DeviceId(1), slow).unwrap();
    let report = write(&rig, memory, 256 * MIB);
    let rate = report.bytes_per_s();
    assert!(rate >= LINK * 3 / 2 / 100 * 95, "{rate} B/s: {report:?}");
}

#[test]
fn a_link_that_slows_down_meanwhile_takes_fewer_chunks() {
    let (rig, memory) = warm(2, 256 * MIB);
    let slow = LinkRates { to_device_bytes_per_us: 55_400 / 2, ..LinkRates::h200() };
    let is_slow = AtomicBool::new(false);
    let tell = |progress: Progress| {
        if progress.done_bytes > 64 * MIB && !is_slow.swap(true, Ordering::Relaxed) {
            rig.driver.set_links(DeviceId(1), slow).unwrap();
        }
    };
    let report =
        rig.engine.on(GPU).on_progress(&tell).write(memory, (*rig.pinned(256 * MIB)).as_ref()).unwrap();
    let ideal = (64 * MIB) * 1000 / 110_800 + (192 * MIB) * 1000 / 83_100;
    assert!(report.ns <= ideal * 105 / 100, "{} ns, ideal {ideal}: {report:?}", report.ns);
}

#[test]
fn the_same_transfer_takes_the_same_time() {
    let report = || {
        let (rig, memory) = warm(2, 64 * MIB);
        write(&rig, memory, 60 * MIB + 12345)
    };
    assert_eq!(report(), report());
}

/// 10,000 pieces of 16 KiB, `gap` bytes apart on the host, and in another order with gaps on the device.
fn scattered(device: DevicePtr, gap: u64) -> Vec<Segment> {
    const PIECE: u64 = 16 << 10;
    let piece = |n: u64| Segment {
        host_offset: n * (PIECE + gap),
        device: device + n * 7919 % 10_000 * 2 * PIECE,
        bytes: PIECE,
    };
    (0..10_000).map(piece).collect()
}

#[test]
fn scattered_pieces_go_as_a_whole() {
    let (rig, memory) = warm(1, 10_000 * (32 << 10));
    for gap in [0, 512] {
        let segments = scattered(memory, gap);
        let host_bytes = segments.last().unwrap().host_offset + (16 << 10);
        let mut host = rig.pinned(host_bytes);
        for round in 0..2 {
            let host = (*host).as_mut();
            let write = rig.engine.on(GPU).write_segments(&segments, host).unwrap();
            let read = rig.engine.on(GPU).read_segments(&segments, host).unwrap();
            // Through slots, only bytes are tried here: threads fill them in their own time.
            if gap == 0 && round > 0 {
                for report in [write, read] {
                    assert!(report.bytes_per_s() >= 40_000_000_000, "{} B/s", report.bytes_per_s());
                }
            }
        }
    }
}

/// vllm #57342: the size of one part picked the path for all. What counts is the whole transfer.
#[test]
fn wrong_size_picks_the_path() {
    let rig = Rig::new(2, Config::new().relay_from_bytes(4 * MIB));
    let memory = rig.memory(GPU, 8 * MIB);
    let host = rig.pinned(8 * MIB);
    let part = |n: u64, bytes| Segment { host_offset: n * MIB, device: memory + n * MIB, bytes };
    let n_lanes = |segments: &[Segment]| {
        rig.engine.on(GPU).write_segments(segments, (*host).as_ref()).unwrap().lanes.len()
    };
    assert_eq!(n_lanes(&[part(0, 4 * MIB - 1)]), 1);
    assert_eq!(n_lanes(&[part(0, MIB), part(1, MIB), part(2, MIB), part(3, MIB)]), 2);
    assert_eq!(n_lanes(&[part(0, 100), part(1, 4 * MIB)]), 2, "whichever comes first");
}

/// nvbandwidth #53: one direction slower than the other.
#[test]
fn both_directions_are_as_fast() {
    let (rig, memory) = warm(2, 64 * MIB);
    let (to_device, to_host) = (write(&rig, memory, 64 * MIB), read(&rig, memory, 64 * MIB));
    assert!(to_host.ns <= to_device.ns * 105 / 100, "{to_device:?} {to_host:?}");
    assert!(to_device.ns <= to_host.ns * 105 / 100, "{to_device:?} {to_host:?}");
}
