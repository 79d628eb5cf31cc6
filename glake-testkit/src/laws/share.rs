//! Laws of sharing, inside one process.

use std::fs::File;

use glake_core::driver::{Access, Driver, DriverError};
use glake_core::units::PAGE_BYTES;

use super::rig::{Rig, page};

/// An imported handle is the same memory: bytes written through either are read through both.
pub fn an_imported_handle_shows_the_same_bytes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(2);
    let first = rig.place(handle, 2);
    rig.put(first.start, 1);
    let fd = driver.export(handle).unwrap();
    let import = || rig.adopt(driver.import(rig.device, fd.try_clone().unwrap(), 2 * PAGE_BYTES).unwrap());
    let (second, third) = (rig.place(import(), 2), rig.place(import(), 2));
    assert_eq!([second, third].map(|place| rig.get(place.start)), [1, 1]);
    for (n, place) in (2..).zip([first, second, third]) {
        rig.put(page(place, 1), n);
        assert_eq!([first, second, third].map(|place| rig.get(page(place, 1))), [n; 3]);
    }
    rig.close();
}

/// Exporting changes neither bytes nor mappings, and works again.
pub fn an_exported_handle_keeps_its_bytes_and_mappings(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(1);
    let range = rig.place(handle, 1);
    driver.fill_pattern(range, 4, rig.stream).unwrap();
    let wrong = driver.mismatches(rig.stream).unwrap();
    for _ in 0..2 {
        drop(driver.export(handle).unwrap());
        driver.check_pattern(range, 4, rig.stream).unwrap();
        assert_eq!(driver.mismatches(rig.stream), Ok(wrong));
    }
    rig.release(handle);
    assert_eq!(driver.export(handle).map(drop), Err(DriverError::UnknownHandle(handle)));
    rig.close();
}

/// The memory lives as long as one handle, mapping or file descriptor.
pub fn imported_memory_outlives_the_original(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(1);
    let range = rig.place(handle, 1);
    rig.put(range.start, 0x42);
    let fd = driver.export(handle).unwrap();
    rig.unmap(range);
    rig.release(handle);
    let imported = driver.import(rig.device, fd, PAGE_BYTES).unwrap();
    let again = rig.place(imported, 1);
    driver.release(imported).unwrap();
    assert_eq!(rig.get(again.start), 0x42);
    rig.close();
}

/// A file descriptor of something else is refused.
pub fn only_exported_handles_are_imported(driver: &dyn Driver) {
    let file = File::open("/dev/null").unwrap();
    let refused = driver.import(Rig::new(driver).device, file.into(), PAGE_BYTES);
    assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{refused:?}");
}

/// A size other than the exported handle's is refused.
pub fn an_import_has_the_size_of_the_export(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let fd = driver.export(rig.handle(2)).unwrap();
    for bytes in [0, PAGE_BYTES, 3 * PAGE_BYTES, 2 * PAGE_BYTES + 1] {
        let refused = driver.import(rig.device, fd.try_clone().unwrap(), bytes);
        assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{bytes} bytes: {refused:?}");
    }
    rig.close();
}

/// A reader's mapping of shared memory can be read-only while the owner writes.
pub fn an_imported_handle_can_be_mapped_read_only(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(1);
    let owner = rig.place(handle, 1);
    let fd = driver.export(handle).unwrap();
    let imported = rig.adopt(driver.import(rig.device, fd, PAGE_BYTES).unwrap());
    let reader = rig.map(rig.reserve(1).start, imported, 1);
    driver.set_access(reader, &[rig.device], Access::ReadOnly).unwrap();
    rig.put(owner.start, 5);
    assert_eq!(rig.get(reader.start), 5);
    let refused = driver.write(reader.start, &[6], rig.stream);
    assert!(matches!(refused, Err(DriverError::NoAccess(_))), "{refused:?}");
    assert_eq!(rig.get(owner.start), 5);
    rig.close();
}
