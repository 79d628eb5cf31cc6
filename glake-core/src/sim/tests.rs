use super::{Completion, Fault, SimConfig, SimDriver, Target};
use crate::driver::{Access, Call, Copies, Driver, DriverError, StreamOrder, VirtualMemory};
use crate::units::{AddressRange, DeviceId, HandleId, PAGE_BYTES, StreamId};

const DEVICE: DeviceId = DeviceId(0);
const STREAM: StreamId = StreamId::LEGACY;

/// A page, mapped and writable.
fn page(driver: &SimDriver) -> (HandleId, AddressRange) {
    let range = driver.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
    let handle = driver.create(DEVICE, PAGE_BYTES).unwrap();
    driver.map(range.start, handle).unwrap();
    driver.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    (handle, range)
}

#[test]
fn calls_are_counted_and_cost_what_the_table_says() {
    let driver = SimDriver::h200(2);
    let handles: Vec<_> = (0..3).map(|_| driver.create(DeviceId(1), PAGE_BYTES).unwrap()).collect();
    let ledger = driver.ledger(DeviceId(1)).unwrap();
    assert_eq!(ledger.driver_ns, 3 * 14_000);
    assert_eq!((ledger.n(Call::Create), ledger.physical_bytes), (3, 3 * PAGE_BYTES));
    assert_eq!(driver.now_ns(), ledger.driver_ns);
    for handle in handles {
        driver.release(handle).unwrap();
    }
    let ledger = driver.ledger(DeviceId(1)).unwrap();
    assert_eq!(ledger.driver_ns, 3 * (14_000 + 15_000));
    assert_eq!((ledger.physical_bytes, ledger.peak_physical_bytes), (0, 3 * PAGE_BYTES));
    assert_eq!(driver.ledger(DEVICE).unwrap().n_calls(), 0);
}

#[test]
fn a_planned_failure_has_no_effect() {
    let driver = SimDriver::h200(1);
    driver.plan(Fault::nth(0).of(Target::One(Call::Unmap)));
    let (_, range) = page(&driver);
    assert_eq!(driver.unmap(range), Err(DriverError::Planned));
    driver.write(range.start, &[1], STREAM).unwrap();
    driver.unmap(range).unwrap();
    assert_eq!(driver.n_faults(), 1);
}

#[test]
fn a_lost_device_stays_lost_and_others_go_on() {
    let driver = SimDriver::h200(2);
    driver.plan(Fault::nth(0).lose(DEVICE));
    assert_eq!(driver.create(DEVICE, PAGE_BYTES), Err(DriverError::DeviceLost));
    assert_eq!(driver.record(STREAM), Err(DriverError::DeviceLost));
    assert!(driver.create(DeviceId(1), PAGE_BYTES).is_ok());
}

#[test]
fn work_lags_behind_the_clock() {
    let driver = SimConfig::h200(1).completion(Completion::Lag(20_000)).build();
    let event = driver.record(STREAM).unwrap();
    driver.advance(19_500);
    assert_eq!(driver.query(event), Ok(false));
    driver.advance(500);
    assert_eq!(driver.query(event), Ok(true));
    let event = driver.record(STREAM).unwrap();
    let before_ns = driver.now_ns();
    driver.synchronize(event).unwrap();
    assert_eq!(driver.now_ns() - before_ns, 20_000 - 151 + 157);
}
