//! Laws of access rights.

use std::sync::Arc;

use glake_core::driver::{Access, Driver, DriverError, Piece, Result};
use glake_core::units::{AddressRange, DevicePtr, PAGE_BYTES};

use super::rig::{Rig, page, part};

/// All copy-engine calls that write 64 bytes at `at`, by name.
fn copies(rig: &Rig<'_>, at: DevicePtr, from: DevicePtr) -> [(&'static str, Result<()>); 4] {
    let (driver, stream) = (rig.driver, rig.stream);
    [
        ("write", driver.write(at, &[0xee; 64], stream)),
        ("write_async", driver.write_async(at, Arc::new([0xee; 64]), stream)),
        ("copy", driver.copy(at, from, 64, stream)),
        ("fill", driver.fill(AddressRange::new(at, 64), 0xee, stream)),
    ]
}

/// All kernels that write 64 bytes at `at`, by name.
fn kernels(rig: &Rig<'_>, at: DevicePtr, from: DevicePtr) -> [(&'static str, Result<()>); 3] {
    let (driver, stream) = (rig.driver, rig.stream);
    [
        ("fill_pattern", driver.fill_pattern(AddressRange::new(at, 64), 1, stream)),
        ("copy_by_kernel", driver.copy_by_kernel(at, from, 64, stream)),
        ("gather", driver.gather(&[Piece { dst: at, src: from, bytes: 64 }], stream)),
    ]
}

/// Everything that reads 64 bytes at `at`, by name.
fn reads(rig: &Rig<'_>, at: DevicePtr, to: DevicePtr) -> [(&'static str, Result<()>); 6] {
    let (driver, stream) = (rig.driver, rig.stream);
    [
        ("read", driver.read(at, &mut [0; 64], stream)),
        ("read_async", driver.read_async(at, Box::new([0; 64]), stream).map(|_| ())),
        ("copy", driver.copy(to, at, 64, stream)),
        ("check_pattern", driver.check_pattern(AddressRange::new(at, 64), 1, stream)),
        ("copy_by_kernel", driver.copy_by_kernel(to, at, 64, stream)),
        ("compare", driver.compare(at, to, 64, stream).map(|_| ())),
    ]
}

fn assert_no_access(outcomes: &[(&str, Result<()>)]) {
    for (name, outcome) in outcomes {
        assert!(matches!(outcome, Err(DriverError::NoAccess(_))), "{name}: {outcome:?}");
    }
}

/// A mapping can be neither read nor written before access is set.
pub fn a_new_mapping_has_no_access(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let other = rig.pages(1);
    let range = rig.map(rig.reserve(1).start, rig.handle(1), 1);
    assert_no_access(&copies(&rig, range.start, other.start));
    assert_no_access(&kernels(&rig, range.start, other.start));
    assert_no_access(&reads(&rig, range.start, other.start));
    rig.open(range);
    rig.put(range.start, 1);
    assert_eq!(rig.get(range.start), 1);
    rig.close();
}

/// Rights end with the mapping: what is mapped at the address next has none.
pub fn a_remapped_handle_has_no_access(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let other = rig.pages(1);
    let handle = rig.handle(1);
    let range = rig.place(handle, 1);
    rig.put(range.start, 8);
    rig.unmap(range);
    rig.map(range.start, handle, 1);
    assert_no_access(&reads(&rig, range.start, other.start));
    rig.open(range);
    assert_eq!(rig.get(range.start), 8);
    rig.close();
}

/// A copy-engine write through a read-only mapping is refused, also where only its last byte
/// lies there, and harms nothing.
pub fn the_copy_engine_does_not_write_read_only_memory(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(3);
    driver.fill(range, 5, rig.stream).unwrap();
    rig.finish();
    let locked = part(range, 1, 1);
    driver.set_access(locked, &[rig.device], Access::ReadOnly).unwrap();
    assert_no_access(&copies(&rig, locked.start, range.start));
    let straddling = DevicePtr(locked.start.0 - 63);
    assert_no_access(&copies(&rig, straddling, page(range, 2)));
    assert_eq!(rig.bytes(straddling, 127), [5; 127], "nothing is harmed");
    rig.put(range.start, 6);
    assert_eq!(rig.get(range.start), 6, "the device lives on");
    rig.close();
}

/// A kernel that would write through a read-only mapping is not launched.
pub fn a_kernel_is_not_launched_on_read_only_memory(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(2);
    driver.fill(range, 5, rig.stream).unwrap();
    rig.finish();
    let locked = part(range, 1, 1);
    driver.set_access(locked, &[rig.device], Access::ReadOnly).unwrap();
    assert_no_access(&kernels(&rig, locked.start, range.start));
    for (name, outcome) in reads(&rig, locked.start, range.start) {
        assert_eq!(outcome, Ok(()), "{name}");
    }
    assert_eq!(rig.bytes(locked.start, 64), [5; 64]);
    rig.close();
}

/// The same handle is writable at one address and read-only at another.
pub fn rights_belong_to_the_mapping(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(1);
    let (open, locked) = (rig.place(handle, 1), rig.place(handle, 1));
    driver.set_access(locked, &[rig.device], Access::ReadOnly).unwrap();
    rig.put(open.start + 4096, 7);
    assert_eq!(rig.get(locked.start + 4096), 7);
    let refused = driver.write(locked.start + 4096, &[8], rig.stream);
    assert!(matches!(refused, Err(DriverError::NoAccess(_))), "{refused:?}");
    assert_eq!(rig.get(open.start + 4096), 7);
    rig.close();
}

/// A live mapping goes from read-write to read-only to nothing and back, and keeps its bytes.
pub fn rights_can_be_taken_and_given(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    rig.put(range.start, 1);
    let may = |access| {
        rig.finish();
        driver.set_access(range, &[rig.device], access).unwrap();
        let read = driver.read(range.start, &mut [0], rig.stream).is_ok();
        (read, driver.write(range.start, &[1], rig.stream).is_ok())
    };
    assert_eq!(may(Access::ReadOnly), (true, false));
    assert_eq!(may(Access::None), (false, false));
    assert_eq!(may(Access::ReadOnly), (true, false));
    assert_eq!(may(Access::ReadWrite), (true, true));
    assert_eq!(rig.get(range.start), 1);
    rig.close();
}

/// One call gives access to a long range of handles of several sizes: each of its pages can be
/// written.
pub fn rights_are_set_on_many_mappings_at_once(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let sizes = [1, 4, 1, 16, 2, 1];
    let n_pages = sizes.iter().sum();
    let range = rig.reserve(n_pages);
    let mut at = 0;
    for n in sizes {
        rig.map(page(range, at), rig.handle(n), n);
        at += n;
    }
    rig.open(range);
    for n in 0..n_pages {
        rig.put(page(range, n), u8::try_from(n + 1).unwrap());
    }
    for n in 0..n_pages {
        assert_eq!(u64::from(rig.get(page(range, n))), n + 1, "page {n}");
    }
    rig.close();
}

/// Rights are set on whole mappings without a hole between them; a refused call changes none.
pub fn rights_are_not_set_on_parts_and_holes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.reserve(4);
    rig.map(range.start, rig.handle(2), 2);
    rig.map(page(range, 3), rig.handle(1), 1);
    let set = |range| driver.set_access(range, &[rig.device], Access::ReadWrite);
    for (first, n_pages) in [(0, 1), (1, 1)] {
        let cut = set(part(range, first, n_pages));
        assert!(matches!(cut, Err(DriverError::InvalidValue(_))), "pages {first} + {n_pages}: {cut:?}");
    }
    assert_eq!(set(range), Err(DriverError::NotMapped(range)));
    for n in [0, 1, 3] {
        let refused = driver.write(page(range, n), &[1], rig.stream);
        assert!(matches!(refused, Err(DriverError::NoAccess(_))), "page {n}: {refused:?}");
    }
    rig.close();
}

/// Addresses that the driver did not hand out, and reserved ones without memory, are told apart
/// and refused, also where only the last byte lies there.
pub fn unknown_and_unmapped_addresses_are_refused(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.reserve(2);
    rig.open(rig.map(range.start, rig.handle(1), 1));
    let foreign = DevicePtr(4096);
    assert_eq!(driver.write(foreign, &[1], rig.stream), Err(DriverError::UnknownAddress(foreign)));
    assert_eq!(driver.read(foreign, &mut [1], rig.stream), Err(DriverError::UnknownAddress(foreign)));
    for bytes in [PAGE_BYTES + 1, 2 * PAGE_BYTES] {
        let refused = driver.fill(AddressRange::new(range.start, bytes), 1, rig.stream);
        assert!(matches!(refused, Err(DriverError::NotMapped(_))), "{bytes} bytes: {refused:?}");
    }
    driver.fill(part(range, 0, 1), 1, rig.stream).unwrap();
    rig.close();
}
