//! Laws of peer devices. All but the first hold of drivers of one device without being tried.

use glake_core::driver::{Access, Driver, DriverError};
use glake_core::units::{AddressRange, DeviceId};

use super::rig::Rig;

/// Rigs on two devices that are peers, if there are such, and a page on the second without access.
fn peers(driver: &dyn Driver) -> Option<(Rig<'_>, Rig<'_>, AddressRange)> {
    if driver.n_devices() < 2 {
        return None;
    }
    let (near, far) = (Rig::new(driver), Rig::on(driver, DeviceId(1)));
    let range = far.map(far.reserve(1).start, far.handle(1), 1);
    let reached = driver.set_access(range, &[near.device], Access::None);
    if reached == Err(DriverError::NoPeerAccess(near.device)) {
        near.close();
        far.close();
        return None;
    }
    reached.expect("access taken");
    Some((near, far, range))
}

/// The driver names as peers, ascending and without the device itself, just those devices whose memory
/// the device can be given and then copies to; and reach is mutual.
pub fn peers_are_the_devices_that_reach_memory(driver: &dyn Driver) {
    let devices: Vec<DeviceId> = (0..driver.n_devices()).map(DeviceId).collect();
    let peers = |device| driver.device_info(device).unwrap().peers;
    for &near in &devices {
        let named = peers(near);
        assert!(named.is_sorted_by(|a, b| a < b), "{named:?}");
        let reached = devices.iter().copied().filter(|&far| far != near && copies_to(driver, near, far));
        assert_eq!(named, reached.collect::<Vec<_>>(), "of device {}", near.0);
        assert!(named.iter().all(|&far| peers(far).contains(&near)), "{near:?} is nobody's peer");
    }
}

/// Whether `near` can be given memory of `far`; a copy to there must arrive then.
fn copies_to(driver: &dyn Driver, near: DeviceId, far: DeviceId) -> bool {
    let (near, far) = (Rig::on(driver, near), Rig::on(driver, far));
    let remote = far.pages(1);
    let given = driver.set_access(remote, &[near.device], Access::ReadWrite);
    match given {
        Ok(()) => {
            let local = near.pages(1);
            near.put(local.start, 7);
            driver.copy(remote.start, local.start, 1, near.stream).unwrap();
            near.finish();
            assert_eq!(far.get(remote.start), 7);
        }
        refused => assert_eq!(refused, Err(DriverError::NoPeerAccess(near.device))),
    }
    near.close();
    far.close();
    given.is_ok()
}

/// A device copies to and from a peer's memory, by copy engine and by kernel, once it has access.
pub fn peers_reach_memory_that_they_were_given(driver: &dyn Driver) {
    let Some((near, far, remote)) = peers(driver) else { return };
    driver.set_access(remote, &[near.device, far.device], Access::ReadWrite).unwrap();
    let local = near.pages(1);
    driver.fill_pattern(local, 11, near.stream).unwrap();
    driver.copy(remote.start, local.start, 4096, near.stream).unwrap();
    driver.copy_by_kernel(remote.start + 4096, local.start + 4096, 4096, near.stream).unwrap();
    near.finish();
    let wrong = driver.mismatches(far.stream).unwrap();
    driver.check_pattern(AddressRange::new(remote.start, 8192), 11, far.stream).unwrap();
    assert_eq!(driver.mismatches(far.stream), Ok(wrong));
    assert_eq!(driver.compare(local.start, remote.start, 8192, near.stream), Ok(true));
    near.close();
    far.close();
}

/// Access of the owner is not access of its peers.
pub fn peers_do_not_reach_memory_that_they_were_not_given(driver: &dyn Driver) {
    let Some((near, far, remote)) = peers(driver) else { return };
    far.open(remote);
    far.put(remote.start, 1);
    let local = near.pages(1);
    let refused = driver.copy_by_kernel(remote.start, local.start, 64, near.stream);
    assert!(matches!(refused, Err(DriverError::NoAccess(_))), "{refused:?}");
    assert_eq!(far.get(remote.start), 1);
    near.close();
    far.close();
}

/// A peer may be let read what only the owner writes.
pub fn peers_may_have_different_rights(driver: &dyn Driver) {
    let Some((near, far, remote)) = peers(driver) else { return };
    far.open(remote);
    driver.set_access(remote, &[near.device], Access::ReadOnly).unwrap();
    far.put(remote.start, 2);
    assert_eq!(near.get(remote.start), 2);
    let refused = driver.write(remote.start, &[3], near.stream);
    assert!(matches!(refused, Err(DriverError::NoAccess(_))), "{refused:?}");
    far.put(remote.start, 4);
    assert_eq!(near.get(remote.start), 4);
    near.close();
    far.close();
}
