//! One copy over two links: half of the chunks go to device 0 at once, half over device 1.

use std::sync::Arc;

use super::{MIB, ONE, ZERO, close, gb_per_s, host, memory};
use crate::driver::{Copies, SharedBytes, StreamOrder};
use crate::sim::{Completion, LinkRates, LinkTimes, SimConfig, SimDriver};
use crate::units::{DevicePtr, EventId, PAGE_BYTES, StreamId};

const N_SLOTS: usize = 4;
const TOTAL_BYTES: u64 = 1 << 30;

/// Sends chunks to device 1 and on to device 0, through a ring of slots on device 1.
struct Relay<'a> {
    driver: &'a SimDriver,
    stage: StreamId,
    forward: StreamId,
    slots: Vec<(DevicePtr, Option<EventId>)>,
    n_sent: usize,
}

impl<'a> Relay<'a> {
    fn new(driver: &'a SimDriver, chunk_bytes: u64) -> Self {
        let slots = (0..N_SLOTS).map(|_| (memory(driver, ONE, chunk_bytes.max(PAGE_BYTES)), None)).collect();
        let [stage, forward] = [(); 2].map(|()| driver.create_stream(ONE).unwrap());
        Self { driver, stage, forward, slots, n_sent: 0 }
    }

    /// Makes `stream` wait for what is before `event`, which nobody else does.
    fn follow(&self, stream: StreamId, event: EventId) {
        self.driver.wait(stream, event).unwrap();
        self.driver.forget(event);
    }

    fn send(&mut self, dst: DevicePtr, source: SharedBytes, bytes: u64) {
        let (slot, freed) = self.slots[self.n_sent % N_SLOTS];
        if let Some(freed) = freed {
            self.follow(self.stage, freed);
        }
        self.driver.write_async(slot, source, self.stage).unwrap();
        let filled = self.driver.record(self.stage).unwrap();
        self.follow(self.forward, filled);
        self.driver.copy(dst, slot, bytes, self.forward).unwrap();
        self.slots[self.n_sent % N_SLOTS].1 = Some(self.driver.record(self.forward).unwrap());
        self.n_sent += 1;
    }
}

/// The chunks' bytes, over and over: no two that a slot holds in turn are the same.
fn sources(chunk_bytes: u64) -> Vec<SharedBytes> {
    (1..=13).map(|value| host(value, chunk_bytes)).collect()
}

/// Copies `TOTAL_BYTES` to `dst_bytes` of memory, over and over; returns the time and how busy both
/// devices were.
fn copy(driver: &SimDriver, chunk_bytes: u64, dst: DevicePtr, dst_bytes: u64) -> (u64, [LinkTimes; 2]) {
    let mut relay = Relay::new(driver, chunk_bytes);
    let direct = driver.create_stream(ZERO).unwrap();
    let begin_ns = driver.now_ns();
    let sources = sources(chunk_bytes);
    for (index, source) in (0..TOTAL_BYTES / chunk_bytes).zip(sources.iter().cycle()) {
        let at = dst + index * chunk_bytes % dst_bytes;
        if index % 2 == 0 {
            driver.write_async(at, Arc::clone(source), direct).unwrap();
        } else {
            relay.send(at, Arc::clone(source), chunk_bytes);
        }
    }
    driver.complete_all();
    (driver.now_ns() - begin_ns, [ZERO, ONE].map(|device| driver.busy_ns(device).unwrap()))
}

fn two_devices() -> SimDriver {
    SimConfig::h200(2).completion(Completion::Lag(0)).links(LinkRates::h200()).build()
}

/// As [`copy`], to little memory, to see the time only.
fn time(chunk_bytes: u64) -> (u64, [LinkTimes; 2]) {
    let driver = two_devices();
    copy(&driver, chunk_bytes, memory(&driver, ZERO, 32 * MIB), 32 * MIB)
}

#[test]
fn a_relay_reaches_the_sum_of_both_links_and_every_byte_arrives() {
    let (driver, chunk_bytes) = (two_devices(), 8 * MIB);
    let dst = memory(&driver, ZERO, TOTAL_BYTES);
    let (ns, [zero, one]) = copy(&driver, chunk_bytes, dst, TOTAL_BYTES);
    let reached = gb_per_s(TOTAL_BYTES, ns);
    assert!(reached >= 0.98 * 110.8, "{reached}");
    for link_ns in [zero.to_device_ns, one.to_device_ns] {
        assert!(link_ns * 100 >= ns * 99, "busy for {link_ns} of {ns}");
    }
    assert_eq!(one.peer_out_ns, zero.peer_in_ns);
    let mut found = vec![0; 8 << 20];
    for (index, source) in (0..TOTAL_BYTES / chunk_bytes).zip(sources(chunk_bytes).iter().cycle()) {
        driver.read(dst + index * chunk_bytes, &mut found, StreamId::LEGACY).unwrap();
        assert!(found == (**source).as_ref(), "wrong bytes in chunk {index}");
    }
}

#[test]
fn chunks_of_a_relay_reach_what_was_measured() {
    for (chunk_mib, measured) in [(1, 96.2), (4, 106.5), (8, 108.8), (16, 109.5)] {
        let reached = gb_per_s(TOTAL_BYTES, time(chunk_mib * MIB).0);
        assert!(close(reached, measured, 2.0), "{chunk_mib} MiB: {reached}, measured {measured}");
    }
}

#[test]
fn the_same_calls_take_the_same_time() {
    assert_eq!(time(2 * MIB), time(2 * MIB));
}
