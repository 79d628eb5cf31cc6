//! The transfer engine over the CUDA driver: on GPUs by `device_transfers.rs`, on the stand-in by
//! `standin_transfers.rs`.

use std::sync::Arc;
use std::thread;

use glake::multipath::topology::{Place, Topology};
use glake::multipath::{Cancel, Config, Engine, Path, Segment, TransferError};
use glake_core::driver::{Access, Copies, DeviceOps, Driver, HostMemory, StreamOrder, VirtualMemory};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES};
use glake_cuda::CudaDriver;
use glake_testkit::rng::Rng;

use super::{driver, work_late};

/// As long as all transfers of one thread.
const BYTES: u64 = 8 << 20;
const N_THREADS: u64 = 4;
const N_ROUNDS: u64 = 12;

/// Small chunks over all paths, so that there are many.
fn config() -> Config {
    Config::new()
        .chunk_bytes(256 << 10)
        .slot_bytes(128 << 10)
        .stage_from_bytes(256 << 10)
        .relay_from_bytes(0)
        .n_threads(3)
}

/// Memory of `device` that it alone can reach, in handles of one page.
fn memory(driver: &CudaDriver, device: DeviceId, bytes: u64) -> AddressRange {
    let range = driver.reserve(bytes, PAGE_BYTES).unwrap();
    for page in 0..bytes / PAGE_BYTES {
        let handle = driver.create(device, PAGE_BYTES).unwrap();
        driver.map(range.start + page * PAGE_BYTES, handle).unwrap();
        driver.release(handle).unwrap();
    }
    driver.set_access(range, &[device], Access::ReadWrite).unwrap();
    range
}

fn give_back(driver: &CudaDriver, range: AddressRange) {
    driver.unmap(range).unwrap();
    driver.unreserve(range).unwrap();
}

/// Segments that cover a part of `range`, in random order, with gaps on both sides.
fn segments(rng: &mut Rng, range: AddressRange) -> Vec<Segment> {
    let mean = rng.log_between(64, 1 << 20);
    let (mut host, mut at) = (rng.below(64), rng.below(64));
    let mut lengths = Vec::new();
    while lengths.len() < 3000 {
        let bytes = rng.below(2 * mean) + 1;
        if host.max(at) + bytes + 200 > range.bytes {
            break;
        }
        lengths.push((host, at, bytes));
        host += bytes + rng.below(100);
        at += bytes + rng.below(100);
    }
    lengths.reverse();
    let segment = |(host_offset, at, bytes)| Segment { host_offset, device: range.start + at, bytes };
    lengths.into_iter().map(segment).collect()
}

fn part(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    usize::try_from(offset).unwrap()..usize::try_from(offset + bytes).unwrap()
}

fn noise(rng: &mut Rng, bytes: &mut [u8]) {
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&rng.next().to_le_bytes()[..word.len()]);
    }
}

/// Random transfers of one thread with one of the devices, checked by plain copies.
fn transfer(driver: &CudaDriver, engine: &Engine, seed: u64) {
    let mut rng = Rng::new(seed);
    let device = DeviceId(u32::try_from(seed).unwrap() % driver.n_devices());
    let range = memory(driver, device, BYTES);
    let stream = driver.create_stream(device).unwrap();
    let mut pinned = driver.pin(BYTES, device).unwrap();
    let mut pageable = vec![0; pinned.as_ref().as_ref().len()];
    for round in 0..N_ROUNDS {
        let segments = segments(&mut rng, range);
        let host = if round % 2 == 0 { (*pinned).as_mut() } else { &mut pageable[..] };
        noise(&mut rng, host);
        let mut expected = vec![0xee; host.len()];
        driver.fill(range, 0xee, stream).unwrap();
        engine.on(device).after(stream).write_segments(&segments, host).unwrap();
        for segment in &segments {
            let from = &host[part(segment.host_offset, segment.bytes)];
            expected[part(segment.device - range.start, segment.bytes)].copy_from_slice(from);
        }
        let mut found = vec![0; host.len()];
        driver.read(range.start, &mut found, stream).unwrap();
        assert!(found == expected, "seed {seed}, round {round}: written");

        noise(&mut rng, &mut expected);
        driver.write(range.start, &expected, stream).unwrap();
        let mut expected_host = host.to_vec();
        engine.on(device).read_segments(&segments, host).unwrap();
        for segment in &segments {
            let from = &expected[part(segment.device - range.start, segment.bytes)];
            expected_host[part(segment.host_offset, segment.bytes)].copy_from_slice(from);
        }
        assert!(host == expected_host, "seed {seed}, round {round}: read");
    }
    driver.destroy_stream(stream).unwrap();
    give_back(driver, range);
}

#[test]
fn random_transfers_of_several_threads_arrive() {
    work_late();
    let driver = Arc::new(driver());
    let engine = Engine::new(Arc::clone(&driver), config()).unwrap();
    thread::scope(|scope| {
        for seed in 0..N_THREADS {
            let (driver, engine) = (&driver, &engine);
            scope.spawn(move || {
                work_late();
                transfer(driver, engine, seed);
            });
        }
    });
}

/// Between two devices where there are two: at first the target has no access to the source's memory.
#[test]
fn copies_between_devices_arrive() {
    work_late();
    let driver = Arc::new(driver());
    let (source, target) = (DeviceId(driver.n_devices().min(2) - 1), DeviceId(0));
    let n_devices = usize::try_from(driver.n_devices()).unwrap();
    let apart = Topology::new(vec![Place::default(); n_devices], Vec::new(), None);
    for topology in [Topology::of(&*driver).unwrap(), apart] {
        let engine = Engine::with_topology(Arc::clone(&driver), config(), topology);
        let are_peers = engine.topology().are_peers(source, target);
        let (src, dst) = (memory(&driver, source, BYTES), memory(&driver, target, BYTES));
        for seed in 0..6 {
            let is_open = are_peers && seed >= 3;
            if is_open {
                driver.set_access(src, &[target], Access::ReadOnly).unwrap();
            }
            let mut rng = Rng::new(seed);
            let mut bytes = vec![0; 8 << 20];
            noise(&mut rng, &mut bytes);
            engine.on(source).write(src.start, &bytes).unwrap();
            let segments = segments(&mut rng, dst);
            let report = engine.on(target).copy_segments(&segments, source, src).unwrap();
            let path = match (source == target, are_peers, is_open) {
                (true, ..) | (_, true, true) => Path::Direct,
                (_, true, false) => Path::Via(source),
                (_, false, _) => Path::Host,
            };
            assert_eq!(report.lanes.last().map(|lane| (lane.path, lane.bytes)), Some((path, report.bytes)));
            let mut found = vec![0; 8 << 20];
            engine.on(target).read(dst.start, &mut found).unwrap();
            for segment in segments {
                let at = part(segment.device - dst.start, segment.bytes);
                let from = part(segment.host_offset, segment.bytes);
                assert!(found[at] == bytes[from], "{path:?}, seed {seed}");
            }
        }
        drop(engine);
        give_back(&driver, src);
        give_back(&driver, dst);
    }
}

#[test]
fn a_transfer_comes_behind_its_stream() {
    work_late();
    let driver = Arc::new(driver());
    let engine = Engine::new(Arc::clone(&driver), config()).unwrap();
    let device = DeviceId(0);
    let range = memory(&driver, device, BYTES);
    let stream = driver.create_stream(device).unwrap();
    for value in 1..6 {
        for mut host in [driver.pin(BYTES, device).unwrap(), Box::new(vec![0; 8 << 20])] {
            driver.delay(stream, 2_000_000).unwrap();
            driver.fill(range, value, stream).unwrap();
            let report = engine.on(device).after(stream).read(range.start, (*host).as_mut()).unwrap();
            assert!((*host).as_ref().iter().all(|byte| *byte == value), "read before it was written");
            let paths: Vec<Path> = report.lanes.iter().map(|lane| lane.path).collect();
            assert_eq!(paths[0], Path::Direct);
            assert_eq!(paths.len() > 1, !engine.topology().relays_for(device).is_empty());
            assert_eq!(report.lanes.iter().map(|lane| lane.bytes).sum::<u64>(), BYTES);
        }
    }
    driver.destroy_stream(stream).unwrap();
    give_back(&driver, range);
}

#[test]
fn a_cancelled_transfer_leaves_the_rest_alone() {
    work_late();
    let driver = Arc::new(driver());
    let engine = Engine::new(Arc::clone(&driver), config()).unwrap();
    let device = DeviceId(0);
    let range = memory(&driver, device, BYTES);
    let stream = driver.create_stream(device).unwrap();
    driver.fill(range, 1, stream).unwrap();
    let cancel = Cancel::new();
    let tell = |progress: glake::multipath::Progress| {
        if progress.done_bytes > BYTES / 4 {
            cancel.cancel();
        }
    };
    let transfer = engine.on(device).after(stream).cancel(&cancel).on_progress(&tell);
    let error = transfer.write(range.start, &vec![2; 8 << 20]).unwrap_err();
    let TransferError::Cancelled { missing } = error else { panic!("{error:?}") };
    let mut found = vec![0; 8 << 20];
    driver.read(range.start, &mut found, stream).unwrap();
    let mut expected = vec![2; 8 << 20];
    for segment in &missing {
        expected[part(segment.host_offset, segment.bytes)].fill(1);
    }
    assert!(found == expected);
    assert!(missing.iter().map(|segment| segment.bytes).sum::<u64>() > BYTES / 4);
    driver.destroy_stream(stream).unwrap();
    give_back(&driver, range);
}

#[test]
fn foreign_memory_is_refused() {
    let driver = Arc::new(driver());
    let engine = Engine::new(Arc::clone(&driver), config()).unwrap();
    for bytes in [1, 1 << 20] {
        let error = engine.on(DeviceId(0)).write(DevicePtr(4096), &vec![0; bytes]).unwrap_err();
        assert!(matches!(error, TransferError::NoPath { .. }), "{error:?}");
    }
}
