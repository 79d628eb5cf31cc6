//! What a measurement takes, and that it gives it back, whatever fails.

use glake_core::driver::{Held, HostMemory, StreamOrder, VirtualMemory};
use glake_core::units::StreamId;

use super::*;

fn free_bytes(driver: &SimDriver) -> Vec<u64> {
    let ids = 0..driver.n_devices();
    ids.map(|id| driver.memory_info(DeviceId(id)).unwrap().free_bytes).collect()
}

fn timed(driver: &Arc<SimDriver>, scale: Scale, budget_ns: u64) -> (Calibration, u64) {
    let start_ns = driver.now_ns();
    let found = measured(driver, scale, budget_ns).unwrap();
    (found, driver.now_ns() - start_ns)
}

#[test]
fn two_devices_take_less_than_two_seconds_and_64_mib() {
    let driver = Arc::new(config(2, LinkRates::h200()).build());
    let before = free_bytes(&driver);
    let (_, ns) = timed(&driver, Scale::FULL, DEFAULT_BUDGET_NS);
    assert!(ns < 200_000_000, "{ns}");
    assert_eq!(free_bytes(&driver), before);
    for id in 0..2 {
        let ledger = driver.ledger(DeviceId(id)).unwrap();
        assert_eq!(ledger.physical_bytes, 0);
        assert!((1..=64 * MIB).contains(&ledger.peak_physical_bytes), "{ledger:?}");
    }
    const { assert!(Scale::FULL.memory_bytes <= 64 * MIB) }; // pinned memory, one at a time
}

#[test]
fn the_budget_is_kept() {
    let slow = LinkRates {
        to_device_bytes_per_us: 200,
        to_host_bytes_per_us: 100,
        peer_bytes_per_us: 50,
        start_ns: 9000,
        ..LinkRates::h200()
    };
    for rates in [LinkRates::h200(), slow] {
        let mut n_links = Vec::new();
        for budget_ns in [0, 1, 50_000, 30_000_000, 60_000_000, 150_000_000, SECOND_NS] {
            let driver = Arc::new(config(4, rates).build());
            let (found, ns) = timed(&driver, SMALL, budget_ns);
            assert!(ns <= budget_ns, "{ns} of {budget_ns} ns");
            n_links.push(found.links.len());
            let is_complete = found.missing.iter().all(|missing| missing.reason != Reason::Budget);
            assert_eq!(is_complete, budget_ns == SECOND_NS && rates != slow || is_complete, "{budget_ns}");
            if n_links.last() == Some(&0) {
                let parts: Vec<_> = found.missing.iter().map(|missing| missing.part).collect();
                assert_eq!(parts.len(), 9, "8 links and the host's copies: {parts:?}");
            }
        }
        assert_eq!((n_links[0], n_links[6]), (0, 8), "{n_links:?}");
        assert!(n_links.is_sorted(), "{n_links:?}");
    }
}

/// Links come first, pairs as far as there is time.
#[test]
fn what_there_is_no_time_for_is_said() {
    let rates = LinkRates { to_device_bytes_per_us: 500, to_host_bytes_per_us: 500, ..LinkRates::h200() };
    let driver = Arc::new(config(8, rates).build());
    let (found, ns) = timed(&driver, SMALL, 600_000_000);
    assert!(ns <= 600_000_000);
    assert_eq!(found.links.len(), 16);
    let n_relays: usize = found.links.iter().map(|link| link.relays.len()).sum();
    let is_missing =
        |missing: &&Missing| matches!(missing.part, Part::Relay(..)) && missing.reason == Reason::Budget;
    let n_missing = found.missing.iter().filter(is_missing).count();
    assert!(n_relays > 0 && n_missing > 0, "{n_relays} {n_missing}");
    assert_eq!(n_relays + n_missing, 2 * 8 * 7);
    assert!(
        found.links.iter().any(|link| link.device == DeviceId(7) && !link.relays.is_empty()),
        "a share for all"
    );
    assert!(!found.has_failures());
}

/// How many things have ids, where `id` makes new ones: slots that were given back are used again, in a new generation
/// each time, before there is a new slot in its first.
fn n_live(mut id: impl FnMut() -> u64) -> u64 {
    let mut n_reused = 0;
    loop {
        let id = id();
        if id >> 32 == 1 {
            return (id & u64::from(u32::MAX)) - n_reused;
        }
        n_reused += 1;
    }
}

/// Host memory that the driver keeps, and events.
fn n_kept(driver: &SimDriver) -> [u64; 2] {
    let hold = || driver.hold(Held::Shared(Arc::new([0; 1]))).0;
    [n_live(hold), n_live(|| driver.record(StreamId::LEGACY).unwrap().0)]
}

/// Fails one call after the other; says how many there were, and how many measurements came to nothing.
fn sweep(fault: impl Fn(u64) -> Fault, check: impl Fn(&Arc<SimDriver>, &Calibration)) -> (u64, u64) {
    let mut n_errors = 0;
    for nth in 0.. {
        let driver = Arc::new(config(2, quick()).costs(few_looks()).build());
        let before = free_bytes(&driver);
        driver.plan(fault(nth));
        let outcome = measured(&driver, TINY, SECOND_NS);
        driver.clear_faults();
        if driver.n_faults() == 0 {
            return (nth, n_errors);
        }
        match outcome {
            Ok(found) => check(&driver, &found),
            Err(CalibrateError::Driver(error)) => {
                assert_eq!(error, DriverError::Planned);
                n_errors += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
        assert_eq!(free_bytes(&driver), before, "call {nth}");
        for id in 0..2 {
            assert_eq!(driver.ledger(DeviceId(id)).unwrap().physical_bytes, 0);
        }
        assert_eq!(n_kept(&driver), [0, 0], "call {nth}");
    }
    unreachable!()
}

/// A clock that moves on so far with each look at an event that few are needed.
fn few_looks() -> CostTable {
    CostTable { query_ns: 20_000, ..CostTable::free() }
}

const TINY: Scale = Scale {
    memory_bytes: 64 * KIB,
    most_chunk_bytes: 32 * KIB,
    least_chunk_bytes: 16 * KIB,
    pageable_bytes: 80 * KIB,
};

#[test]
fn whatever_call_fails_nothing_is_left_behind() {
    let whole = {
        let driver = Arc::new(config(2, quick()).costs(few_looks()).build());
        measured(&driver, TINY, SECOND_NS).unwrap()
    };
    let n_parts = |found: &Calibration| {
        found
            .links
            .iter()
            .map(|link| {
                1 + link.relays.len()
                    + [
                        link.together_bytes_per_ms.is_some(),
                        link.chunk_bytes.is_some(),
                        link.scattered.is_some(),
                    ]
                    .iter()
                    .filter(|is| **is)
                    .count()
            })
            .sum::<usize>()
    };
    assert_eq!(n_parts(&whole), 4 * 5);
    let (n_calls, n_errors) = sweep(Fault::nth, |_, found| {
        // One of 20 parts at most is missing, or a link with all that hangs on it, or a device.
        assert!(n_parts(found) >= 10, "{found:?}");
        assert!(n_parts(found) == 20 || found.has_failures(), "{found:?}");
    });
    assert!(n_calls > 500, "{n_calls}");
    assert_eq!(n_errors, 0, "the other links are measured");
}

#[test]
fn a_driver_that_fails_from_some_call_on_ends_the_measurement() {
    let driver = Arc::new(config(2, quick()).build());
    driver.plan(Fault::nth(0).from_then_on());
    let error = measured(&driver, TINY, SECOND_NS).unwrap_err();
    assert!(matches!(error, CalibrateError::Driver(DriverError::Planned)));
    for nth in (0..600).step_by(7) {
        let driver = Arc::new(config(2, quick()).build());
        driver.plan(Fault::nth(nth).of(Target::Copies).from_then_on());
        if let Ok(found) = measured(&driver, TINY, SECOND_NS) {
            assert!(found.has_failures() == (driver.n_faults() > 0), "{nth}");
        }
        driver.clear_faults();
        assert_eq!(driver.ledger(GPU).unwrap().physical_bytes, 0, "{nth}");
    }
}

#[test]
fn a_lost_device_leaves_the_others() {
    for nth in (0..900).step_by(31) {
        let driver = Arc::new(config(3, quick()).build());
        driver.plan(Fault::nth(nth).lose(DeviceId(1)));
        let found = measured(&driver, TINY, SECOND_NS).unwrap();
        assert!(driver.n_faults() > 0);
        for id in [0, 2] {
            for direction in DIRECTIONS {
                // The call at which the device is lost is anybody's.
                let is_missing = |missing: &Missing| missing.part == Part::Link(end(id, direction));
                let link = found.link(DeviceId(id), direction);
                assert!(link.is_some() || found.missing.iter().any(is_missing), "{nth}");
            }
            assert_eq!(driver.ledger(DeviceId(id)).unwrap().physical_bytes, 0, "{nth}");
        }
        assert!(found.links.len() >= 2 && found.has_failures(), "{nth}: {found:?}");
    }
}

#[test]
fn the_topology_of_another_machine_is_refused() {
    let driver: Arc<dyn Driver> = Arc::new(SimDriver::h200(2));
    let error = Calibration::measure(&driver, &topology(&SimDriver::h200(3)), SECOND_NS).unwrap_err();
    assert!(matches!(error, CalibrateError::ForeignTopology { n_devices: 2, n_places: 3 }));
}
