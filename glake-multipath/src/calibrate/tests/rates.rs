//! Whether what is measured is what the links carry.

use super::*;

const H200: LinkRates = LinkRates::h200();

fn host_rate(rates: LinkRates, direction: Direction) -> u64 {
    match direction {
        Direction::ToDevice => rates.to_device_bytes_per_us,
        Direction::ToHost => rates.to_host_bytes_per_us,
    }
}

#[test]
fn equal_links() {
    let found = full(config(2, H200));
    assert_eq!(
        found.links.iter().map(LinkCalibration::end).collect::<Vec<_>>(),
        [end(0, DIRECTIONS[0]), end(0, DIRECTIONS[1]), end(1, DIRECTIONS[0]), end(1, DIRECTIONS[1]),]
    );
    for link in &found.links {
        let rate = host_rate(H200, link.direction);
        assert!(is_near(link.direct.bytes_per_ms, rate), "{link:?}");
        // Beside the copy itself, its event is recorded, waited for and asked.
        let calls_ns = CostTable::h200().record_ns + CostTable::h200().synchronize_ns;
        assert!(link.direct.start_ns.abs_diff(H200.start_ns + calls_ns) <= 200, "{link:?}");
        assert_eq!(link.relays.iter().map(|relay| relay.relay.0).collect::<Vec<_>>(), [1 - link.device.0]);
        let relay = link.relays[0].path;
        assert!(is_near(relay.bytes_per_ms, rate), "{link:?}");
        // Two starts, a chunk over NVLink, and a few calls.
        let start_ns = 2 * H200.start_ns + MIB * 1000 / H200.peer_bytes_per_us;
        assert!((start_ns - 100..start_ns + 2000).contains(&relay.start_ns), "{start_ns}: {link:?}");
        assert!(is_near(link.together_bytes_per_ms.unwrap(), 2 * rate), "{link:?}");
        // 16 MiB take 302.8 µs and a start of 2.6; 8 MiB are 0.85 % slower, 4 MiB 2.5 %.
        assert_eq!((link.chunk_bytes, link.relays_pay()), (Some(8 * MIB), Some(true)));
        // The relay takes about 27 µs for its chunk of 1 MiB, the direct path 3 to start.
        let break_even = link.relay_from_bytes().unwrap();
        let ns = relay.start_ns + MIB * 1000 / rate - link.direct.start_ns;
        let expected = ns * rate / 1000;
        assert!(break_even.abs_diff(expected) * 50 <= expected, "{break_even}, by hand {expected}");
        assert!((5 * MIB / 4..3 * MIB / 2).contains(&break_even), "{break_even}");
    }
    assert_eq!((found.chunk_bytes(), found.has_failures()), (Some(8 * MIB), false));
    // By a clock that only the driver moves, the host's own copies take no time.
    let memcpy = Missing { part: Part::Memcpy { n_threads: 1 }, reason: Reason::Untimed };
    assert_eq!((found.memcpy.as_slice(), found.missing.as_slice()), (&[][..], &[memcpy][..]));
}

#[test]
fn one_slow_link() {
    let slow = LinkRates { to_device_bytes_per_us: 10_000, to_host_bytes_per_us: 5_000, ..H200 };
    let driver = Arc::new(config(2, H200).build());
    driver.set_links(DeviceId(1), slow).unwrap();
    let found = measured(&driver, Scale::FULL, 2 * SECOND_NS).unwrap();
    for direction in DIRECTIONS {
        let (fast, slow) = (host_rate(H200, direction), host_rate(slow, direction));
        let [zero, one] = [0, 1].map(|id| found.link(DeviceId(id), direction).unwrap());
        assert!(is_near(zero.direct.bytes_per_ms, fast) && is_near(one.direct.bytes_per_ms, slow));
        assert!(is_near(zero.relays[0].path.bytes_per_ms, slow), "{zero:?}");
        assert!(is_near(one.relays[0].path.bytes_per_ms, fast), "{one:?}");
        for link in [zero, one] {
            assert!(is_near(link.together_bytes_per_ms.unwrap(), slow + fast), "{link:?}");
            assert_eq!(link.relays_pay(), Some(true));
        }
        // A chunk of 1 MiB takes 105 and 210 µs on the slow link, in which the fast one moves 5.8 MB and 11.6.
        let expected = MIB * fast / slow;
        let break_even = zero.relay_from_bytes().unwrap();
        assert!((expected..expected + MIB / 2).contains(&break_even), "{break_even} {expected}");
        assert_eq!(one.relay_from_bytes(), Some(MIB), "the relay is faster");
    }
    // A start counts less on a slow link: 2 MiB at 10 GB/s take 209.7 µs, and at 5 GB/s 1 MiB as long.
    let chunk = |direction| found.link(DeviceId(1), direction).unwrap().chunk_bytes;
    assert_eq!(DIRECTIONS.map(chunk), [Some(2 * MIB), Some(MIB)]);
}

#[test]
fn relays_that_share_a_slow_nvlink() {
    let found = small(config(4, LinkRates { peer_bytes_per_us: 10_000, ..quick() }));
    let link = found.link(GPU, Direction::ToDevice).unwrap();
    assert_eq!(link.relays.len(), 3);
    assert!(link.relays.iter().all(|relay| is_near(relay.path.bytes_per_ms, 10_000)), "{link:?}");
    assert!(is_near(link.together_bytes_per_ms.unwrap(), 55_400 + 10_000), "{link:?}");
    assert_eq!(link.relays_pay(), Some(true));
}

#[test]
fn relays_that_add_nothing_are_seen() {
    let found = small(config(2, LinkRates { peer_bytes_per_us: 2_000, ..quick() }));
    for link in &found.links {
        assert!(is_near(link.relays[0].path.bytes_per_ms, 2_000), "{link:?}");
        let together = link.together_bytes_per_ms.unwrap();
        assert!(is_near(together, host_rate(H200, link.direction) + 2_000), "{link:?}");
        assert_eq!((link.relays_pay(), link.relay_from_bytes()), (Some(false), None));
        assert!(!found.is_worth(link.device, link.direction, link.relays[0].relay));
    }
}

#[test]
fn four_links_carry_four_times_as_much() {
    let rates = LinkRates { start_ns: 100, ..H200 };
    for link in small(config(4, rates)).links {
        let rate = host_rate(rates, link.direction);
        assert!(is_near(link.direct.bytes_per_ms, rate), "{link:?}");
        assert_eq!(link.relays.len(), 3);
        assert!(link.relays.iter().all(|relay| is_near(relay.path.bytes_per_ms, rate)), "{link:?}");
        assert!(is_near(link.together_bytes_per_ms.unwrap(), 4 * rate), "{link:?}");
    }
}

#[test]
fn without_peers_there_are_no_relays() {
    let two = full(config(2, H200).without_peers(DeviceId(0), DeviceId(1)));
    let one = full(config(1, H200));
    for found in [&two, &one] {
        for link in &found.links {
            assert!(is_near(link.direct.bytes_per_ms, host_rate(H200, link.direction)), "{link:?}");
            assert_eq!((link.relays.as_slice(), link.together_bytes_per_ms), (&[][..], None));
            assert_eq!((link.relays_pay(), link.relay_from_bytes()), (None, None));
        }
        assert_eq!(found.missing.len(), 1, "{:?}", found.missing);
    }
    assert_eq!((two.links.len(), one.links.len()), (4, 2));
}

#[test]
fn scattered_ranges_go_through_a_staging_area() {
    for link in small(config(1, H200)).links {
        let scattered = link.scattered.unwrap();
        // 32 ranges of 16 KiB: each copy takes 2.6 µs and 0.3, the gather as much as one, and little beside.
        let rate = host_rate(H200, link.direction);
        let bytes = 32 * 16 * KIB;
        let loop_ns = 32 * (H200.start_ns + 16 * KIB * 1000 / rate);
        let gathered_ns =
            2 * H200.start_ns + bytes * 1000 / rate + bytes * 1000 / H200.on_device_bytes_per_us;
        for (found, ns) in
            [(scattered.loop_bytes_per_ms, loop_ns), (scattered.gathered_bytes_per_ms, gathered_ns)]
        {
            let expected = bytes * 1_000_000 / ns;
            assert!(found.abs_diff(expected) * 25 <= expected, "{found}, by hand {expected}");
        }
        assert!(scattered.gathers());
    }
    // Where memory on the device is slow and starts cost nothing, a copy for each range is faster.
    let rates = LinkRates { start_ns: 0, on_device_bytes_per_us: 1000, ..H200 };
    assert!(small(config(1, rates)).links.iter().all(|link| !link.scattered.unwrap().gathers()));
}

#[test]
fn the_same_machine_gives_the_same_calibration() {
    assert_eq!(small(config(3, H200)), small(config(3, H200)));
}

#[test]
fn copies_that_take_no_time_give_no_rates() {
    for config in [SimConfig::h200(2), SimConfig::h200(2).completion(Completion::Manual)] {
        for config in [config.clone(), config.costs(CostTable::free())] {
            let found = small(config);
            let links = [0, 1].map(|id| DIRECTIONS.map(|direction| Part::Link(end(id, direction))));
            let parts = links.into_iter().flatten().chain([Part::Memcpy { n_threads: 1 }]);
            let missing: Vec<_> = parts.map(|part| Missing { part, reason: Reason::Untimed }).collect();
            assert_eq!((found.links.as_slice(), found.missing), (&[][..], missing));
        }
    }
}

#[test]
fn calls_that_cost_nothing_leave_the_rates() {
    let rates = quick();
    for link in small(config(2, rates).costs(CostTable::free())).links {
        let rate = host_rate(rates, link.direction);
        assert!(is_near(link.direct.bytes_per_ms, rate), "{link:?}");
        assert!(link.direct.start_ns.abs_diff(100) <= 1, "{link:?}");
        assert!(is_near(link.relays[0].path.bytes_per_ms, rate), "{link:?}");
    }
}
