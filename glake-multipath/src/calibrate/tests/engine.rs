//! What an engine makes of a calibration.

use glake_core::driver::{Access, VirtualMemory};
use glake_core::units::{DevicePtr, PAGE_BYTES};

use super::*;
use crate::{Config, Engine, Report};

/// An engine on a machine that was measured, and what was measured.
struct Rig {
    driver: Arc<SimDriver>,
    engine: Engine,
    found: Calibration,
    memory: DevicePtr,
}

const BYTES: u64 = 64 * MIB;

fn rig(n_devices: u32, rates: LinkRates, settings: Config, change: impl FnOnce(&mut Calibration)) -> Rig {
    let driver = Arc::new(config(n_devices, rates).build());
    let mut found = measured(&driver, SMALL, 2 * SECOND_NS).unwrap();
    change(&mut found);
    let topology = topology(&driver);
    let engine = Engine::with_calibration(Arc::clone(&driver), settings, topology, found.clone());
    let range = driver.reserve(BYTES, PAGE_BYTES).unwrap();
    driver.map(range.start, driver.create(GPU, BYTES).unwrap()).unwrap();
    driver.set_access(range, &[GPU], Access::ReadWrite).unwrap();
    Rig { driver, engine, found, memory: range.start }
}

fn write(rig: &Rig, bytes: u64) -> Report {
    rig.engine.on(GPU).write(rig.memory, &vec![1; usize::try_from(bytes).unwrap()]).unwrap()
}

fn n_lanes(rig: &Rig, bytes: u64) -> usize {
    write(rig, bytes).lanes.len()
}

#[test]
fn relays_are_used_from_the_break_even_size_on() {
    let chunks = |found: &mut Calibration| found.links[2].chunk_bytes = Some(4 * MIB);
    let rig = rig(2, quick(), Config::new(), chunks);
    let from_bytes = rig.found.link(GPU, Direction::ToDevice).unwrap().relay_from_bytes().unwrap();
    assert!(from_bytes < 2 * MIB, "{from_bytes}");
    assert_eq!((n_lanes(&rig, from_bytes - 1), n_lanes(&rig, from_bytes)), (1, 2));
    // The staging memory that lanes have taken says how large chunks are: two of them.
    assert_eq!(rig.driver.ledger(DeviceId(1)).unwrap().physical_bytes, 2 * 4 * MIB);
}

#[test]
fn what_the_configuration_says_itself_holds() {
    let settings = Config::new().relay_from_bytes(4 * MIB).chunk_bytes(2 * MIB);
    let rig = rig(2, quick(), settings, |_| ());
    assert_eq!((n_lanes(&rig, 4 * MIB - 1), n_lanes(&rig, 4 * MIB)), (1, 2));
    assert_eq!(rig.driver.ledger(DeviceId(1)).unwrap().physical_bytes, 2 * 2 * MIB);
}

#[test]
fn relays_that_add_nothing_are_left_out_unless_they_are_named() {
    let slow = LinkRates { peer_bytes_per_us: 2_000, ..quick() };
    assert_eq!(n_lanes(&rig(2, slow, Config::new(), |_| ()), BYTES), 1);
    assert_eq!(n_lanes(&rig(2, slow, Config::new().relays(vec![DeviceId(1)]), |_| ()), BYTES), 2);
}

#[test]
fn a_relay_that_failed_is_left_out() {
    let part = Part::Relay(end(0, Direction::ToDevice), DeviceId(1));
    let fail = |found: &mut Calibration| found.missing.push(Missing { part, reason: Reason::Failed });
    let rig = rig(3, quick(), Config::new(), fail);
    let paths: Vec<Path> = write(&rig, BYTES).lanes.iter().map(|lane| lane.path).collect();
    assert_eq!(paths, [Path::Direct, Path::Via(DeviceId(2))]);
    // The other way it did not fail.
    let report = rig.engine.on(GPU).read(rig.memory, &mut vec![0; 64 << 20]).unwrap();
    assert_eq!(report.lanes.len(), 3);
}

#[test]
fn another_machines_calibration_is_not_used() {
    let rig = rig(2, quick(), Config::new(), |found| found.topology = TopologyKey(1));
    assert_eq!((n_lanes(&rig, 8 * MIB - 1), n_lanes(&rig, 8 * MIB)), (1, 2), "as without one");
    assert_eq!(rig.driver.ledger(DeviceId(1)).unwrap().physical_bytes, 2 * 16 * MIB);
}

/// Lanes know their rates before the first chunk: of a link of a tenth the rate, less than that is asked.
#[test]
fn lanes_begin_with_what_they_carry() {
    let driver = Arc::new(config(2, quick()).build());
    let slow = LinkRates { to_device_bytes_per_us: 5_540, ..quick() };
    driver.set_links(DeviceId(1), slow).unwrap();
    let found = measured(&driver, SMALL, 2 * SECOND_NS).unwrap();
    let topology = topology(&driver);
    let range = driver.reserve(BYTES, PAGE_BYTES).unwrap();
    driver.map(range.start, driver.create(GPU, BYTES).unwrap()).unwrap();
    driver.set_access(range, &[GPU], Access::ReadWrite).unwrap();
    let settings = || Config::new().relay_from_bytes(0).chunk_bytes(8 * MIB);
    let ns = |engine: &Engine| {
        let source = vec![1; 24 << 20];
        engine.on(GPU).write(range.start, &[1; 16]).unwrap(); // lanes are made
        engine.on(GPU).write(range.start, &source).unwrap().ns
    };
    let blind = ns(&Engine::with_topology(Arc::clone(&driver), settings(), topology.clone()));
    let knowing = ns(&Engine::with_calibration(Arc::clone(&driver), settings(), topology, found));
    let ideal = 24 * MIB * 1000 / (55_400 + 5_540);
    assert!(knowing <= ideal * 3 / 2 && knowing * 3 / 2 < blind, "{knowing}, blind {blind}, ideal {ideal}");
}
