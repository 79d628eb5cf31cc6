//! What only the simulated driver does: small devices, cut links, work that completes when told,
//! planned failures, and memory shared with another process.
#![allow(clippy::unwrap_used, reason = "tests panic to fail, their helpers too")]

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use glake_core::driver::{
    Access, Call, Copies, DeviceOps, Driver, DriverError, Held, HostMemory, Lent, Result, Sharing,
    StreamOrder, VirtualMemory,
};
use glake_core::sim::{Completion, Fault, SimConfig, SimDriver, Target};
use glake_core::units::{AddressRange, DeviceId, HandleId, PAGE_BYTES, StreamId};

const DEVICE: DeviceId = DeviceId(0);
const STREAM: StreamId = StreamId::LEGACY;

fn manual() -> SimDriver {
    SimConfig::h200(1).completion(Completion::Manual).build()
}

/// Maps a handle of one page, readable and writable.
fn place(driver: &SimDriver, handle: HandleId) -> AddressRange {
    let range = driver.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
    driver.map(range.start, handle).unwrap();
    driver.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    range
}

fn new_page(driver: &SimDriver) -> AddressRange {
    place(driver, driver.create(DEVICE, PAGE_BYTES).unwrap())
}

fn byte(driver: &SimDriver, range: AddressRange) -> u8 {
    let mut byte = [0];
    driver.read(range.start, &mut byte, STREAM).unwrap();
    byte[0]
}

#[test]
fn memory_is_had_to_the_last_page() {
    let driver = SimConfig::h200(1).memory_bytes(4 * PAGE_BYTES).build();
    let three = driver.create(DEVICE, 3 * PAGE_BYTES).unwrap();
    assert_eq!(driver.create(DEVICE, 2 * PAGE_BYTES), Err(DriverError::OutOfMemory));
    let one = driver.create(DEVICE, PAGE_BYTES).unwrap();
    assert_eq!(driver.memory_info(DEVICE).unwrap().free_bytes, 0);
    let range = place(&driver, one);
    driver.release(one).unwrap();
    assert_eq!(driver.create(DEVICE, PAGE_BYTES), Err(DriverError::OutOfMemory), "it is still mapped");
    driver.unmap(range).unwrap();
    driver.create(DEVICE, PAGE_BYTES).unwrap();
    driver.release(three).unwrap();
    driver.create(DEVICE, 3 * PAGE_BYTES).unwrap();
}

#[test]
fn fresh_memory_is_zero_whatever_was_there_before() {
    let driver = SimConfig::h200(1).memory_bytes(PAGE_BYTES).build();
    for _ in 0..3 {
        let handle = driver.create(DEVICE, PAGE_BYTES).unwrap();
        let range = place(&driver, handle);
        assert_eq!(byte(&driver, range), 0);
        driver.fill(range, 0xff, STREAM).unwrap();
        driver.unmap(range).unwrap();
        driver.release(handle).unwrap();
    }
}

#[test]
fn cut_links_are_seen_in_both_directions() {
    let driver = SimConfig::h200(3).without_peers(DEVICE, DeviceId(2)).build();
    for (owner, other) in [(0, 2), (2, 0)].map(|(a, b)| (DeviceId(a), DeviceId(b))) {
        let range = driver.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
        driver.map(range.start, driver.create(owner, PAGE_BYTES).unwrap()).unwrap();
        let set = |devices: &[DeviceId]| driver.set_access(range, devices, Access::ReadWrite);
        assert_eq!(set(&[owner, other]), Err(DriverError::NoPeerAccess(other)));
        let stream = driver.create_stream(owner).unwrap();
        let refused = driver.fill(range, 1, stream);
        assert!(matches!(refused, Err(DriverError::NoAccess(_))), "nothing was given: {refused:?}");
        assert_eq!(set(&[owner, DeviceId(1)]), Ok(()));
    }
}

#[test]
fn work_waits_until_it_is_told_to_complete() {
    let driver = manual();
    let range = new_page(&driver);
    let source: Arc<Vec<u8>> = Arc::new(vec![7; 16]);
    driver.write_async(range.start, source.clone(), STREAM).unwrap();
    let read = driver.read_async(range.start, vec![0; 16].into(), STREAM).unwrap();
    let event = driver.record(STREAM).unwrap();
    assert_eq!((driver.n_pending(STREAM), Arc::strong_count(&source)), (Ok(3), 2));
    assert_eq!(driver.complete(STREAM, 1), Ok(1));
    assert_eq!((driver.take_read(read), Arc::strong_count(&source)), (Ok(None), 1));
    assert_eq!(driver.complete(STREAM, 1), Ok(1));
    assert_eq!((driver.take_read(read), driver.query(event)), (Ok(Some(vec![7; 16].into())), Ok(false)));
    assert_eq!(driver.complete(STREAM, 9), Ok(1));
    assert_eq!(driver.query(event), Ok(true));
}

#[test]
fn a_wait_holds_its_stream_until_the_event_has_passed() {
    let driver = manual();
    let range = new_page(&driver);
    let (first, second) = (driver.create_stream(DEVICE).unwrap(), driver.create_stream(DEVICE).unwrap());
    driver.fill(range, 1, first).unwrap();
    let event = driver.record(first).unwrap();
    driver.wait(second, event).unwrap();
    driver.fill(range, 2, second).unwrap();
    assert_eq!(driver.complete(second, 9), Ok(0), "it waits");
    assert_eq!(driver.complete(first, 1), Ok(1));
    assert_eq!(driver.complete(second, 9), Ok(0), "the event itself has not passed");
    assert_eq!(driver.complete(first, 1), Ok(1));
    assert_eq!(driver.complete(second, 9), Ok(2));
    assert_eq!(byte(&driver, range), 2);
}

#[test]
fn blocking_runs_what_is_needed_and_nothing_else() {
    let driver = manual();
    let range = new_page(&driver);
    let (first, second) = (driver.create_stream(DEVICE).unwrap(), driver.create_stream(DEVICE).unwrap());
    driver.fill(range, 1, first).unwrap();
    let needed = driver.record(first).unwrap();
    driver.fill(range, 3, first).unwrap();
    driver.wait(second, needed).unwrap();
    let event = driver.record(second).unwrap();
    driver.synchronize(event).unwrap();
    assert_eq!((driver.n_pending(first), byte(&driver, range)), (Ok(1), 1));
    driver.complete_all();
    assert_eq!((driver.n_pending(first), byte(&driver, range)), (Ok(0), 3));
}

#[test]
fn each_thread_has_a_queue_of_its_own() {
    let driver = manual();
    let fill = || {
        driver.delay(StreamId::PER_THREAD, 1).unwrap();
        driver.record(StreamId::PER_THREAD).unwrap()
    };
    let elsewhere = std::thread::scope(|scope| scope.spawn(fill).join().unwrap());
    let here = fill();
    assert_eq!(driver.n_pending(StreamId::PER_THREAD), Ok(2));
    assert_eq!(driver.complete(StreamId::PER_THREAD, 9), Ok(2));
    assert_eq!([here, elsewhere].map(|event| driver.query(event)), [Ok(true), Ok(false)]);
    driver.synchronize(elsewhere).unwrap();
}

#[test]
fn an_event_of_a_device_waits_for_its_streams_only() {
    let driver = SimConfig::h200(2).completion(Completion::Manual).build();
    let [a, b] = [(); 2].map(|()| driver.create_stream(DEVICE).unwrap());
    let away = driver.create_stream(DeviceId(1)).unwrap();
    for stream in [a, b, away] {
        driver.delay(stream, 1).unwrap();
    }
    let all = driver.record_all(DEVICE).unwrap();
    driver.delay(a, 1).unwrap();
    driver.wait(away, all).unwrap();
    assert_eq!((driver.complete(away, 9), driver.complete(a, 1)), (Ok(1), Ok(1)));
    assert_eq!(driver.query(all), Ok(false), "b is not done");
    assert_eq!((driver.complete(b, 1), driver.query(all)), (Ok(1), Ok(true)));
    assert_eq!((driver.n_pending(a), driver.complete(away, 9)), (Ok(1), Ok(1)));
    driver.synchronize_all(DEVICE).unwrap();
    assert_eq!(driver.n_pending(a), Ok(0));
}

#[test]
fn an_event_of_a_device_lags_as_work_does() {
    let driver = SimConfig::h200(1).completion(Completion::Lag(20_000)).build();
    let all = driver.record_all(DEVICE).unwrap();
    assert_eq!(driver.query(all), Ok(false));
    driver.delay(STREAM, 50_000).unwrap();
    let behind = driver.record_all(DEVICE).unwrap();
    driver.advance(20_000);
    assert_eq!((driver.query(all), driver.query(behind)), (Ok(true), Ok(false)));
    driver.synchronize(behind).unwrap();
    let now_ns = driver.now_ns();
    assert!((70_000..71_000).contains(&now_ns), "{now_ns}");
}

#[test]
fn delays_and_waits_take_time_by_the_clock() {
    let driver = SimConfig::h200(1).completion(Completion::Lag(1_000)).build();
    let range = new_page(&driver);
    let other = driver.create_stream(DEVICE).unwrap();
    driver.delay(STREAM, 50_000).unwrap();
    driver.fill(range, 1, STREAM).unwrap();
    let event = driver.record(STREAM).unwrap();
    driver.wait(other, event).unwrap();
    let behind = driver.record(other).unwrap();
    driver.advance(49_000);
    assert_eq!((driver.query(event), driver.query(behind)), (Ok(false), Ok(false)));
    driver.advance(2_000);
    assert_eq!((driver.query(event), driver.query(behind)), (Ok(true), Ok(true)));
    assert_eq!(driver.n_pending(other), Ok(0));
}

#[test]
fn who_asks_in_a_loop_gets_an_answer() {
    let driver = SimConfig::h200(1).completion(Completion::Lag(100_000)).build();
    let event = driver.record(STREAM).unwrap();
    let n_asked = (1..1000).find(|_| driver.query(event).unwrap()).unwrap();
    assert!((600..=640).contains(&n_asked), "{n_asked} queries of 157 ns");
}

#[test]
fn a_device_lost_under_pending_work_runs_nothing_more() {
    let driver = manual();
    let range = new_page(&driver);
    let other = driver.create_stream(DEVICE).unwrap();
    driver.fill(range, 1, other).unwrap();
    let read = driver.read_async(range.start, vec![9].into(), other).unwrap();
    driver.plan(Fault::nth(0).of(Target::One(Call::Record)).lose(DEVICE));
    assert_eq!(driver.record(STREAM), Err(DriverError::DeviceLost));
    driver.complete_all();
    assert_eq!(driver.take_read(read), Err(DriverError::DeviceLost));
    assert_eq!(driver.memory_info(DEVICE), Err(DriverError::DeviceLost));
    assert_eq!(driver.unmap(range), Err(DriverError::DeviceLost));
    assert_eq!(driver.reserve(PAGE_BYTES, PAGE_BYTES), Err(DriverError::DeviceLost));
}

/// One of everything.
fn all_calls(driver: &SimDriver) -> Result<()> {
    let stream = driver.create_stream(DEVICE)?;
    let range = driver.reserve(2 * PAGE_BYTES, PAGE_BYTES)?;
    let handle = driver.create(DEVICE, PAGE_BYTES)?;
    let page = AddressRange::new(range.start, PAGE_BYTES);
    driver.map(page.start, handle)?;
    driver.set_access(page, &[DEVICE], Access::ReadWrite)?;
    driver.write(page.start, &[1], stream)?;
    driver.fill_pattern(page, 1, stream)?;
    let host = driver.hold(Held::Owned(driver.pin(64, DEVICE)?));
    driver.write_from(page.start, host, 0..64, stream)?;
    driver.read_into(page.start, host, 0..64, stream)?;
    driver.lend(Lent::Source(&[1]), &mut |host| driver.write_from(page.start, host, 0..1, stream))?;
    let event = driver.record(stream)?;
    driver.wait(stream, event)?;
    driver.query(event)?;
    driver.synchronize(event)?;
    driver.take_back(host)?;
    driver.record_all(DEVICE)?;
    driver.synchronize_all(DEVICE)?;
    driver.begin_capture(stream)?;
    driver.is_capturing(stream)?;
    let graph = driver.end_capture(stream)?;
    driver.launch(graph, stream)?;
    driver.destroy_graph(graph)?;
    driver.memory_info(DEVICE)?;
    let imported = driver.import(DEVICE, driver.export(handle)?, PAGE_BYTES)?;
    driver.release(imported)?;
    driver.unmap(page)?;
    driver.release(handle)?;
    driver.unreserve(range)?;
    driver.destroy_stream(stream)
}

#[test]
fn each_call_can_be_made_to_fail() {
    let mut n_calls = 0;
    loop {
        let driver = SimDriver::h200(1);
        driver.plan(Fault::nth(n_calls));
        match all_calls(&driver) {
            Ok(()) => break assert_eq!(driver.n_faults(), 0),
            Err(error) => assert_eq!((error, driver.n_faults()), (DriverError::Planned, 1), "call {n_calls}"),
        }
        n_calls += 1;
    }
    assert_eq!(n_calls, 31);
}

#[test]
fn the_same_calls_give_the_same_ids_addresses_and_figures() {
    let run = || {
        let driver = SimConfig::h200(1).completion(Completion::Lag(500)).build();
        for _ in 0..3 {
            all_calls(&driver).unwrap();
        }
        let handle = driver.create(DEVICE, PAGE_BYTES).unwrap();
        (
            handle,
            place(&driver, handle),
            driver.record(STREAM),
            driver.now_ns(),
            driver.ledger(DEVICE).unwrap(),
        )
    };
    assert_eq!(run(), run());
}

#[test]
fn imported_memory_is_accounted_where_it_was_created() {
    let (owner, reader) = (SimDriver::h200(1), SimDriver::h200(1));
    let handle = owner.create(DEVICE, PAGE_BYTES).unwrap();
    reader.create(DEVICE, PAGE_BYTES).unwrap();
    let imported = reader.import(DEVICE, owner.export(handle).unwrap(), PAGE_BYTES).unwrap();
    let physical =
        || [&owner, &reader].map(|driver| driver.ledger(DEVICE).unwrap().physical_bytes / PAGE_BYTES);
    assert_eq!(physical(), [1, 1]);
    reader.release(imported).unwrap();
    assert_eq!(physical(), [1, 1]);
    owner.release(handle).unwrap();
    assert_eq!(physical(), [0, 1]);
}

#[test]
fn another_process_shares_the_memory_and_its_death_loses_nothing() {
    let driver = SimDriver::h200(1);
    let handle = driver.create(DEVICE, PAGE_BYTES).unwrap();
    let range = place(&driver, handle);
    driver.write(range.start, b"parent", STREAM).unwrap();
    let fd = driver.export(handle).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_of_the_sharing_test", "--ignored"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    child.stdin.take().unwrap().write_all(path.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    let mut bytes = [0; 12];
    driver.read(range.start, &mut bytes, STREAM).unwrap();
    assert_eq!(&bytes, b"parent child");
}

#[test]
#[ignore = "started by the sharing test"]
fn child_of_the_sharing_test() {
    let mut path = String::new();
    std::io::stdin().read_to_string(&mut path).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let driver = SimDriver::h200(1);
    let handle = driver.import(DEVICE, file.into(), PAGE_BYTES).unwrap();
    assert_eq!(driver.ledger(DEVICE).unwrap().physical_bytes, 0, "its owner accounts for it");
    let range = place(&driver, handle);
    let mut bytes = [0; 6];
    driver.read(range.start, &mut bytes, STREAM).unwrap();
    assert_eq!(&bytes, b"parent");
    driver.write(range.start + 6, b" child", STREAM).unwrap();
}
