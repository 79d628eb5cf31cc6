use super::*;

const PAGE: u64 = 2 << 20;
const D0: DeviceId = DeviceId(0);
const D1: DeviceId = DeviceId(1);

fn range(start_page: u64, n_pages: u64) -> AddressRange {
    AddressRange::new(DevicePtr(start_page * PAGE), n_pages * PAGE)
}

/// Pages 100..108 reserved; handles of 1, 2, 1 pages mapped at 100, 101, 104.
fn space() -> (Space, [HandleId; 3]) {
    let mut space = Space::new(PAGE);
    space.reserved(range(100, 8));
    let handles = [(1, 100), (2, 101), (1, 104)].map(|(n, at)| {
        let handle = space.created(n, D0, n * PAGE);
        let (place, _) = space.check_map(range(at, 1).start, handle).unwrap();
        space.mapped(place, handle);
        handle
    });
    (space, handles)
}

#[test]
fn sizes_and_alignments_are_whole_granules() {
    let space = Space::new(PAGE);
    assert_eq!(space.check_reserve(4 * PAGE, 2 * PAGE), Ok(()));
    for (bytes, align) in [(0, PAGE), (PAGE + 1, PAGE), (PAGE, 0), (PAGE, 512), (PAGE, 3 * PAGE)] {
        assert!(
            matches!(space.check_reserve(bytes, align), Err(DriverError::InvalidValue(_))),
            "{bytes} {align}"
        );
    }
}

#[test]
fn unreserve_takes_whole_empty_reservations() {
    let (mut space, _) = space();
    let part = range(100, 4);
    assert_eq!(space.check_unreserve(part), Err(DriverError::UnknownAddress(part.start)));
    assert_eq!(space.check_unreserve(range(100, 8)), Err(DriverError::StillMapped(range(100, 8))));
    space.unmapped(range(100, 3));
    space.unmapped(range(104, 1));
    assert_eq!(space.check_unreserve(range(100, 8)), Ok(()));
    space.unreserved(range(100, 8).start);
    assert_eq!(space.check_unreserve(range(100, 8)), Err(DriverError::UnknownAddress(range(100, 8).start)));
}

#[test]
fn a_handle_is_mapped_inside_one_reservation_and_over_nothing() {
    let (mut space, handles) = space();
    let two = handles[1];
    let at = |page| range(page, 1).start;
    assert_eq!(space.check_map(at(103), two), Err(DriverError::StillMapped(range(103, 2))));
    assert_eq!(space.check_map(at(107), two), Err(DriverError::UnknownAddress(at(107))));
    assert_eq!(space.check_map(at(90), two), Err(DriverError::UnknownAddress(at(90))));
    let odd = DevicePtr(at(105).0 + 512);
    assert_eq!(space.check_map(odd, two), Err(DriverError::UnknownAddress(odd)));
    assert_eq!(space.check_map(at(105), HandleId(99)), Err(DriverError::UnknownHandle(HandleId(99))));
    assert_eq!(space.check_map(at(105), two).unwrap().0, range(105, 2));
    space.released(two);
    assert_eq!(space.check_map(at(105), two), Err(DriverError::UnknownHandle(two)));
}

#[test]
fn unmap_takes_whole_mappings_only() {
    let (space, _) = space();
    assert_eq!(space.check_whole(range(100, 3)), Ok(()));
    assert_eq!(space.check_whole(range(101, 2)), Ok(()));
    for cut in [range(100, 2), range(101, 1), range(102, 1)] {
        assert!(matches!(space.check_whole(cut), Err(DriverError::InvalidValue(_))), "{cut}");
    }
    for hole in [range(100, 4), range(103, 1), range(103, 2), range(90, 1)] {
        assert_eq!(space.check_whole(hole), Err(DriverError::NotMapped(hole)));
    }
}

#[test]
fn memory_returns_when_it_is_released_and_unmapped_everywhere() {
    let (mut space, handles) = space();
    let two = handles[1];
    let (alias, _) = space.check_map(range(105, 1).start, two).unwrap();
    space.mapped(alias, two);
    assert_eq!(space.released(two), 0);
    assert_eq!(space.handle(two), Err(DriverError::UnknownHandle(two)));
    assert_eq!(space.unmapped(range(101, 2)), [(D0, 0)]);
    assert_eq!(space.unmapped(alias), [(D0, 2 * PAGE)]);
    let one = handles[0];
    assert_eq!(space.unmapped(range(100, 1)), [(D0, 0)]);
    assert_eq!(space.released(one), PAGE);
}

#[test]
fn access_is_checked_byte_by_byte_of_the_range() {
    let (mut space, _) = space();
    let bytes = |start: u64, n| AddressRange::new(DevicePtr(100 * PAGE + start), n);
    let check = |space: &Space, range, need| space.check_access(range, need, D0);
    let inside = bytes(PAGE - 8, 16);
    assert_eq!(check(&space, inside, Need::Read), Err(DriverError::NoAccess(bytes(PAGE - 8, 8))));
    space.accessed(range(100, 1), &[D0], Access::ReadWrite);
    assert_eq!(check(&space, inside, Need::Read), Err(DriverError::NoAccess(bytes(PAGE, 8))));
    space.accessed(range(101, 2), &[D0], Access::ReadOnly);
    assert_eq!(check(&space, inside, Need::Read), Ok(()));
    assert_eq!(check(&space, inside, Need::Write), Err(DriverError::NoAccess(bytes(PAGE, 8))));
    let hole = bytes(3 * PAGE - 8, 16);
    assert_eq!(check(&space, hole, Need::Read), Err(DriverError::NotMapped(bytes(3 * PAGE, 8))));
    let foreign = AddressRange::new(DevicePtr(64), 8);
    assert_eq!(check(&space, foreign, Need::Read), Err(DriverError::UnknownAddress(foreign.start)));
    assert_eq!(check(&space, AddressRange::new(DevicePtr(64), 0), Need::Read), Ok(()));
    let endless = bytes(0, u64::MAX);
    let rest = AddressRange::new(DevicePtr(103 * PAGE), u64::MAX - 3 * PAGE);
    assert_eq!(check(&space, endless, Need::Read), Err(DriverError::NotMapped(rest)));
}

#[test]
fn rights_are_per_device() {
    let (mut space, _) = space();
    let page = range(100, 1);
    let refused = Err(DriverError::NoAccess(page));
    space.accessed(page, &[D0], Access::ReadWrite);
    assert_eq!(space.check_access(page, Need::Write, D0), Ok(()));
    assert_eq!(space.check_access(page, Need::Write, D1), refused);
    space.accessed(page, &[D1], Access::ReadOnly);
    assert_eq!(space.check_access(page, Need::Read, D1), Ok(()));
    assert_eq!(space.check_access(page, Need::Write, D1), refused);
    assert_eq!(space.devices_of(page), (1, 3));
    space.accessed(page, &[D0, D1], Access::None);
    assert_eq!(space.check_access(page, Need::Read, D0), refused);
}

#[test]
fn adopted_memory_is_copied_but_never_unmapped() {
    let (mut space, _) = space();
    let foreign = AddressRange::new(DevicePtr(0x1200), 100);
    assert_eq!(space.adopt(foreign, D1, Access::ReadOnly), Ok(()));
    assert_eq!(space.adopt(foreign, D1, Access::ReadOnly), Err(DriverError::StillMapped(foreign)));
    let over = range(99, 2);
    assert_eq!(space.adopt(over, D0, Access::ReadWrite), Err(DriverError::StillMapped(over)));
    assert_eq!(space.check_access(foreign, Need::Read, D1), Ok(()));
    assert_eq!(space.check_access(foreign, Need::Write, D1), Err(DriverError::NoAccess(foreign)));
    let page = AddressRange::new(DevicePtr(4 * PAGE), PAGE);
    assert_eq!(space.adopt(page, D1, Access::ReadWrite), Ok(()));
    assert_eq!(space.check_whole(page), Err(DriverError::NotMapped(page)));
    assert_eq!(space.disown(foreign.start), Ok(()));
    assert_eq!(space.disown(foreign.start), Err(DriverError::UnknownAddress(foreign.start)));
    let mapped = range(100, 1).start;
    assert_eq!(space.disown(mapped), Err(DriverError::UnknownAddress(mapped)));
}

#[test]
fn closing_lists_everything_once() {
    let (mut space, handles) = space();
    space.released(handles[0]);
    let (mappings, raw, reservations) = space.drain();
    assert_eq!(mappings, [range(100, 1), range(101, 2), range(104, 1)]);
    assert_eq!((raw, reservations), (vec![2, 1], vec![range(100, 8)]));
    assert_eq!(space.drain(), (vec![], vec![], vec![]));
}

#[test]
fn dropping_takes_only_what_is_not_mapped() {
    let (mut space, _) = space();
    space.reserved(range(200, 2));
    space.created(9, D1, PAGE);
    assert_eq!(space.drain_idle(), (vec![9], vec![range(200, 2)]));
    assert_eq!(space.drain_idle(), (vec![], vec![]));
    assert_eq!(space.check_whole(range(100, 3)), Ok(()));
}

#[test]
fn a_cover_counts_the_mappings_that_a_range_touches() {
    let (mut space, _) = space();
    for mapped in [range(100, 3), range(104, 1)] {
        space.accessed(mapped, &[D0], Access::ReadWrite);
    }
    let touched = |start: u64, bytes| {
        let at = DevicePtr(range(100, 1).start.0 + start);
        space.cover(AddressRange::new(at, bytes), Need::Write, D0).map(|cover| cover.n_mappings)
    };
    let page = range(0, 1).bytes;
    assert_eq!(touched(0, 3 * page), Ok(2));
    assert_eq!(touched(page - 1, 2), Ok(2));
    assert_eq!(touched(page + 1, 10), Ok(1));
    assert_eq!(touched(5, 0), Ok(0));
    assert!(matches!(touched(page, 2 * page + 1), Err(DriverError::NotMapped(_))));
    assert!(matches!(touched(3 * page, 1), Err(DriverError::NotMapped(_))));
}
