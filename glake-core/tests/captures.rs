//! Streams of the simulated driver, captured into graphs.
#![allow(clippy::unwrap_used, reason = "tests panic to fail, their helpers too")]

use std::sync::Arc;

use glake_core::driver::{Access, Copies, DeviceOps, DriverError, Piece, StreamOrder, VirtualMemory};
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::units::{AddressRange, DeviceId, PAGE_BYTES, StreamId};

const DEVICE: DeviceId = DeviceId(0);

/// A page, readable and writable.
fn new_page(driver: &SimDriver) -> AddressRange {
    let range = driver.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
    driver.map(range.start, driver.create(DEVICE, PAGE_BYTES).unwrap()).unwrap();
    driver.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    range
}

#[test]
fn captured_work_runs_at_each_launch() {
    let driver = SimConfig::h200(1).completion(Completion::Manual).build();
    let range = new_page(&driver);
    let [stream, other] = [(); 2].map(|()| driver.create_stream(DEVICE).unwrap());
    driver.begin_capture(stream).unwrap();
    driver.copy(range.start + 8, range.start, 8, stream).unwrap();
    driver.fill(AddressRange::new(range.start, 8), 7, stream).unwrap();
    assert_eq!((driver.n_pending(stream), driver.is_capturing(stream)), (Ok(0), Ok(true)));
    let graph = driver.end_capture(stream).unwrap();
    assert_eq!(driver.is_capturing(stream), Ok(false));
    assert_eq!(driver.n_pending(stream), Ok(0), "nothing ran");
    let bytes = || {
        let mut bytes = [0; 16];
        driver.read(range.start, &mut bytes, other).unwrap();
        (bytes[0], bytes[8])
    };
    assert_eq!(bytes(), (0, 0));
    driver.launch(graph, other).unwrap();
    assert_eq!(driver.n_pending(other), Ok(2));
    assert_eq!(bytes(), (7, 0));
    driver.launch(graph, other).unwrap();
    driver.destroy_graph(graph).unwrap();
    assert_eq!(bytes(), (7, 7), "what was launched still runs");
    assert!(matches!(driver.launch(graph, other), Err(DriverError::InvalidValue(_))));
    assert!(matches!(driver.end_capture(stream), Err(DriverError::InvalidValue(_))));
    assert!(matches!(driver.begin_capture(StreamId::LEGACY), Err(DriverError::InvalidValue(_))));
}

#[test]
fn a_launch_translates_addresses_anew() {
    let driver = SimDriver::h200(1);
    let range = new_page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.begin_capture(stream).unwrap();
    driver.fill(range, 1, stream).unwrap();
    let graph = driver.end_capture(stream).unwrap();
    driver.unmap(range).unwrap();
    assert_eq!(driver.launch(graph, stream), Err(DriverError::DeviceLost));
}

#[test]
fn what_has_no_place_in_a_graph_is_refused_and_the_capture_goes_on() {
    let driver = SimDriver::h200(1);
    let range = new_page(&driver);
    let [stream, other] = [(); 2].map(|()| driver.create_stream(DEVICE).unwrap());
    let event = driver.record(other).unwrap();
    driver.begin_capture(stream).unwrap();
    let refused = DriverError::Capturing(stream);
    let piece = Piece { dst: range.start, src: range.start + 8, bytes: 8 };
    assert_eq!(driver.begin_capture(stream), Err(refused));
    assert_eq!(driver.record(stream), Err(refused));
    assert_eq!(driver.wait(stream, event), Err(refused));
    assert_eq!(driver.record_all(DEVICE), Err(refused));
    assert_eq!(driver.synchronize_all(DEVICE), Err(refused));
    assert_eq!(driver.destroy_stream(stream), Err(refused));
    assert_eq!(driver.write(range.start, &[1], stream), Err(refused));
    assert_eq!(driver.read(range.start, &mut [1], stream), Err(refused));
    assert_eq!(driver.write_async(range.start, Arc::new([1]), stream), Err(refused));
    assert_eq!(driver.read_async(range.start, vec![1].into(), stream), Err(refused));
    assert_eq!(driver.gather(&[piece], stream), Err(refused));
    assert_eq!(driver.compare(range.start, range.start, 8, stream), Err(refused));
    assert_eq!(driver.mismatches(stream), Err(refused));
    driver.record(other).unwrap();
    driver.copy_by_kernel(range.start, range.start + 8, 8, stream).unwrap();
    driver.synchronize(event).unwrap();
    driver.end_capture(stream).unwrap();
    driver.record_all(DEVICE).unwrap();
    driver.synchronize_all(DEVICE).unwrap();
}

/// A driver cannot ask whether the default stream of another thread is captured.
#[test]
fn a_capture_of_another_thread_is_broken_by_who_cannot_know() {
    for breaks in [
        |driver: &SimDriver| driver.record_all(DEVICE).map(drop),
        |driver: &SimDriver| driver.synchronize_all(DEVICE),
    ] {
        let driver = SimDriver::h200(1);
        driver.begin_capture(StreamId::PER_THREAD).unwrap();
        assert_eq!(breaks(&driver), Err(DriverError::Capturing(StreamId::PER_THREAD)), "one's own is known");
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| breaks(&driver)).join().unwrap());
        assert_eq!(elsewhere, Err(DriverError::Capturing(StreamId(0))));
        assert_eq!(driver.is_capturing(StreamId::PER_THREAD), Ok(true), "until it is ended");
        let broken = |call| DriverError::Native { call, code: 901 };
        assert_eq!(driver.delay(StreamId::PER_THREAD, 1), Err(broken("cuLaunchKernel")));
        assert_eq!(driver.end_capture(StreamId::PER_THREAD), Err(broken("cuStreamEndCapture")));
        driver.record_all(DEVICE).unwrap();
    }
}
