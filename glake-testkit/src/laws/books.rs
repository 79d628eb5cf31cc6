//! Laws of the ledger.

use glake_core::driver::{Access, Call, Driver};
use glake_core::units::{DeviceId, HandleId, PAGE_BYTES};

const DEVICE: DeviceId = DeviceId(0);

/// How often each kind of call was made, in the order of [`Call::ALL`].
fn counts(driver: &dyn Driver) -> [u64; Call::ALL.len()] {
    let ledger = driver.ledger(DEVICE).unwrap();
    Call::ALL.map(|call| ledger.n(call))
}

/// Each call of a pool is counted once under its kind, and its time goes up.
pub fn every_call_is_counted(driver: &dyn Driver) {
    let stream = driver.create_stream(DEVICE).unwrap();
    let (before, before_ns) = (counts(driver), driver.ledger(DEVICE).unwrap().driver_ns);
    let range = driver.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
    let handle = driver.create(DEVICE, PAGE_BYTES).unwrap();
    driver.map(range.start, handle).unwrap();
    driver.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    let event = driver.record(stream).unwrap();
    driver.wait(stream, event).unwrap();
    driver.synchronize(event).unwrap();
    driver.query(event).unwrap();
    driver.forget(event);
    driver.memory_info(DEVICE).unwrap();
    driver.unmap(range).unwrap();
    driver.release(handle).unwrap();
    driver.unreserve(range).unwrap();
    assert_eq!(counts(driver), before.map(|n| n + 1));
    let ledger = driver.ledger(DEVICE).unwrap();
    assert!(ledger.driver_ns > before_ns);
    assert_eq!(Call::ALL.map(|call| ledger.ns(call)).iter().sum::<u64>(), ledger.driver_ns, "time by call");
    driver.destroy_stream(stream).unwrap();
}

/// An event of a device is an event recorded, also where the driver cannot, and waiting for a device is
/// waiting.
pub fn calls_on_a_whole_device_are_counted(driver: &dyn Driver) {
    let n = |call| driver.ledger(DEVICE).unwrap().n(call);
    let before = [Call::Record, Call::Synchronize].map(n);
    if let Ok(event) = driver.record_all(DEVICE) {
        driver.forget(event);
    }
    driver.synchronize_all(DEVICE).unwrap();
    assert_eq!([Call::Record, Call::Synchronize].map(n), before.map(|n| n + 1));
}

/// Physical bytes follow handles, not mappings, and the peak stays.
pub fn physical_memory_is_accounted(driver: &dyn Driver) {
    let physical = || {
        let ledger = driver.ledger(DEVICE).unwrap();
        (ledger.physical_bytes / PAGE_BYTES, ledger.peak_physical_bytes / PAGE_BYTES)
    };
    let (small, large) =
        (driver.create(DEVICE, PAGE_BYTES).unwrap(), driver.create(DEVICE, 3 * PAGE_BYTES).unwrap());
    assert_eq!(physical(), (4, 4));
    driver.release(small).unwrap();
    assert_eq!(physical(), (3, 4));
    driver.release(large).unwrap();
    assert_eq!(physical(), (0, 4));
}

/// Calls that fail are counted too.
pub fn a_failed_call_is_counted(driver: &dyn Driver) {
    let before = driver.ledger(DEVICE).unwrap().n(Call::Release);
    driver.release(HandleId(u64::MAX)).unwrap_err();
    assert_eq!(driver.ledger(DEVICE).unwrap().n(Call::Release), before + 1);
}
