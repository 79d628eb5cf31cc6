//! Laws of re-homing: handles move to new addresses while work on the old ones is pending.

use std::collections::VecDeque;

use glake_core::driver::{Driver, pattern_word};
use glake_core::units::{AddressRange, DevicePtr, EventId, HandleId, PAGE_BYTES};

use super::rig::{Rig, page};

const N_HANDLES: u64 = 64;
const N_DONORS: u64 = 16;
const N_GATHERS: u64 = 96;
/// Old mappings are unmapped when this many gathers came behind them.
const N_KEPT: usize = 8;
/// Bytes at the end of each page that the law writes and checks.
const TESTED_BYTES: u64 = 32 << 10;

/// A handle, where it is, and the pattern that it holds.
#[derive(Clone, Copy)]
struct Home {
    handle: HandleId,
    at: DevicePtr,
    seed: u64,
}

fn tested(at: DevicePtr) -> AddressRange {
    AddressRange::new(at + (PAGE_BYTES - TESTED_BYTES), TESTED_BYTES)
}

/// `n` of the numbers below `below`, all different, chosen by `seed`.
fn choose(n: u64, below: u64, seed: u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..usize::try_from(below).unwrap()).collect();
    for i in 0..n {
        let j = i + pattern_word(seed, i) % (below - i);
        numbers.swap(usize::try_from(i).unwrap(), usize::try_from(j).unwrap());
    }
    numbers.truncate(usize::try_from(n).unwrap());
    numbers
}

/// Gathers of random handles while earlier work that writes through the old addresses is pending:
/// later work reads, overwrites and reads again through the new ones, old mappings are unmapped
/// behind events, and no word is wrong.
pub fn handles_move_under_pending_work(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let arena = rig.reserve(N_HANDLES + N_GATHERS * N_DONORS);
    let wrong = driver.mismatches(rig.stream).unwrap();
    let mut homes: Vec<Home> = (0..N_HANDLES)
        .map(|n| {
            let (handle, at) = (rig.handle(1), page(arena, n));
            rig.open(rig.map(at, handle, 1));
            Home { handle, at, seed: n }
        })
        .collect();
    let mut stale: VecDeque<(EventId, Vec<DevicePtr>)> = VecDeque::new();
    for gather in 0..N_GATHERS {
        let donors = choose(N_DONORS, N_HANDLES, gather);
        let start = page(arena, N_HANDLES + gather * N_DONORS);
        if gather % 4 == 0 {
            driver.delay(rig.stream, 500_000).unwrap();
        }
        let old = donors.iter().map(|&n| homes[n].at).collect();
        write_all(&rig, &mut homes, &donors, gather << 32);
        for (n, &donor) in (0..).zip(&donors) {
            homes[donor].at = start + n * PAGE_BYTES;
            rig.map(homes[donor].at, homes[donor].handle, 1);
        }
        rig.open(AddressRange::new(start, N_DONORS * PAGE_BYTES));
        check_all(&rig, &homes, &donors);
        write_all(&rig, &mut homes, &donors, gather << 32 | 1 << 31);
        check_all(&rig, &homes, &donors);
        stale.push_back((driver.record(rig.stream).unwrap(), old));
        if stale.len() > N_KEPT {
            retire(&rig, stale.pop_front());
        }
    }
    for entry in stale {
        retire(&rig, Some(entry));
    }
    check_all(&rig, &homes, &choose(N_HANDLES, N_HANDLES, 0));
    assert_eq!(driver.mismatches(rig.stream), Ok(wrong), "wrong words");
    rig.close();
}

fn write_all(rig: &Rig<'_>, homes: &mut [Home], donors: &[usize], seed: u64) {
    for (n, &donor) in (0..).zip(donors) {
        homes[donor].seed = seed + n;
        rig.driver.fill_pattern(tested(homes[donor].at), homes[donor].seed, rig.stream).unwrap();
    }
}

fn check_all(rig: &Rig<'_>, homes: &[Home], donors: &[usize]) {
    for &donor in donors {
        rig.driver.check_pattern(tested(homes[donor].at), homes[donor].seed, rig.stream).unwrap();
    }
}

/// Unmaps old mappings behind their event.
fn retire(rig: &Rig<'_>, entry: Option<(EventId, Vec<DevicePtr>)>) {
    let (event, old) = entry.expect("a gather to retire");
    rig.driver.synchronize(event).unwrap();
    rig.driver.forget(event);
    for at in old {
        rig.unmap(AddressRange::new(at, PAGE_BYTES));
    }
}

/// After copy-engine work through one address, kernels read the same bytes through an older one,
/// and the other way round.
pub fn an_old_alias_shows_what_the_copy_engine_wrote(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handle = rig.handle(1);
    let (old, new) = (rig.place(handle, 1), rig.place(handle, 1));
    let source = rig.pages(1);
    let wrong = driver.mismatches(rig.stream).unwrap();
    for seed in 0..32 {
        let (to, from) = if seed % 2 == 0 { (new, old) } else { (old, new) };
        driver.fill_pattern(tested(source.start), seed, rig.stream).unwrap();
        let (dst, src) = (tested(to.start).start, tested(source.start).start);
        driver.copy(dst, src, TESTED_BYTES, rig.stream).unwrap();
        driver.check_pattern(tested(from.start), seed, rig.stream).unwrap();
    }
    assert_eq!(driver.mismatches(rig.stream), Ok(wrong), "wrong words");
    rig.close();
}

/// Handles that the streams of the law below take in turn.
const N_SHARED: u64 = 4;
/// How often a handle goes from one stream to another and back.
const N_EXCHANGES: u64 = 1024;
const EXCHANGED_BYTES: u64 = 8 << 10;

/// Streams that hand memory to one another by events see its bytes at once, each through an address of
/// its own, whether kernels or the copy engine wrote and read them.
pub fn streams_see_the_same_bytes_at_different_aliases(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (a, b) = (rig.stream, driver.create_stream(rig.device).unwrap());
    let handles: Vec<HandleId> = (0..N_SHARED).map(|_| rig.handle(1)).collect();
    let [of_a, of_b] = [(); 2].map(|()| handles.iter().map(|&h| rig.place(h, 1)).collect::<Vec<_>>());
    // The copy engine's ends, one for each stream.
    let ends = [rig.pages(1), rig.pages(1)];
    let wrong = driver.mismatches(a).unwrap();
    let part = |place: AddressRange| AddressRange::new(place.start + TESTED_BYTES, EXCHANGED_BYTES);
    let hand_over = |from, to| {
        let event = driver.record(from).unwrap();
        driver.wait(to, event).unwrap();
        driver.forget(event);
    };
    let write = |place, seed, by_copy, end, stream| {
        if by_copy {
            driver.fill_pattern(part(end), seed, stream).unwrap();
            driver.copy(part(place).start, part(end).start, EXCHANGED_BYTES, stream).unwrap();
        } else {
            driver.fill_pattern(part(place), seed, stream).unwrap();
        }
    };
    let check = |place, seed, by_copy, end, stream| {
        if by_copy {
            driver.copy(part(end).start, part(place).start, EXCHANGED_BYTES, stream).unwrap();
            driver.check_pattern(part(end), seed, stream).unwrap();
        } else {
            driver.check_pattern(part(place), seed, stream).unwrap();
        }
    };
    for n in 0..N_EXCHANGES {
        let i = usize::try_from(n % N_SHARED).unwrap();
        // All four pairs of writers and readers, each with every handle.
        let (writes_by_copy, reads_by_copy) =
            ((n / N_SHARED).is_multiple_of(2), (n / N_SHARED / 2).is_multiple_of(2));
        if n % 32 == 0 {
            driver.delay(a, 100_000).unwrap();
        }
        for ((from, at, from_end), (to, then, to_end), seed) in [
            ((a, of_a[i], ends[0]), (b, of_b[i], ends[1]), 2 * n),
            ((b, of_b[i], ends[1]), (a, of_a[i], ends[0]), 2 * n + 1),
        ] {
            write(at, seed, writes_by_copy, from_end, from);
            hand_over(from, to);
            check(then, seed, reads_by_copy, to_end, to);
        }
    }
    hand_over(b, a);
    assert_eq!(driver.mismatches(a), Ok(wrong), "wrong words");
    driver.destroy_stream(b).unwrap();
    rig.close();
}

/// When another handle is mapped at an address, the address shows that handle's bytes, and the
/// handle that was there shows its own elsewhere.
pub fn an_address_shows_its_new_handle_at_once(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let handles = [rig.handle(1), rig.handle(1)];
    let places = handles.map(|handle| rig.place(handle, 1));
    for round in 0..32u8 {
        rig.put(places[0].start, round);
        rig.put(places[1].start, 100 + round);
        for (n, place) in places.into_iter().enumerate() {
            rig.unmap(place);
            rig.map(place.start, handles[(usize::from(round) + n + 1) % 2], 1);
            rig.open(place);
        }
        assert_eq!(places.map(|place| rig.get(place.start)), [100 + round, round], "round {round}");
    }
    rig.close();
}
