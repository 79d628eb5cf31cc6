use std::sync::Arc;

use super::{LinkRates, LinkTimes};
use crate::driver::{Access, Copies, DeviceOps, DriverError, Piece, SharedBytes, StreamOrder, VirtualMemory};
use crate::sim::{Completion, CostTable, SimConfig, SimDriver};
use crate::units::{AddressRange, DeviceId, DevicePtr, EventId, PAGE_BYTES, StreamId};

mod relay;

const ZERO: DeviceId = DeviceId(0);
const ONE: DeviceId = DeviceId(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// What a copy of 2 MiB over a link to a device takes.
const PAGE_NS: u64 = 2_600 + (PAGE_BYTES * 1000).div_ceil(55_400);

fn config(n_devices: u32) -> SimConfig {
    SimConfig::h200(n_devices).costs(CostTable::free()).completion(Completion::Lag(0))
}

fn h200(n_devices: u32) -> SimDriver {
    config(n_devices).links(LinkRates::h200()).build()
}

/// Memory of a device that all devices may use.
fn memory(driver: &SimDriver, device: DeviceId, bytes: u64) -> DevicePtr {
    let range = driver.reserve(bytes, PAGE_BYTES).unwrap();
    driver.map(range.start, driver.create(device, bytes).unwrap()).unwrap();
    let n_devices = driver.n_devices;
    let all: Vec<_> = (0..n_devices).map(DeviceId).collect();
    driver.set_access(range, &all, Access::ReadWrite).unwrap();
    range.start
}

fn host(value: u8, bytes: u64) -> SharedBytes {
    Arc::new(vec![value; usize::try_from(bytes).unwrap()])
}

fn end(driver: &SimDriver, stream: StreamId) -> u64 {
    driver.synchronize(driver.record(stream).unwrap()).unwrap();
    driver.now_ns()
}

/// Whether two figures differ by at most `percent`.
fn close(a: f64, b: f64, percent: f64) -> bool {
    (a / b - 1.0).abs() <= percent / 100.0
}

#[allow(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn gb_per_s(bytes: u64, ns: u64) -> f64 {
    bytes as f64 / ns as f64
}

#[test]
fn chunks_reach_what_was_measured() {
    let measured = [(64, 17.6), (256, 35.3), (KIB, 48.4), (4 * KIB, 53.4), (16 * KIB, 54.9)];
    for (kib, expected) in measured {
        let (driver, chunk_bytes) = (h200(1), kib * KIB);
        let at = memory(&driver, ZERO, 32 * MIB);
        let stream = driver.create_stream(ZERO).unwrap();
        let chunk = host(1, chunk_bytes);
        let n_chunks = 32 * MIB / chunk_bytes;
        for index in 0..n_chunks {
            driver.write_async(at + index * chunk_bytes, Arc::clone(&chunk), stream).unwrap();
        }
        let reached = gb_per_s(n_chunks * chunk_bytes, end(&driver, stream));
        assert!(close(reached, expected, 3.0), "{kib} KiB: {reached}, measured {expected}");
    }
}

#[test]
fn each_way_has_its_rate_and_its_engine() {
    let driver = h200(2);
    let [own, other] = [ZERO, ZERO].map(|device| memory(&driver, device, PAGE_BYTES));
    let peer = memory(&driver, ONE, PAGE_BYTES);
    let stream = driver.create_stream(ZERO).unwrap();
    let range = AddressRange::new(own, PAGE_BYTES);
    let remote = AddressRange::new(peer, PAGE_BYTES);
    let bytes = host(1, PAGE_BYTES);
    let mut before_ns = 0;
    let mut spent = || {
        let ns = end(&driver, stream) - before_ns;
        before_ns += ns;
        ns
    };
    let [to_host, peers, inside] =
        [55_300, 397_000, 2_100_000].map(|rate| 2_600 + (PAGE_BYTES * 1000).div_ceil(rate));
    driver.write_async(own, Arc::clone(&bytes), stream).unwrap();
    assert_eq!(spent(), PAGE_NS);
    let read = driver.read_async(own, vec![0; 2 << 20].into(), stream).unwrap();
    assert_eq!(driver.take_read(read), Ok(None));
    assert_eq!(spent(), to_host);
    assert_eq!(driver.take_read(read).unwrap().as_deref(), Some((*bytes).as_ref()));
    driver.copy(other, own, PAGE_BYTES, stream).unwrap();
    assert_eq!(spent(), inside);
    driver.copy_by_kernel(peer, own, PAGE_BYTES, stream).unwrap();
    assert_eq!(spent(), peers);
    driver.copy(own, peer, PAGE_BYTES, stream).unwrap();
    assert_eq!(spent(), peers);
    let halves = [0, MIB].map(|at| Piece { dst: other + at, src: own + at, bytes: MIB });
    driver.gather(&halves, stream).unwrap();
    assert_eq!(spent(), inside, "one launch for all pieces");
    driver.fill(range, 7, stream).unwrap();
    driver.fill_pattern(range, 7, stream).unwrap();
    driver.check_pattern(range, 7, stream).unwrap();
    assert_eq!(spent(), 3 * inside);
    driver.fill(remote, 7, stream).unwrap();
    assert_eq!(spent(), peers);
    driver.gather(&[0, MIB].map(|at| Piece { dst: peer + at, src: own + at, bytes: MIB }), stream).unwrap();
    assert_eq!(spent(), peers);
    driver.copy(peer + MIB, peer, MIB, stream).unwrap();
    assert_eq!(spent(), 2_600 + (MIB * 1000).div_ceil(397_000), "there and back, by the stream's device");
    driver.write_async(peer, bytes, stream).unwrap();
    assert_eq!(spent(), PAGE_NS, "over the link of the stream's device");
    let there_and_back_ns = 2_600 + (MIB * 1000).div_ceil(397_000);
    let expected = LinkTimes {
        to_device_ns: 2 * PAGE_NS,
        to_host_ns: to_host,
        peer_out_ns: 3 * peers + there_and_back_ns,
        peer_in_ns: peers + there_and_back_ns,
        on_device_ns: 5 * inside,
    };
    assert_eq!(driver.busy_ns(ZERO), Ok(expected));
    let LinkTimes { peer_out_ns: peer_in_ns, peer_in_ns: peer_out_ns, .. } = expected;
    assert_eq!(driver.busy_ns(ONE), Ok(LinkTimes { peer_out_ns, peer_in_ns, ..LinkTimes::default() }));
}

#[test]
fn blocking_copies_move_the_clock_to_their_end() {
    let driver = h200(2);
    let (own, peer) = (memory(&driver, ZERO, PAGE_BYTES), memory(&driver, ONE, PAGE_BYTES));
    let stream = driver.create_stream(ZERO).unwrap();
    driver.delay(stream, 1_000).unwrap();
    driver.write(own, &vec![3; 2 << 20], stream).unwrap();
    assert_eq!(driver.now_ns(), 1_000 + PAGE_NS);
    let mut bytes = [0; 5_530];
    driver.read(own, &mut bytes, stream).unwrap();
    assert_eq!((driver.now_ns(), bytes), (1_000 + PAGE_NS + 2_600 + 100, [3; 5_530]));
    assert_eq!(driver.compare(own, peer, 3_970, stream), Ok(false));
    assert_eq!(driver.now_ns(), 1_000 + PAGE_NS + 2_700 + 2_600 + 10);
    let expected = [PAGE_NS, 2_700, 2_610];
    let LinkTimes { to_device_ns, to_host_ns, peer_in_ns, .. } = driver.busy_ns(ZERO).unwrap();
    assert_eq!([to_device_ns, to_host_ns, peer_in_ns], expected);
    assert_eq!(driver.busy_ns(ONE).unwrap().peer_out_ns, 2_610);
}

/// The end of `n_copies` of a page on each stream, in turn.
fn write_in_turn(driver: &SimDriver, streams: &[(StreamId, DevicePtr)], n_copies: u64) -> u64 {
    let page = host(1, PAGE_BYTES);
    for _ in 0..n_copies {
        for &(stream, at) in streams {
            driver.write_async(at, Arc::clone(&page), stream).unwrap();
        }
    }
    driver.complete_all();
    driver.now_ns()
}

#[test]
fn two_links_run_side_by_side_and_two_streams_share_one() {
    let queues = |driver: &SimDriver, devices: &[DeviceId]| {
        let queue = |&device| (driver.create_stream(device).unwrap(), memory(driver, device, PAGE_BYTES));
        devices.iter().map(queue).collect::<Vec<_>>()
    };
    let driver = h200(2);
    let alone = write_in_turn(&driver, &queues(&driver, &[ZERO]), 8);
    assert_eq!(alone, 8 * PAGE_NS);
    let driver = h200(2);
    assert_eq!(write_in_turn(&driver, &queues(&driver, &[ZERO, ONE]), 8), alone);
    let driver = h200(2);
    assert_eq!(write_in_turn(&driver, &queues(&driver, &[ZERO, ZERO]), 4), alone);
    assert_eq!(driver.busy_ns(ZERO).unwrap().to_device_ns, alone);
}

#[test]
fn peers_send_and_get_at_once() {
    let driver = h200(2);
    let there = memory(&driver, ONE, 2 * PAGE_BYTES);
    let here = memory(&driver, ZERO, 2 * PAGE_BYTES);
    let streams = [ZERO, ONE].map(|device| driver.create_stream(device).unwrap());
    driver.copy(there, here, PAGE_BYTES, streams[0]).unwrap();
    driver.copy(here + PAGE_BYTES, there + PAGE_BYTES, PAGE_BYTES, streams[1]).unwrap();
    driver.complete_all();
    assert_eq!(driver.now_ns(), 2_600 + (PAGE_BYTES * 1000).div_ceil(397_000));
}

#[test]
fn a_peer_is_free_when_both_ends_are() {
    let driver = h200(3);
    let [a, b, c] = [0, 1, 2].map(|device| memory(&driver, DeviceId(device), PAGE_BYTES));
    let streams = [0, 1, 2].map(|device| driver.create_stream(DeviceId(device)).unwrap());
    let page_ns = 2_600 + (PAGE_BYTES * 1000).div_ceil(397_000);
    driver.copy(b, a, PAGE_BYTES, streams[0]).unwrap();
    driver.copy(b, c, PAGE_BYTES, streams[2]).unwrap(); // waits for the way into b
    driver.copy(a, c, MIB, streams[2]).unwrap();
    driver.copy(c, b, PAGE_BYTES, streams[1]).unwrap(); // no one else's way
    assert_eq!(end(&driver, streams[1]), page_ns);
    assert_eq!(end(&driver, streams[2]), 2 * page_ns + 2_600 + (MIB * 1000).div_ceil(397_000));
}

#[test]
fn who_waits_long_does_not_keep_others_from_the_link() {
    let driver = h200(1);
    let at = memory(&driver, ZERO, 32 * MIB);
    let [late, waiting, other] = [(); 3].map(|()| driver.create_stream(ZERO).unwrap());
    driver.delay(late, 4 * PAGE_NS).unwrap();
    driver.wait(waiting, driver.record(late).unwrap()).unwrap();
    driver.write_async(at, host(1, PAGE_BYTES), waiting).unwrap();
    let mut events: Vec<EventId> = Vec::new();
    for _ in 0..5 {
        driver.write_async(at + PAGE_BYTES, host(2, PAGE_BYTES), other).unwrap();
        events.push(driver.record(other).unwrap());
    }
    for (n_done, &event) in (1..).zip(&events[..4]) {
        driver.synchronize(event).unwrap();
        assert_eq!(driver.now_ns(), n_done * PAGE_NS);
    }
    assert_eq!(end(&driver, waiting), 5 * PAGE_NS);
    driver.synchronize(events[4]).unwrap();
    assert_eq!(driver.now_ns(), 6 * PAGE_NS, "the gap was used up");
}

#[test]
fn busy_is_counted_up_to_now() {
    let driver = h200(1);
    let at = memory(&driver, ZERO, PAGE_BYTES);
    driver.write_async(at, host(1, PAGE_BYTES), StreamId::LEGACY).unwrap();
    assert_eq!(driver.busy_ns(ZERO), Ok(LinkTimes::default()));
    driver.advance(10_000);
    assert_eq!(driver.busy_ns(ZERO).unwrap().to_device_ns, 10_000);
    driver.advance(2 * PAGE_NS);
    assert_eq!(driver.busy_ns(ZERO).unwrap().to_device_ns, PAGE_NS);
    assert_eq!(driver.busy_ns(ONE), Err(DriverError::InvalidDevice(ONE)));
}

#[test]
fn a_link_that_slows_down_does_so_for_what_comes_then() {
    let driver = h200(2);
    let at = memory(&driver, ZERO, 16 * MIB);
    let slow = LinkRates { to_device_bytes_per_us: 55_400 / 2, ..LinkRates::h200() };
    let bytes_ns = (16 * MIB * 1000).div_ceil(55_400);
    driver.write_async(at, host(1, 16 * MIB), StreamId::LEGACY).unwrap();
    driver.set_links(ZERO, slow).unwrap();
    assert_eq!(end(&driver, StreamId::LEGACY), 2_600 + bytes_ns, "it was enqueued before");
    driver.write_async(at, host(1, 16 * MIB), StreamId::LEGACY).unwrap();
    assert_eq!(end(&driver, StreamId::LEGACY), 5_200 + 3 * bytes_ns);
    assert_eq!(driver.set_links(DeviceId(2), slow), Err(DriverError::InvalidDevice(DeviceId(2))));
    driver.set_links(ZERO, LinkRates { to_device_bytes_per_us: 0, ..slow }).unwrap();
    driver.write(at, &[1; 4], StreamId::LEGACY).unwrap();
    assert_eq!(driver.now_ns(), 5_200 + 3 * bytes_ns + 2_600 + 4_000, "as slow as 1");
}

#[test]
fn the_slower_of_link_and_peers_carries_copies_to_peer_memory() {
    let driver = h200(2);
    let there = memory(&driver, ONE, PAGE_BYTES);
    driver.set_links(ONE, LinkRates { peer_bytes_per_us: 1_000, ..LinkRates::h200() }).unwrap();
    driver.write(there, &vec![1; 50_000], StreamId::LEGACY).unwrap();
    assert_eq!(driver.now_ns(), 2_600 + 50_000);
    assert_eq!(driver.busy_ns(ONE), Ok(LinkTimes::default()));
}

#[test]
fn copies_take_no_time_without_rates_or_a_lag() {
    let no_rates = config(2).build();
    let at_once = SimConfig::h200(2).costs(CostTable::free()).links(LinkRates::h200()).build();
    let by_hand = config(2).links(LinkRates::h200()).completion(Completion::Manual).build();
    for driver in [no_rates, at_once, by_hand] {
        let (own, peer) = (memory(&driver, ZERO, PAGE_BYTES), memory(&driver, ONE, PAGE_BYTES));
        driver.write_async(own, host(5, PAGE_BYTES), StreamId::LEGACY).unwrap();
        driver.copy(peer, own, PAGE_BYTES, StreamId::LEGACY).unwrap();
        let mut bytes = [0; 9];
        driver.read(peer, &mut bytes, StreamId::LEGACY).unwrap();
        assert_eq!((driver.now_ns(), bytes), (0, [5; 9]));
        assert_eq!(driver.busy_ns(ZERO), Ok(LinkTimes::default()));
    }
}

#[test]
fn a_device_without_rates_neither_slows_nor_waits() {
    let driver = config(2).build();
    driver.set_links(ONE, LinkRates::h200()).unwrap();
    let (own, peer) = (memory(&driver, ZERO, PAGE_BYTES), memory(&driver, ONE, PAGE_BYTES));
    driver.write(own, &[1; 9], StreamId::LEGACY).unwrap();
    driver.write(peer, &[1; 9], StreamId::LEGACY).unwrap();
    assert_eq!(driver.now_ns(), 0);
    driver.copy(own, peer, 3_970, StreamId::LEGACY).unwrap();
    assert_eq!(end(&driver, StreamId::LEGACY), 2_610);
}

#[test]
fn a_launched_graph_takes_the_time_of_its_work() {
    let driver = h200(1);
    let at = memory(&driver, ZERO, PAGE_BYTES);
    let stream = driver.create_stream(ZERO).unwrap();
    driver.begin_capture(stream).unwrap();
    driver.fill(AddressRange::new(at, 21_000), 1, stream).unwrap();
    let graph = driver.end_capture(stream).unwrap();
    assert_eq!(driver.busy_ns(ZERO), Ok(LinkTimes::default()));
    driver.launch(graph, stream).unwrap();
    driver.launch(graph, stream).unwrap();
    assert_eq!(end(&driver, stream), 2 * 2_610);
}

#[test]
fn the_lag_comes_before_a_copy() {
    let driver = config(1).completion(Completion::Lag(500)).links(LinkRates::h200()).build();
    let at = memory(&driver, ZERO, PAGE_BYTES);
    for _ in 0..2 {
        driver.write_async(at, host(1, PAGE_BYTES), StreamId::LEGACY).unwrap();
    }
    driver.complete_all();
    assert_eq!(driver.now_ns(), 500 + 2 * PAGE_NS, "it does not add up");
}
