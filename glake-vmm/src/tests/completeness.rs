//! Completeness: an allocation never fails while clean handles whose events have passed, the
//! tail, and the room under the limit would hold it.

use std::collections::BTreeMap;

use glake_core::alloc::{AllocError, Allocator, Request};
use glake_core::driver::{Call, Driver, VirtualMemory};
use glake_core::sim::{Completion, SimConfig};
use glake_core::units::{DevicePtr, PAGE_BYTES};
use glake_testkit::rng::Rng;

use super::rig::{DEVICE, MIB, Rig};
use crate::blocks::Kind;
use crate::stale::StaleMapping;
use crate::{Config, Mode, StitchPool};

/// What the pool could hand out, from its blocks and handles alone.
#[derive(Debug)]
struct Shadow {
    /// Free runs, the spare unit counted as free, by address: start to end.
    free: BTreeMap<u64, u64>,
    /// Bytes of handles without a live byte, those in the last run apart.
    clean_bytes: u64,
    /// The free run at the end of all homes.
    tail: (u64, u64),
    room_bytes: u64,
}

impl Shadow {
    fn of(pool: &StitchPool, memory_bytes: u64) -> Self {
        let spares = pool.spare_starts();
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, b) in pool.blocks.ascending() {
            if b.is_free() || (b.kind == Kind::Unit && spares.contains(&b.start)) {
                let below = free.last_entry().filter(|run| *run.get() == b.start);
                match below {
                    Some(mut run) => *run.get_mut() = b.end(),
                    None => drop(free.insert(b.start, b.end())),
                }
            }
        }
        let arena_end = pool.slots.end() as u64 * PAGE_BYTES;
        let tail = free.last_key_value().map(|(&start, &end)| (start, end));
        let tail = tail.filter(|run| run.1 == arena_end).unwrap_or((arena_end, arena_end));
        let clean_bytes = pool.slots.handles().map(|(_, handle)| {
            let (start, end) = (u64::from(handle.home) * PAGE_BYTES, handle.pages().end as u64 * PAGE_BYTES);
            let run = free.range(..=start).next_back().filter(|run| *run.1 >= end);
            run.filter(|run| *run.0 != tail.0).map_or(0, |_| end - start)
        });
        let clean_bytes = clean_bytes.sum();
        let most_bytes = pool.config.limit_bytes.min(memory_bytes);
        let room_bytes = most_bytes.saturating_sub(pool.physical_bytes()) / PAGE_BYTES * PAGE_BYTES;
        Self { free, clean_bytes, tail, room_bytes }
    }

    /// Whether a request has to be served.
    fn holds(&self, request: Request) -> bool {
        let bytes = request.bytes.next_multiple_of(512);
        let place = |start: u64| start.next_multiple_of(request.align_bytes.max(512));
        let fits = self.free.iter().any(|(&start, &end)| place(start) + bytes <= end);
        let tail_bytes = self.tail.1.saturating_sub(place(self.tail.0));
        let need_bytes = bytes.saturating_sub(tail_bytes).next_multiple_of(PAGE_BYTES);
        fits || need_bytes <= self.clean_bytes + self.room_bytes
    }
}

fn request(rng: &mut Rng, rig: &Rig, limit_bytes: u64) -> Request {
    let bytes = match rng.below(8) {
        0 => rng.between(1, 256 << 10),
        1 | 2 => rng.between(1, 16) * PAGE_BYTES,
        3 => rng.between(1, limit_bytes),
        _ => rng.log_between(100 << 10, 12 * MIB),
    };
    let align_bytes = if rng.below(6) == 0 { 1 << rng.between(9, 21) } else { 512 };
    rig.request(bytes).aligned(align_bytes)
}

/// Whether nothing is pending that a stale mapping waits for. Under manual completion, an event
/// that is recorded only now has not passed.
fn events_have_passed(rig: &Rig) -> bool {
    let has_event = |m: &StaleMapping| m.uses.iter().all(|&tag| rig.pool.order.has_event(tag));
    let is_open = rig.completion == Completion::Manual && !rig.pool.stale.iter().all(has_event);
    !is_open && rig.sim.n_pending(rig.stream) == Ok(0)
}

/// Attempts at exhaustion: requests for more than may still be created. How many failed.
fn attempts(n: u64, seed: u64, completion: Completion, set: fn(Config) -> Config) -> u64 {
    const MEMORY_BYTES: u64 = 96 * MIB;
    let mut rng = Rng::new(seed);
    let sim = SimConfig::h200(1).memory_bytes(MEMORY_BYTES).completion(completion);
    let mut rig = Rig::new(sim, set);
    rig.completion = completion;
    let (mut n_attempts, mut n_failed) = (0, 0);
    while n_attempts < n {
        if rng.below(5) < 2 && !rig.live.is_empty() {
            let at = rng.below(rig.live.len() as u64) as usize;
            rig.free(rig.live[at].ptr);
        }
        if completion == Completion::Manual && rng.below(2) == 0 {
            rig.sim.complete_all();
        }
        if rng.below(200) == 0 {
            let limit_bytes = rng.between(24 * MIB, 128 * MIB);
            rig.pool.set_limit_bytes(limit_bytes).unwrap();
        }
        let request = request(&mut rng, &rig, 64 * MIB);
        let shadow = Shadow::of(&rig.pool, MEMORY_BYTES);
        let have_passed = events_have_passed(&rig);
        n_attempts += u64::from(have_passed && request.bytes > shadow.room_bytes);
        match rig.try_allocate(request) {
            Ok(_) => {}
            Err(AllocError::OutOfMemory(report)) => {
                let must = have_passed && shadow.holds(request);
                assert!(!must, "attempt {n_attempts}: {request:?} of {shadow:?}: {report}");
                n_failed += 1;
                // Go on with less.
                for _ in 0..rng.between(0, 3).min(rig.live.len() as u64) {
                    let at = rng.below(rig.live.len() as u64) as usize;
                    rig.free(rig.live[at].ptr);
                }
            }
            Err(error) => panic!("{request:?}: {error}"),
        }
    }
    rig.check();
    rig.free_all();
    rig.finish();
    n_failed
}

fn all_attempts(n: u64) {
    let sets: [fn(Config) -> Config; 4] = [
        |config| config,
        |config| config.limit_bytes(64 * MIB),
        |config| config.mode(Mode::Compact).limit_bytes(61 * MIB + 1),
        |config| config.limit_bytes(80 * MIB).stitch_above_bytes(40 * MIB),
    ];
    let mut n_failed = 0;
    for (seed, set) in sets.into_iter().enumerate() {
        n_failed += attempts(n / 8, seed as u64, Completion::Immediate, set);
        n_failed += attempts(n / 8, 10 + seed as u64, Completion::Manual, set);
    }
    assert!(n_failed > n / 100, "only {n_failed} of {n} failed: that is no exhaustion");
}

#[test]
fn no_request_fails_that_could_be_served() {
    all_attempts(4_000);
}

/// `cargo test --release -p glake-vmm --lib -- --ignored a_million`
#[test]
#[ignore = "takes a minute in release mode"]
fn no_request_of_a_million_fails_that_could_be_served() {
    all_attempts(1_000_000);
}

#[test]
fn a_small_object_takes_what_is_left_where_no_unit_is_to_be_had() {
    let mut rig = Rig::immediate(|config| config.limit_bytes(4 * MIB));
    rig.allocate(3 * MIB);
    let apart = rig.allocate(100);
    assert_eq!(apart, rig.pool.arena.start + 3 * MIB, "the tail holds it");
    rig.check();
    rig.free(apart);
    assert_eq!(rig.pool.stats().largest_free_bytes, MIB);
    rig.check();
}

#[test]
fn what_the_device_does_not_have_is_not_created_in_vain() {
    let mut rig = Rig::new(SimConfig::h200(1).memory_bytes(96 * MIB), |config| config);
    let others = rig.sim.create(DEVICE, 32 * MIB).unwrap();
    let n_created = |rig: &Rig| rig.sim.ledger(DEVICE).unwrap().n(Call::Create);
    // More than the device has in all.
    rig.try_allocate(rig.request(98 * MIB)).unwrap_err();
    assert_eq!(n_created(&rig), 1);
    // More than others leave: tried once, not again in handles of one page.
    rig.try_allocate(rig.request(80 * MIB)).unwrap_err();
    assert!(n_created(&rig) <= 1 + 20, "{} handles were created", n_created(&rig));
    rig.allocate(64 * MIB);
    rig.sim.release(others).unwrap();
    rig.finish();
}

#[test]
fn mappings_left_without_an_event_do_not_block_the_last_place() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact).limit_bytes(16 * MIB));
    let sizes = [4 * MIB, 2 * MIB, 4 * MIB, 2 * MIB, 2 * MIB, MIB, MIB];
    let at: Vec<DevicePtr> = sizes.iter().map(|&bytes| rig.allocate(bytes)).collect();
    rig.free(at[0]);
    rig.free(at[2]);
    let stitched = rig.allocate(8 * MIB);
    // Its handles return, and stay mapped behind the last home, in the open epoch.
    rig.free(stitched);
    // One of them is used, so that the run cannot be revived.
    rig.allocate(4 * MIB);
    rig.free(at[4]);
    rig.free(at[6]);
    // Half a page at the end and three pages elsewhere: they fit together there only.
    rig.allocate(7 * MIB);
    assert_eq!(rig.pool.stats().reserved_bytes, 16 * MIB);
    rig.check();
    rig.free_all();
    rig.finish();
}

#[test]
fn an_aligned_place_is_found_among_many_that_are_not() {
    let mut rig = Rig::immediate(|config| config.mode(Mode::Compact));
    // Forty free runs of 2.5 to 3.25 MiB from 0.25 MiB behind a page's start: none has an aligned
    // page.
    let mut runs = Vec::new();
    for i in 0..40 {
        let run_bytes = 5 * MIB / 2 + i % 5 * (160 << 10);
        rig.allocate(MIB / 4);
        runs.push(rig.allocate(run_bytes));
        rig.allocate(15 * MIB / 4 - run_bytes);
    }
    // The tail has 1.5 MiB; one page more makes it longer than those, with an aligned page.
    rig.allocate(MIB / 2);
    runs.into_iter().for_each(|run| rig.free(run));
    let reserved_bytes = rig.pool.stats().reserved_bytes;
    let request = rig.request(PAGE_BYTES).aligned(PAGE_BYTES);
    let place = rig.try_allocate(request).unwrap().ptr;
    assert_eq!(place - rig.pool.arena.start, 162 * MIB);
    assert_eq!(rig.pool.stats().reserved_bytes, reserved_bytes + PAGE_BYTES);
    rig.free(place);
    rig.pool.set_limit_bytes(reserved_bytes + PAGE_BYTES).unwrap();
    rig.try_allocate(request).unwrap();
    assert_eq!(rig.pool.stats().reserved_bytes, reserved_bytes + PAGE_BYTES);
    rig.check();
    rig.free_all();
    rig.finish();
}
