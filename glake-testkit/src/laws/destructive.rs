//! Laws that end with the device lost: each takes a driver, and on a real GPU a process, of its
//! own.

use glake_core::driver::{Access, Driver, DriverError};
use glake_core::units::{AddressRange, EventId, PAGE_BYTES};

use super::rig::Rig;

const LONG_NS: u64 = 200_000_000;

/// A kernel that is going to write a page, and an event behind it.
fn pending_write(rig: &Rig<'_>) -> (AddressRange, EventId) {
    let range = rig.pages(1);
    rig.driver.delay(rig.stream, LONG_NS).unwrap();
    rig.driver.fill_pattern(range, 1, rig.stream).unwrap();
    (range, rig.driver.record(rig.stream).unwrap())
}

/// The work behind `event` failed, and nothing works on the device any more.
fn assert_lost(rig: &Rig<'_>, event: EventId) {
    let driver = rig.driver;
    assert_eq!(driver.synchronize(event), Err(DriverError::DeviceLost));
    assert_eq!(driver.query(event), Err(DriverError::DeviceLost));
    assert_eq!(driver.create(rig.device, PAGE_BYTES), Err(DriverError::DeviceLost));
    assert_eq!(driver.record(rig.stream), Err(DriverError::DeviceLost));
    assert_eq!(driver.mismatches(rig.stream), Err(DriverError::DeviceLost));
}

/// Unmapping what a kernel is going to use returns at once; then the kernel dies, and the device
/// with it: every unmap needs its event first.
pub fn unmapping_under_a_kernel_loses_the_device(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (range, event) = pending_write(&rig);
    driver.unmap(range).unwrap();
    assert_lost(&rig, event);
}

/// So does a write through a mapping that has become read-only meanwhile.
pub fn taking_the_right_to_write_under_a_kernel_loses_the_device(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (range, event) = pending_write(&rig);
    driver.set_access(range, &[rig.device], Access::ReadOnly).unwrap();
    assert_lost(&rig, event);
}
