//! Transfers that a stream waits for: order, memory, lanes, and what they cost the host.

use glake_core::driver::{
    Call, Copies, DeviceOps, Driver, DriverError, HostBuffer, SharedBytes, StreamOrder,
};
use glake_core::sim::{Fault, Target};
use glake_core::units::StreamId;

use super::*;
use crate::{Cancel, TransferError};

fn small() -> Config {
    Config::new().chunk_bytes(64 << 10).relay_from_bytes(0)
}

fn manual(n_devices: u32) -> Rig {
    Rig::over(SimConfig::h200(n_devices).completion(Completion::Manual).build(), small())
}

/// The streams that there are.
fn streams(driver: &SimDriver) -> Vec<StreamId> {
    let all = (1..64).map(|n| StreamId((1 << 32) + n));
    all.filter(|stream| driver.n_pending(*stream).is_ok()).collect()
}

/// Runs what is pending, pieces of some stream at a time, and in the end all that is left: streams that are
/// gone, and what waits for them.
pub(super) fn run_in_some_order(driver: &SimDriver, rng: &mut Rng) {
    let streams = streams(driver);
    for _ in 0..100 * streams.len() {
        let at = usize::try_from(rng.below(streams.len() as u64)).unwrap();
        let n = usize::try_from(rng.between(1, 9)).unwrap();
        driver.complete(streams[at], n).unwrap();
    }
    driver.complete_all();
}

fn found(rig: &Rig, at: DevicePtr, bytes: u64) -> Vec<u8> {
    let mut found = vec![0; usize::try_from(bytes).unwrap()];
    rig.driver.read(at, &mut found, StreamId::LEGACY).unwrap();
    found
}

/// A hundred bytes in the middle are filled behind the transfer.
const AT: usize = 300_000;

/// Two transfers to the device and one back, with fills before, between and behind, all pending at once.
fn enqueue_all(rig: &Rig, stream: StreamId, dst: DevicePtr, seed: u64) -> crate::EnqueuedRead {
    let fill = |start: DevicePtr, bytes, value| {
        rig.driver.delay(stream, 3_000_000).unwrap();
        rig.driver.fill(AddressRange::new(start, bytes), value, stream).unwrap();
    };
    fill(dst, MIB + 5, 1);
    for seed in [seed + 1, seed] {
        let source: SharedBytes = Arc::new(noise(MIB + 5, seed));
        let report = rig.engine.on(GPU).enqueue_write(dst, source, stream).unwrap();
        assert_eq!(report.lanes.iter().map(|lane| lane.bytes).sum::<u64>(), MIB + 5);
    }
    fill(dst + AT as u64, 100, 2);
    let buffer = Box::new(vec![0; (1 << 20) + 5]);
    let read = rig.engine.on(GPU).enqueue_read(dst, buffer, stream).unwrap();
    fill(dst, MIB + 5, 3);
    read
}

fn expected(seed: u64) -> Vec<u8> {
    let mut expected = noise(MIB + 5, seed);
    expected[AT..AT + 100].fill(2);
    expected
}

#[test]
fn it_comes_behind_what_is_before_and_before_what_follows() {
    for n_devices in 1..=3 {
        let rig = Rig::new(n_devices, small());
        let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB + 5));
        let mut read = enqueue_all(&rig, stream, dst, 0);
        assert!(read.try_take().unwrap().is_none());
        assert_eq!(read.report().lanes.len(), n_devices as usize);
        assert!((*read.wait().unwrap()).as_ref() == expected(0));
        assert!(rig.driver.now_ns() >= 6_000_000);
        rig.driver.complete_all();
        assert!(found(&rig, dst, MIB + 5).iter().all(|byte| *byte == 3));
    }
}

/// vllm #45704: without an event from stream to stream, copies run too early or too late.
#[test]
fn missing_cross_stream_event_corrupts() {
    for seed in 0..24 {
        let rig = manual(1 + u32::try_from(seed % 3).unwrap());
        let mut rng = Rng::new(seed);
        let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB + 5));
        let mut read = enqueue_all(&rig, stream, dst, seed);
        assert!(read.try_take().unwrap().is_none());
        assert!(found(&rig, dst, MIB + 5).iter().all(|byte| *byte == 0), "nothing has run");
        run_in_some_order(&rig.driver, &mut rng);
        let buffer = read.try_take().unwrap().unwrap();
        assert!((*buffer).as_ref() == expected(seed), "seed {seed}");
        assert!(found(&rig, dst, MIB + 5).iter().all(|byte| *byte == 3), "seed {seed}");
        assert!(matches!(read.try_take(), Err(DriverError::UnknownHost(_))), "it was taken");
    }
}

#[test]
fn it_comes_behind_another_stream_too() {
    for seed in 0..20 {
        let rig = manual(2);
        let [own, other] = [(); 2].map(|()| rig.driver.create_stream(GPU).unwrap());
        let dst = rig.memory(GPU, MIB);
        rig.driver.fill(AddressRange::new(dst, MIB), 1, other).unwrap();
        rig.engine.on(GPU).after(other).enqueue_write(dst, Arc::new(vec![2; 1 << 20]), own).unwrap();
        run_in_some_order(&rig.driver, &mut Rng::new(seed));
        assert!(found(&rig, dst, MIB).iter().all(|byte| *byte == 2));
    }
}

/// A buffer that tells when it is dropped.
#[derive(Debug)]
struct Watched(Vec<u8>, #[expect(dead_code, reason = "it is counted")] Arc<()>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Watched {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// cudarc #340, vllm #51667.
#[test]
fn host_buffer_dropped_during_an_asynchronous_copy() {
    let rig = manual(2);
    let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB));
    let source = Arc::new(noise(MIB, 1));
    let (weak, bytes) = (Arc::downgrade(&source), source.to_vec());
    rig.engine.on(GPU).enqueue_write(dst, source, stream).unwrap();
    let is_alive = Arc::new(());
    let buffer: HostBuffer = Box::new(Watched(vec![0; 1 << 20], Arc::clone(&is_alive)));
    drop(rig.engine.on(GPU).enqueue_read(dst, buffer, stream).unwrap());
    assert_eq!((weak.strong_count(), Arc::strong_count(&is_alive)), (1, 2), "the driver has both");
    run_in_some_order(&rig.driver, &mut Rng::new(3));
    assert_eq!((weak.strong_count(), Arc::strong_count(&is_alive)), (0, 1));
    assert!(found(&rig, dst, MIB) == bytes);
}

/// `LMCache` #4830: who has the handle has not the buffer, until the copy is done.
#[test]
fn host_buffer_reused_while_it_is_copied() {
    let rig = manual(2);
    let (stream, src) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB));
    let mut buffer: HostBuffer = Box::new(vec![0; 1 << 20]);
    for value in 1..4 {
        rig.driver.fill(AddressRange::new(src, MIB), value, stream).unwrap();
        let mut read = rig.engine.on(GPU).enqueue_read(src, buffer, stream).unwrap();
        let mut rng = Rng::new(u64::from(value));
        for stream in streams(&rig.driver) {
            rig.driver.complete(stream, usize::try_from(rng.below(4)).unwrap()).unwrap();
        }
        assert!(read.try_take().unwrap().is_none());
        buffer = read.wait().unwrap();
        assert!((*buffer).as_ref().iter().all(|byte| *byte == value));
        (*buffer).as_mut().fill(0xee);
    }
}

#[test]
fn a_stream_that_is_captured_is_refused_and_nothing_happens() {
    let rig = manual(2);
    let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB));
    rig.driver.begin_capture(stream).unwrap();
    let source = Arc::new(vec![1; 1 << 20]);
    let shared = Arc::clone(&source) as SharedBytes;
    let error = rig.engine.on(GPU).enqueue_write(dst, shared, stream).unwrap_err();
    assert!(matches!(error, TransferError::Driver(error) if *error == DriverError::Capturing(stream)));
    let failed = rig.engine.on(GPU).enqueue_read(dst, Box::new([7; 10]), stream).unwrap_err();
    assert!(matches!(failed.error, TransferError::Driver(_)));
    assert_eq!((*failed.buffer.wait().unwrap()).as_ref(), [7; 10]);
    assert_eq!(Arc::strong_count(&source), 1);
    assert_eq!(streams(&rig.driver), [stream], "no lane was made");
    rig.driver.end_capture(stream).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let error = rig.engine.on(GPU).cancel(&cancel).enqueue_write(dst, source, stream).unwrap_err();
    assert!(matches!(error, TransferError::Cancelled { missing } if missing.len() == 1));
    let report = rig.engine.on(GPU).enqueue_write(dst, Arc::new([]), stream).unwrap();
    assert_eq!(report.bytes, 0);
    // Nothing of it is pending, whatever is on the stream.
    rig.driver.fill(AddressRange::new(dst, MIB), 1, stream).unwrap();
    let outside = [Segment { host_offset: 1, device: dst, bytes: 10 }];
    let failed = rig.engine.on(GPU).enqueue_read_segments(&outside, Box::new([7; 10]), stream).unwrap_err();
    assert!(matches!(failed.error, TransferError::Segments(_)));
    assert_eq!((*failed.buffer.wait().unwrap()).as_ref(), [7; 10]);
    assert!(rig.driver.n_pending(stream).unwrap() > 0);
}

#[test]
fn transfers_behind_one_stream_share_lanes_and_others_wait_for_none_of_them() {
    let rig = Rig::new(2, small());
    let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB));
    rig.driver.delay(stream, 1 << 40).unwrap();
    let source: SharedBytes = Arc::new(noise(MIB, 1));
    for _ in 0..10 {
        rig.engine.on(GPU).enqueue_write(dst, Arc::clone(&source), stream).unwrap();
    }
    let n_streams = streams(&rig.driver).len();
    assert_eq!(n_streams, 1 + 3, "one direct lane and one relay");
    let other = rig.memory(GPU, MIB);
    rig.engine.on(GPU).write(other, &vec![1; 1 << 20]).unwrap();
    let apart = rig.driver.create_stream(GPU).unwrap();
    let read = rig.engine.on(GPU).enqueue_read(other, Box::new(vec![0; 1 << 20]), apart).unwrap();
    assert!((*read.wait().unwrap()).as_ref().iter().all(|byte| *byte == 1));
    assert!(rig.driver.now_ns() < 1 << 40);
    rig.driver.complete_all();
    let n_streams = streams(&rig.driver).len();
    for _ in 0..3 {
        rig.engine.on(GPU).write(other, &vec![1; 1 << 20]).unwrap();
        rig.engine.on(GPU).enqueue_write(dst, Arc::clone(&source), apart).unwrap();
        rig.driver.complete_all();
    }
    assert_eq!(streams(&rig.driver).len(), n_streams, "what is done is used again");
    assert!(found(&rig, dst, MIB) == (*source).as_ref());
}

#[test]
fn dropping_the_engine_while_copies_are_pending_keeps_their_memory() {
    let rig = manual(2);
    let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, MIB));
    let free = |driver: &SimDriver| [0, 1].map(|n| driver.memory_info(DeviceId(n)).unwrap().free_bytes);
    let before = free(&rig.driver);
    rig.engine.on(GPU).enqueue_write(dst, Arc::new(noise(MIB, 1)), stream).unwrap();
    let Rig { driver, engine } = rig;
    drop(engine);
    assert!(free(&driver) != before, "the relay's slots are still there");
    driver.complete_all();
    assert_eq!(free(&driver), before);
    let mut found = vec![0; 1 << 20];
    driver.read(dst, &mut found, StreamId::LEGACY).unwrap();
    assert!(found == noise(MIB, 1));
}

#[test]
fn a_submission_asks_the_driver_little() {
    let rig = Rig::new(2, Config::new());
    let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, 256 * MIB));
    let source: SharedBytes = Arc::new(vec![1; 256 << 20]);
    rig.engine.on(GPU).enqueue_write(dst, Arc::clone(&source), stream).unwrap();
    rig.driver.complete_all();
    let calls = || {
        let ledgers = [0, 1].map(|n| rig.driver.ledger(DeviceId(n)).unwrap());
        [Call::Record, Call::Wait, Call::Query].map(|call| ledgers.iter().map(|l| l.n(call)).sum::<u64>())
    };
    let all = || (0..2).map(|n| rig.driver.ledger(DeviceId(n)).unwrap().n_calls()).sum::<u64>();
    let (before, all_before) = (calls(), all());
    rig.driver.plan(Fault::nth(1000).of(Target::Copies));
    let report = rig.engine.on(GPU).enqueue_write(dst, Arc::clone(&source), stream).unwrap();
    let [records, waits, queries] = calls();
    let counted = [records - before[0], waits - before[1], queries - before[2]];
    let relayed = report.lanes[1].n_chunks;
    assert!(relayed > 5 && report.lanes[0].n_chunks > 5, "{report:?}");
    // One where it begins, two for each relayed chunk, one at the end of each lane. It waits in three streams at
    // first, in its own for each lane at the end, for each half, and for each slot's last use.
    assert_eq!(counted, [1 + 2 * relayed + 2, 3 + 2 + 2 * relayed, 0], "{report:?}");
    assert_eq!(all() - all_before, counted.iter().sum::<u64>(), "and nothing else");
    // As many copies as there are halves of chunks.
    let n_copies = report.lanes[0].n_chunks + 2 * relayed;
    for (nth, n_faults) in [(n_copies, 0), (n_copies - 1, 1)] {
        rig.driver.complete_all();
        rig.driver.clear_faults();
        rig.driver.plan(Fault::nth(nth).of(Target::Copies));
        rig.engine.on(GPU).enqueue_write(dst, Arc::clone(&source), stream).unwrap();
        assert_eq!(rig.driver.n_faults(), n_faults);
    }
}

#[test]
fn two_links_carry_nearly_twice_as_much() {
    let rig = Rig::new(2, Config::new());
    let (stream, dst) = (rig.driver.create_stream(GPU).unwrap(), rig.memory(GPU, 256 * MIB));
    let ns = |source: &SharedBytes| {
        let start_ns = rig.driver.now_ns();
        rig.engine.on(GPU).enqueue_write(dst, Arc::clone(source), stream).unwrap();
        let end = rig.driver.record(stream).unwrap();
        rig.driver.synchronize(end).unwrap();
        rig.driver.now_ns() - start_ns
    };
    let source: SharedBytes = Arc::new(vec![1; 256 << 20]);
    ns(&source);
    let (took, plain) = (ns(&source), 2600 + 256 * MIB * 1000 / 55_400);
    assert!(plain * 100 / took >= 190, "{took} ns, plain {plain}");
}
