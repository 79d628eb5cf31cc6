//! Topologies of machines: what is read of them, and what they answer.

use glake_core::driver::DriverError;
use glake_core::sim::{SimConfig, SimDriver};
use glake_core::units::DeviceId;

use super::*;

mod fixture;

use fixture::{Sysfs, address, config, driver};

const UNKNOWN: Option<bool> = None;

fn devices<const N: usize>(ids: [u32; N]) -> [DeviceId; N] {
    ids.map(DeviceId)
}

fn relays(topology: &Topology, device: u32) -> Vec<u32> {
    topology.relays_for(DeviceId(device)).into_iter().map(|relay| relay.0).collect()
}

fn shares(topology: &Topology, a: u32, b: u32) -> Option<bool> {
    let shared = topology.shares_uplink(DeviceId(a), DeviceId(b));
    assert_eq!(shared, topology.shares_uplink(DeviceId(b), DeviceId(a)), "sharing is mutual");
    shared
}

/// Two sockets, each with a root port and a GPU behind it.
fn two_sockets() -> Sysfs {
    Sysfs::empty()
        .node(1, "16-31,48-63")
        .node(0, "0-15,32-47")
        .node(10, "")
        .file("devices/system/node/online", "0-1,10")
        .file("devices/system/cpu/online", "0-63")
        .gpu("pci0000:10/0000:10:01.0/0000:11:00.0", "0")
        .gpu("pci0000:80/0000:80:01.0/0000:81:00.0", "1")
}

/// Two switches with two GPUs each, one for each node; devices 0 and 2 lie behind the first.
const SWITCHED: [&str; 4] = ["0000:13:00.0", "0000:83:00.0", "0000:14:00.0", "0000:84:00.0"];

fn two_switches() -> Sysfs {
    Sysfs::empty()
        .gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0", "0")
        .gpu("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", "0")
        .gpu("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0", "1")
        .gpu("pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:01.0/0000:84:00.0", "1")
}

#[test]
fn a_virtual_machine_of_one_gpu() {
    let sysfs = Sysfs::empty().file("devices/system/cpu/online", "0-15").gpu("pci0000:00/0000:00:05.0", "-1");
    let topology = Topology::read(&driver(&["0000:00:05.0"]), sysfs.root()).unwrap();
    let place = topology.place(DeviceId(0)).unwrap();
    assert_eq!((topology.n_devices(), topology.n_cpus(), topology.nodes()), (1, Some(16), [].as_slice()));
    assert_eq!((topology.node_of(DeviceId(0)), topology.uplink_of(DeviceId(0))), (None, None));
    assert_eq!((place.pci, place.bridges.as_deref()), (Some(address("0000:00:05.0")), Some([].as_slice())));
    assert_eq!(relays(&topology, 0), [0; 0]);
    assert_eq!(shares(&topology, 0, 0), Some(true));
}

#[test]
fn two_gpus_of_two_sockets_relay_for_each_other() {
    let sysfs = two_sockets();
    let topology = Topology::read(&driver(&["0000:81:00.0", "0000:11:00.0"]), sysfs.root()).unwrap();
    let place = topology.place(DeviceId(0)).unwrap();
    assert_eq!(place.bridges.as_deref(), Some([address("0000:80:01.0")].as_slice()));
    assert_eq!(place.model, Some(PciModel { vendor: 0x10de, device: 0x2335 }));
    assert_eq!(place.max_link, Some(LinkRate { lane_mt_per_s: 32_000, n_lanes: 16 }));
    assert_eq!(place.current_link, Some(LinkRate { lane_mt_per_s: 2_500, n_lanes: 16 }));
    assert_eq!(devices([0, 1]).map(|id| topology.node_of(id)), [Some(NodeId(1)), Some(NodeId(0))]);
    assert_eq!(topology.nodes().iter().map(|node| node.id.0).collect::<Vec<_>>(), [0, 1, 10]);
    assert_eq!(topology.cpus_of(NodeId(1)).unwrap().to_string(), "16-31,48-63");
    assert!(topology.cpus_of(NodeId(10)).unwrap().is_empty());
    assert_eq!((topology.cpus_of(NodeId(2)), topology.n_cpus()), (None, Some(64)));
    assert_eq!(shares(&topology, 0, 1), Some(false));
    assert_eq!((relays(&topology, 0), relays(&topology, 1)), (vec![1], vec![0]));
}

#[test]
fn gpus_behind_one_switch_do_not_relay_for_each_other() {
    let sysfs = two_switches();
    let topology = Topology::read(&driver(&SWITCHED), sysfs.root()).unwrap();
    assert_eq!(
        topology.place(DeviceId(2)).unwrap().bridges,
        Some(["0000:10:01.0", "0000:11:00.0", "0000:12:01.0"].map(address).to_vec())
    );
    assert_eq!(topology.uplink_of(DeviceId(3)), Some(address("0000:80:01.0")));
    assert_eq!((shares(&topology, 0, 2), shares(&topology, 1, 3)), (Some(true), Some(true)));
    assert_eq!((shares(&topology, 0, 1), shares(&topology, 0, 3)), (Some(false), Some(false)));
    assert_eq!([0, 1, 2, 3].map(|id| relays(&topology, id)), [[1, 3], [0, 2], [1, 3], [0, 2]]);
}

#[test]
fn the_relay_of_the_own_node_comes_first_and_one_of_an_unknown_node_before_a_far_one() {
    let sysfs = ["1", "-1", "0", "0", "-1"].iter().zip(1..).fold(Sysfs::empty(), |sysfs, (node, bus)| {
        sysfs.gpu(&format!("pci0000:{bus}0/0000:{bus}0:01.0/0000:{bus}1:00.0"), node)
    });
    let addresses = ["0000:11:00.0", "0000:21:00.0", "0000:31:00.0", "0000:41:00.0", "0000:51:00.0"];
    let topology = Topology::read(&driver(&addresses), sysfs.root()).unwrap();
    assert_eq!(relays(&topology, 3), [2, 1, 4, 0]);
    assert_eq!(relays(&topology, 0), [1, 4, 2, 3]);
    assert_eq!(relays(&topology, 1), [0, 2, 3, 4], "nothing is near");
}

#[test]
fn without_a_sysfs_places_and_links_are_unknown() {
    let [hidden, sysfs] = [Sysfs::empty(), two_switches()];
    let driver = driver(&SWITCHED);
    let topology = Topology::read(&driver, hidden.root()).unwrap();
    assert_eq!(topology, Topology::of(&driver).unwrap());
    assert_eq!(Topology::read(&driver, &hidden.root().join("nothing")).unwrap(), topology);
    assert_eq!((topology.nodes(), topology.n_cpus()), ([].as_slice(), None));
    assert_eq!(topology.place(DeviceId(0)).unwrap().bridges, None);
    assert_eq!((shares(&topology, 0, 2), relays(&topology, 0)), (UNKNOWN, vec![1, 2, 3]));
    // A container that shows one device of four.
    std::fs::remove_file(sysfs.root().join("bus/pci/devices/0000:14:00.0")).unwrap();
    let topology = Topology::read(&driver, sysfs.root()).unwrap();
    assert_eq!((shares(&topology, 0, 2), shares(&topology, 1, 3)), (UNKNOWN, Some(true)));
    assert_eq!(relays(&topology, 0), [2, 1, 3], "that whose node is unknown before the far ones");
}

#[test]
fn nodes_are_ascending() {
    let nodes = [3, 0, 11].map(|id| Node { id: NodeId(id), cpus: [id].into_iter().collect() });
    let topology = Topology::new(Vec::new(), nodes.to_vec(), None);
    assert_eq!(topology.nodes().iter().map(|node| node.id.0).collect::<Vec<_>>(), [0, 3, 11]);
    assert_eq!(topology.cpus_of(NodeId(3)).unwrap().to_string(), "3");
}

#[test]
fn devices_that_sit_nowhere_are_asked_nothing() {
    let sysfs = two_sockets();
    let topology = Topology::read(&SimDriver::h200(2), sysfs.root()).unwrap();
    assert_eq!(topology.place(DeviceId(0)).unwrap(), &Place { peers: vec![DeviceId(1)], ..Place::default() });
    assert_eq!((shares(&topology, 0, 1), topology.n_cpus()), (UNKNOWN, Some(64)));
}

#[test]
fn gpus_on_the_root_bus_have_unknown_links() {
    let sysfs = Sysfs::empty()
        .gpu("pci0000:00/0000:00:05.0", "-1")
        .gpu("pci0000:00/0000:00:06.0", "-1")
        .gpu("pci0000:00/0000:00:07.0/0000:01:00.0", "-1");
    let topology = Topology::read(&driver(&["0000:00:05.0", "0000:00:06.0", "0000:01:00.0"]), sysfs.root());
    let topology = topology.unwrap();
    assert_eq!((shares(&topology, 0, 1), shares(&topology, 0, 2)), (UNKNOWN, UNKNOWN));
    assert_eq!(relays(&topology, 0), [1, 2]);
}

#[test]
fn only_peers_both_ways_relay() {
    let driver = SimConfig::h200(4).without_peers(DeviceId(0), DeviceId(2)).build();
    let topology = Topology::of(&driver).unwrap();
    assert_eq!([0, 1, 2].map(|id| relays(&topology, id)), [vec![1, 3], vec![0, 2, 3], vec![1, 3]]);
    let peers = |ids: &[u32]| ids.iter().copied().map(DeviceId).collect();
    let places = [peers(&[1, 2, 0, 9, 1]), peers(&[0]), peers(&[])];
    let places = places.map(|peers| Place { peers, ..Place::default() });
    let one_way = Topology::new(places.to_vec(), Vec::new(), None);
    assert_eq!([0, 1, 2, 9].map(|id| relays(&one_way, id)), [vec![1], vec![0], vec![], vec![]]);
    assert!(one_way.are_peers(DeviceId(0), DeviceId(1)) && !one_way.are_peers(DeviceId(0), DeviceId(2)));
    assert!(!one_way.are_peers(DeviceId(0), DeviceId(0)));
    let alone = SimConfig::h200(2).without_peers(DeviceId(0), DeviceId(1)).build();
    assert_eq!(relays(&Topology::of(&alone).unwrap(), 0), [0; 0]);
}

/// An engine that gave room to eight peers went wrong with more (realm, issue 155).
#[test]
fn sixteen_devices_relay_for_one_another() {
    let folders: Vec<_> = (1..=16).map(|bus| format!("{bus:04x}:01:00.0")).collect();
    let sysfs = folders.iter().zip(0..).fold(Sysfs::empty(), |sysfs, (address, id)| {
        let domain = &address[..4];
        sysfs.gpu(&format!("pci{domain}:00/{domain}:00:00.0/{address}"), if id < 8 { "0" } else { "1" })
    });
    let addresses: Vec<_> = folders.iter().map(String::as_str).collect();
    let topology = Topology::read(&driver(&addresses), sysfs.root()).unwrap();
    assert_eq!(topology.place(DeviceId(15)).unwrap().peers, (0..15).map(DeviceId).collect::<Vec<_>>());
    assert_eq!(relays(&topology, 12), (8..12).chain(13..16).chain(0..8).collect::<Vec<_>>());
    assert!((1..16).all(|id| shares(&topology, 0, id) == Some(false)), "equal buses, other domains");
}

#[test]
fn functions_and_domains_are_told_apart() {
    let sysfs = Sysfs::empty()
        .gpu("pci0000:00/0000:00:01.0/0000:01:00.0", "0")
        .gpu("pci0000:00/0000:00:01.1/0000:02:00.0", "0")
        .gpu("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0/10000:01:00.0", "0");
    let driver = driver(&["0000:01:00.0", "0000:02:00.0", "10000:01:00.0"]);
    let topology = Topology::read(&driver, sysfs.root()).unwrap();
    let bridges = devices([0, 1, 2]).map(|id| topology.place(id).unwrap().bridges.clone().unwrap());
    assert_eq!(
        bridges,
        [["0000:00:01.0"], ["0000:00:01.1"], ["10000:00:01.0"]].map(|it| it.map(address).to_vec())
    );
    assert_eq!((shares(&topology, 0, 1), shares(&topology, 0, 2)), (Some(false), Some(false)));
}

#[test]
fn parts_of_one_gpu_share_its_link() {
    let topology = Topology::of(&driver(&["0000:01:00.0", "0000:01:00.0", "0000:02:00.0"])).unwrap();
    assert_eq!((shares(&topology, 0, 1), shares(&topology, 0, 2)), (Some(true), UNKNOWN));
    assert_eq!(relays(&topology, 0), [2]);
}

#[test]
fn garbage_is_refused_by_its_name() {
    let gpu = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    let machine = || Sysfs::empty().gpu(gpu.strip_prefix("devices/").unwrap(), "0").node(0, "0-7");
    let driver = driver(&["0000:01:00.0"]);
    // Well-formed wherever it is cut.
    let long = "00,".repeat(30_000) + "0";
    let garbage: [(&str, &[u8]); 10] = [
        ("numa_node", b"zero\n"),
        ("numa_node", b"-2\n"),
        ("numa_node", b""),
        ("numa_node", b"\xff\xfe\n"),
        ("vendor", b"10de\n"),
        ("device", b"0x12335\n"),
        ("../../../system/node/node0/cpulist", b"0-\n"),
        ("../../../system/node/node0/cpulist", b"7-0\n"),
        ("../../../system/node/node0/cpulist", long.as_bytes()),
        ("../../../system/cpu/online", b"all\n"),
    ];
    for (file, bytes) in garbage {
        let sysfs =
            machine().bytes("devices/system/cpu/online", b"0-7\n").bytes(&format!("{gpu}/{file}"), bytes);
        let error = Topology::read(&driver, sysfs.root()).unwrap_err();
        let TopologyError::Malformed(path) = &error else { panic!("{file}: {error}") };
        assert_eq!(path.file_name(), std::path::Path::new(file).file_name(), "{error}");
    }
    let sysfs = machine().file("devices/system/cpu/online/file", "");
    let error = Topology::read(&driver, sysfs.root()).unwrap_err();
    assert!(
        matches!(&error, TopologyError::Unreadable { path, .. } if path.ends_with("cpu/online")),
        "{error}"
    );
}

#[test]
fn words_for_links_that_nobody_knows_are_unknown() {
    let gpu = "devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    let sysfs = Sysfs::empty()
        .gpu(gpu.strip_prefix("devices/").unwrap(), "0")
        .file(&format!("{gpu}/max_link_speed"), "Unknown")
        .file(&format!("{gpu}/current_link_width"), "255")
        .file("devices/system/node/nodes", "")
        .file("devices/system/node/node7/distance", "10")
        .node(3, "0-3");
    let topology = Topology::read(&driver(&["0000:01:00.0"]), sysfs.root()).unwrap();
    let place = topology.place(DeviceId(0)).unwrap();
    assert_eq!((place.max_link, place.current_link), (None, None));
    assert_eq!(
        topology.nodes().iter().map(|node| node.id).collect::<Vec<_>>(),
        [NodeId(3)],
        "7 tells no CPUs"
    );
    assert_eq!(topology.n_cpus(), Some(4), "those of the nodes");
}

/// A machine has the key that it had, and not the one that it has where the sysfs is hidden.
#[test]
fn the_key_is_of_the_machine() {
    let (first, again) = (two_switches(), two_switches());
    let key = |sysfs: &Sysfs, driver| Topology::read(driver, sysfs.root()).unwrap().key();
    let all = driver(&SWITCHED);
    assert_eq!(key(&first, &all), key(&again, &all));
    assert_ne!(key(&first, &all), Topology::of(&all).unwrap().key());
    let cut = config(&SWITCHED).without_peers(DeviceId(0), DeviceId(3)).build();
    assert_ne!(key(&first, &all), key(&first, &cut));
}

#[test]
fn an_error_of_the_driver_comes_through() {
    let error = TopologyError::from(DriverError::InvalidDevice(DeviceId(4)));
    assert_eq!(error.to_string(), "there is no device 4");
}

/// The machine that the tests run on, whichever it is.
#[test]
fn the_own_machine_is_read() {
    let topology = Topology::read(&driver(&["ffff:ff:1f.7"]), std::path::Path::new(SYSFS)).unwrap();
    assert_eq!(topology.place(DeviceId(0)).unwrap().bridges, None, "nothing sits there");
    assert!(topology.nodes().iter().all(|node| node.cpus.len() <= topology.n_cpus().unwrap()));
}
