//! Laws of addresses, handles and mappings.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, HandleId, PAGE_BYTES};

use super::rig::{Rig, page, part};

/// The granule is 2 MiB.
pub fn the_granule_is_a_page(driver: &dyn Driver) {
    assert_eq!(driver.granularity(DeviceId(0)), Ok(PAGE_BYTES));
}

/// A handle's size is a positive multiple of the granule.
pub fn a_handle_is_whole_pages(driver: &dyn Driver) {
    for bytes in [0, 1, PAGE_BYTES - 1, PAGE_BYTES + 512] {
        let made = driver.create(DeviceId(0), bytes);
        assert!(matches!(made, Err(DriverError::InvalidValue(_))), "{bytes} bytes: {made:?}");
    }
    assert_eq!(driver.ledger(DeviceId(0)).unwrap().physical_bytes, 0);
}

/// 16 TiB of addresses come in one call, and memory can be mapped at their end.
pub fn sixteen_tib_can_be_reserved_at_once(driver: &dyn Driver) {
    const N_PAGES: u64 = (16 << 40) / PAGE_BYTES;
    let rig = Rig::new(driver);
    let range = rig.reserve(N_PAGES);
    let last = rig.map(page(range, N_PAGES - 1), rig.handle(1), 1);
    rig.open(last);
    let end = DevicePtr(range.end().0 - 1);
    rig.put(end, 0x5a);
    assert_eq!(rig.get(end), 0x5a);
    rig.close();
}

/// Reservations are where the alignment says, overlap nothing, and are refused for sizes and
/// alignments of parts of pages.
pub fn reservations_are_aligned_and_disjoint(driver: &dyn Driver) {
    let asked =
        [(1, 1), (3, 1), (1, 64), (64, 16), (1, 1)].map(|(n, align)| (n * PAGE_BYTES, align * PAGE_BYTES));
    let mut ranges: Vec<AddressRange> = Vec::new();
    for (bytes, align_bytes) in asked {
        let range = driver.reserve(bytes, align_bytes).unwrap();
        assert_eq!(range.bytes, bytes);
        assert!(range.start.is_aligned(align_bytes), "{range} is not aligned to {align_bytes}");
        let overlapped = ranges.iter().find(|other| range.start < other.end() && other.start < range.end());
        assert_eq!(overlapped, None, "{range} overlaps");
        ranges.push(range);
    }
    for range in ranges {
        driver.unreserve(range).unwrap();
    }
    for (bytes, align_bytes) in
        [(0, PAGE_BYTES), (PAGE_BYTES, 0), (PAGE_BYTES + 1, PAGE_BYTES), (PAGE_BYTES, 4096)]
    {
        let made = driver.reserve(bytes, align_bytes);
        assert!(matches!(made, Err(DriverError::InvalidValue(_))), "{bytes} at {align_bytes}: {made:?}");
    }
}

/// Parts of a reservation are not given back, nor one that holds a mapping, nor one twice.
pub fn a_reservation_is_given_back_as_it_was_made(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.driver.reserve(2 * PAGE_BYTES, PAGE_BYTES).unwrap();
    for wrong in [part(range, 0, 1), part(range, 1, 1), part(range, 0, 3)] {
        assert_eq!(driver.unreserve(wrong), Err(DriverError::UnknownAddress(wrong.start)));
    }
    let mapping = rig.map(page(range, 1), rig.handle(1), 1);
    assert_eq!(driver.unreserve(range), Err(DriverError::StillMapped(range)));
    rig.unmap(mapping);
    assert_eq!(driver.unreserve(range), Ok(()));
    assert_eq!(driver.unreserve(range), Err(DriverError::UnknownAddress(range.start)));
    rig.close();
}

/// A handle is mapped at a page's start, inside one reservation.
pub fn a_mapping_lies_in_one_reservation(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.reserve(3);
    let handle = rig.handle(2);
    for at in [range.start + 512, page(range, 2), DevicePtr(PAGE_BYTES), DevicePtr(0)] {
        assert_eq!(driver.map(at, handle), Err(DriverError::UnknownAddress(at)));
    }
    rig.map(page(range, 1), handle, 2);
    rig.close();
}

/// A mapping over part of another is refused and harms nothing.
pub fn nothing_is_mapped_over_a_mapping(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.reserve(4);
    let first = rig.map(page(range, 1), rig.handle(2), 2);
    rig.open(first);
    rig.put(page(range, 1), 1);
    rig.put(page(range, 2), 2);
    let second = rig.handle(2);
    for n in 0..3 {
        let over = part(range, n, 2);
        assert_eq!(driver.map(over.start, second), Err(DriverError::StillMapped(over)));
    }
    assert_eq!([1, 2].map(|n| rig.get(page(range, n))), [1, 2]);
    rig.close();
}

/// Part of a mapping is not unmapped: a handle is mapped whole or not at all.
pub fn a_handle_is_unmapped_whole(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.reserve(4);
    let (left, right) = (rig.map(range.start, rig.handle(2), 2), rig.map(page(range, 2), rig.handle(2), 2));
    rig.open(range);
    for n in 0..4u8 {
        rig.put(page(range, n.into()), n);
    }
    for (first, n_pages) in [(0, 1), (1, 1), (0, 3), (1, 3), (1, 2)] {
        let cut = driver.unmap(part(range, first, n_pages));
        assert!(matches!(cut, Err(DriverError::InvalidValue(_))), "pages {first} + {n_pages}: {cut:?}");
    }
    for n in 0..4u8 {
        assert_eq!(rig.get(page(range, n.into())), n, "page {n}");
    }
    rig.unmap(left);
    assert_eq!(rig.get(page(range, 2)), 2, "the neighbour");
    rig.unmap(right);
    rig.close();
}

/// One unmap takes several whole mappings, and leaves their neighbours.
pub fn several_mappings_are_unmapped_in_one_call(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(4);
    for n in [0, 3] {
        rig.put(page(range, n), 7);
    }
    driver.unmap(part(range, 1, 2)).unwrap();
    for n in 1..3 {
        rig.forget_mapping(part(range, n, 1));
        let gone = part(range, n, 1);
        assert_eq!(driver.unmap(gone), Err(DriverError::NotMapped(gone)));
    }
    assert_eq!([0, 3].map(|n| rig.get(page(range, n))), [7, 7]);
    rig.close();
}

/// A range with an unmapped page is not unmapped at all.
pub fn a_range_with_a_hole_is_not_unmapped(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(3);
    rig.put(range.start, 3);
    rig.unmap(part(range, 1, 1));
    assert_eq!(driver.unmap(range), Err(DriverError::NotMapped(range)));
    assert_eq!(rig.get(range.start), 3, "the page before the hole");
    rig.put(page(range, 2), 4);
    assert_eq!(rig.get(page(range, 2)), 4, "the page behind the hole");
    rig.close();
}

/// What is written through one mapping of a handle is read through all others.
pub fn aliases_show_the_same_bytes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(2);
    let places = [(); 3].map(|()| rig.place(handle, 2));
    for (n, offset) in [(0, 0), (1, PAGE_BYTES - 1), (2, 2 * PAGE_BYTES - 1)] {
        let value = 10 + u8::try_from(n).unwrap();
        rig.put(places[n].start + offset, value);
        assert_eq!(places.map(|place| rig.get(place.start + offset)), [value; 3], "offset {offset}");
    }
    rig.close();
}

/// A handle that is released while mapped keeps its bytes and its memory until it is unmapped.
pub fn a_released_handle_lives_while_it_is_mapped(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let physical = || driver.ledger(rig.device).unwrap().physical_bytes;
    let handle = rig.handle(2);
    let (first, second) = (rig.place(handle, 2), rig.place(handle, 2));
    rig.put(first.start, 9);
    rig.release(handle);
    assert_eq!((physical(), rig.get(second.start)), (2 * PAGE_BYTES, 9));
    rig.unmap(first);
    assert_eq!((physical(), rig.get(second.start)), (2 * PAGE_BYTES, 9));
    rig.unmap(second);
    assert_eq!(physical(), 0);
    rig.close();
}

/// A handle is released once, and not mapped afterwards, mapped elsewhere or not.
pub fn a_released_handle_is_unknown(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (mapped, plain) = (rig.handle(1), rig.handle(1));
    rig.place(mapped, 1);
    let free = rig.reserve(1);
    for handle in [mapped, plain] {
        rig.release(handle);
        assert_eq!(driver.release(handle), Err(DriverError::UnknownHandle(handle)));
        assert_eq!(driver.map(free.start, handle), Err(DriverError::UnknownHandle(handle)));
    }
    let never = HandleId(u64::MAX);
    assert_eq!(driver.release(never), Err(DriverError::UnknownHandle(never)));
    rig.close();
}

/// More than the device has is refused, and nothing is taken for it.
pub fn a_request_beyond_the_device_is_out_of_memory(driver: &dyn Driver) {
    let device = DeviceId(0);
    let info = driver.memory_info(device).unwrap();
    assert!(0 < info.free_bytes && info.free_bytes <= info.total_bytes, "{info:?}");
    let bytes = (info.total_bytes / PAGE_BYTES + 1) * PAGE_BYTES;
    assert_eq!(driver.create(device, bytes), Err(DriverError::OutOfMemory));
    assert_eq!(driver.ledger(device).unwrap().physical_bytes, 0);
}

/// Calls for a device that does not exist say so.
pub fn an_unknown_device_is_refused(driver: &dyn Driver) {
    let device = DeviceId(driver.n_devices());
    let unknown = DriverError::InvalidDevice(device);
    assert_eq!(driver.granularity(device), Err(unknown));
    assert_eq!(driver.create(device, PAGE_BYTES), Err(unknown));
    assert_eq!(driver.memory_info(device), Err(unknown));
    assert_eq!(driver.create_stream(device), Err(unknown));
    assert_eq!(driver.device_info(device), Err(unknown));
    assert_eq!(driver.ledger(device), Err(unknown));
}
