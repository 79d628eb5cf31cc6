use proptest::prelude::*;

use super::{END, FIRST, Space, Touch};
use crate::driver::{Access, DriverError};
use crate::units::{AddressRange, DevicePtr, PAGE_BYTES};

#[test]
fn addresses_go_up_and_gaps_are_used_when_the_top_is_full() {
    const TIB: u64 = 1 << 40;
    let mut space = Space::new();
    let low = space.reserve(16 * TIB, PAGE_BYTES).unwrap();
    let mid = space.reserve(PAGE_BYTES, TIB).unwrap();
    assert_eq!((low.start.0, mid.start.0), (FIRST, FIRST + 16 * TIB));
    let rest = space.reserve(END - mid.end().0, PAGE_BYTES).unwrap();
    assert_eq!(rest.end().0, END);
    let bytes = PAGE_BYTES;
    assert_eq!(space.reserve(bytes, PAGE_BYTES), Err(DriverError::OutOfAddresses { bytes }));
    space.unreserve(low).unwrap();
    assert_eq!(space.reserve(bytes, PAGE_BYTES).map(|range| range.start), Ok(low.start));
    space.unreserve(rest).unwrap();
    assert_eq!(space.reserve(bytes, PAGE_BYTES).map(|range| range.start), Ok(mid.end()));
}

const N_PAGES: usize = 12;

/// What a page shows: the memory, the page's place in it, whether device 0 may read it.
type Shadow = [Option<(u64, usize, bool)>; N_PAGES];

#[derive(Clone, Copy, Debug)]
enum Op {
    Map,
    Unmap,
    Open,
    Close,
}

/// Whether pages `at..at + n` are whole mappings and nothing else, of handles with these sizes.
fn whole(shadow: &Shadow, sizes: &[usize], at: usize, n: usize) -> bool {
    let mut page = at;
    while page < at + n {
        match shadow.get(page) {
            Some(Some((memory, 0, _))) => page += sizes[usize::try_from(*memory).unwrap()],
            _ => return false,
        }
    }
    page == at + n
}

proptest! {
    /// Against a shadow that knows each page by itself: the same calls succeed, and each page
    /// shows the same place of the same memory with the same rights.
    #[test]
    fn every_page_shows_what_its_shadow_shows(
        ops in prop::collection::vec((
            prop::sample::select(vec![Op::Map, Op::Map, Op::Unmap, Op::Open, Op::Close]),
            0..N_PAGES,
            1..5_usize,
        ), 1..60),
    ) {
        let mut space = Space::new();
        let range = space.reserve(N_PAGES as u64 * PAGE_BYTES, PAGE_BYTES).unwrap();
        let mut shadow: Shadow = [None; N_PAGES];
        let mut sizes = Vec::new();
        let part = |at: usize, n: usize| {
            AddressRange::new(range.start + at as u64 * PAGE_BYTES, n as u64 * PAGE_BYTES)
        };
        for (op, at, n) in ops {
            let target = part(at, n);
            if matches!(op, Op::Map) {
                let memory = sizes.len() as u64;
                sizes.push(n);
                let fits = at + n <= N_PAGES && shadow[at..at + n].iter().all(Option::is_none);
                prop_assert_eq!(space.map(target.start, target.bytes, memory).is_ok(), fits);
                if fits {
                    (0..n).for_each(|place| shadow[at + place] = Some((memory, place, false)));
                }
                continue;
            }
            let fits = whole(&shadow, &sizes, at, n);
            prop_assert_eq!(space.each(target, |_| Ok(())).is_ok(), fits);
            if !fits {
                continue;
            }
            for (page, shown) in shadow.iter_mut().enumerate().skip(at).take(n) {
                if let (Op::Unmap, Some((_, 0, _))) = (op, *shown) {
                    space.unmap_one(part(page, 1).start.0).unwrap();
                }
                *shown = match op {
                    Op::Unmap => None,
                    _ => shown.map(|(memory, place, _)| (memory, place, matches!(op, Op::Open))),
                };
            }
            match op {
                Op::Open => space.set_access(target, 1, Access::ReadOnly),
                Op::Close => space.set_access(target, 1, Access::None),
                Op::Map | Op::Unmap => {}
            }
        }
        for (page, shown) in shadow.into_iter().enumerate() {
            let last_byte = AddressRange::new(DevicePtr(part(page, 1).end().0 - 1), 1);
            let mut seen = None;
            let outcome = space.translate(last_byte, 0, Touch::Read, |segment| seen = Some(segment));
            let found = seen.map(|segment| (segment.memory, segment.offset));
            let offset = |place: usize| (place as u64 + 1) * PAGE_BYTES - 1;
            match shown {
                None => prop_assert_eq!(outcome, Err(DriverError::NotMapped(last_byte))),
                Some((.., false)) => prop_assert_eq!(outcome, Err(DriverError::NoAccess(last_byte))),
                Some((memory, place, true)) => prop_assert_eq!(found, Some((memory, offset(place)))),
            }
        }
    }
}
