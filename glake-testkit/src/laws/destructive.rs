//! Laws that end with the device lost: each takes a driver, and on a real GPU a process, of its
//! own.

use glake_core::driver::{Access, Driver, DriverError, Held, Lent};
use glake_core::units::{AddressRange, EventId, HostId, PAGE_BYTES};

use super::rig::Rig;

const LONG_NS: u64 = 200_000_000;

/// What waits behind a kernel.
struct Behind {
    event: EventId,
    /// A buffer that is copied to the device.
    held: HostId,
}

/// A kernel that is going to write a page, and what waits behind it.
fn pending_write(rig: &Rig<'_>) -> (AddressRange, Behind) {
    let (range, other) = (rig.pages(1), rig.pages(1));
    let held = rig.driver.hold(Held::Owned(rig.driver.pin(8, rig.device).unwrap()));
    rig.driver.delay(rig.stream, LONG_NS).unwrap();
    rig.driver.fill_pattern(range, 1, rig.stream).unwrap();
    rig.driver.write_from(other.start, held, 0..8, rig.stream).unwrap();
    (range, Behind { event: rig.driver.record(rig.stream).unwrap(), held })
}

/// The work behind the kernel failed, and nothing works on the device any more.
fn assert_lost(rig: &Rig<'_>, Behind { event, held }: Behind) {
    let driver = rig.driver;
    assert_eq!(driver.synchronize(event), Err(DriverError::DeviceLost));
    assert_eq!(driver.query(event), Err(DriverError::DeviceLost));
    assert_eq!(driver.create(rig.device, PAGE_BYTES), Err(DriverError::DeviceLost));
    assert_eq!(driver.record(rig.stream), Err(DriverError::DeviceLost));
    assert_eq!(driver.mismatches(rig.stream), Err(DriverError::DeviceLost));
    for _ in 0..2 {
        assert_eq!(driver.take_back(held).unwrap_err(), DriverError::DeviceLost);
    }
    driver.let_go(held);
    assert_eq!(driver.take_back(held).unwrap_err(), DriverError::UnknownHost(held));
}

/// Memory that is on loan when the kernel dies comes back, with the news.
fn assert_lost_on_loan(rig: &Rig<'_>, unmap: &mut dyn FnMut()) {
    let (driver, source) = (rig.driver, [1; 8]);
    let range = rig.pages(1);
    let lent = driver.lend(Lent::Source(&source), &mut |host| {
        driver.write_from(range.start, host, 0..8, rig.stream)?;
        unmap();
        Ok(())
    });
    assert_eq!(lent, Err(DriverError::DeviceLost));
}

/// Unmapping what a kernel is going to use returns at once; then the kernel dies, and the device
/// with it: every unmap needs its event first.
pub fn unmapping_under_a_kernel_loses_the_device(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (range, behind) = pending_write(&rig);
    assert_lost_on_loan(&rig, &mut || driver.unmap(range).unwrap());
    assert_lost(&rig, behind);
}

/// So does a write through a mapping that has become read-only meanwhile.
pub fn taking_the_right_to_write_under_a_kernel_loses_the_device(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (range, behind) = pending_write(&rig);
    driver.set_access(range, &[rig.device], Access::ReadOnly).unwrap();
    assert_lost(&rig, behind);
}
