//! What a topology is filed under.

use std::fmt::{self, Display, Write};

use super::{Place, Topology};

/// Stands for a topology, in the names of files too. Written as 32 hexadecimal digits.
///
/// The 128-bit FNV-1a hash of a text that names, device by device, address, model, node, bridges, peers and the
/// link that the device is made for, and the host's number of CPUs. The current rate of links is left out,
/// because it changes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyKey(pub u128);

impl Display for TopologyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl TopologyKey {
    pub(super) fn of(topology: &Topology) -> Self {
        let mut hash = Fnv::NEW;
        // The hash takes every text.
        let _ = describe(topology, &mut hash);
        Self(hash.0)
    }
}

/// Writes what the key stands for. A change of the text makes every key another: so does its first line.
fn describe(topology: &Topology, out: &mut impl Write) -> fmt::Result {
    writeln!(out, "glake topology 1")?;
    writeln!(out, "cpus {}", Known(topology.n_cpus))?;
    for Place { pci, model, node, bridges, peers, max_link, current_link: _ } in &topology.places {
        let model = model.map(|model| List([model.vendor, model.device]));
        let link = max_link.map(|link| List([link.lane_mt_per_s, link.n_lanes]));
        let (node, peers) = (node.map(|node| node.0), List(peers.iter().map(|peer| peer.0)));
        write!(out, "device {} model {} node {} ", Known(*pci), Known(model), Known(node))?;
        writeln!(out, "bridges {} peers {peers} link {}", Known(bridges.as_ref().map(List)), Known(link))?;
    }
    Ok(())
}

/// A value, or a question mark.
struct Known<T>(Option<T>);

impl<T: Display> Display for Known<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_char('?'),
        }
    }
}

/// Values, each behind a comma.
struct List<I>(I);

impl<I: IntoIterator<Item: Display> + Clone> Display for List<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.clone().into_iter().try_for_each(|value| write!(f, ",{value}"))
    }
}

/// The hash FNV-1a of 128 bits (Fowler, Noll, Vo).
struct Fnv(u128);

impl Fnv {
    const NEW: Self = Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    const PRIME: u128 = (1 << 88) + 0x13b;
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(Self::PRIME);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use glake_core::driver::PciAddress;
    use glake_core::units::DeviceId;

    use super::super::{LinkRate, Node, NodeId, PciModel};
    use super::*;

    fn address(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    fn full() -> Topology {
        let place = Place {
            pci: Some(address("0000:65:00.0")),
            model: Some(PciModel { vendor: 0x10de, device: 0x2335 }),
            node: Some(NodeId(1)),
            bridges: Some(vec![address("0000:60:01.0"), address("0000:61:00.0")]),
            peers: vec![DeviceId(1), DeviceId(2)],
            max_link: Some(LinkRate { lane_mt_per_s: 32_000, n_lanes: 16 }),
            current_link: Some(LinkRate { lane_mt_per_s: 2_500, n_lanes: 16 }),
        };
        Topology::new(vec![place, Place::default()], Vec::new(), Some(192))
    }

    #[test]
    fn the_hash_is_fnv() {
        let hash = |text| {
            let mut hash = Fnv::NEW;
            hash.write_str(text).unwrap();
            hash.0
        };
        assert_eq!(hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash("foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    /// Calibrations that lie on disks are filed under it.
    #[test]
    fn the_text_behind_the_key_stays() {
        let mut text = String::new();
        describe(&full(), &mut text).unwrap();
        assert_eq!(
            text,
            "glake topology 1\ncpus 192\n\
             device 0000:65:00.0 model ,4318,9013 node 1 bridges ,0000:60:01.0,0000:61:00.0 peers ,1,2 link \
             ,32000,16\n\
             device ? model ? node ? bridges ? peers  link ?\n"
        );
    }

    #[test]
    fn whatever_makes_a_machine_another_changes_its_key() {
        let changes: [fn(&mut Topology); 11] = [
            |_| (),
            |topology| topology.n_cpus = Some(96),
            |topology| topology.places.truncate(1),
            |topology| topology.places.swap(0, 1),
            |topology| topology.places[0].pci = Some(address("0001:65:00.0")),
            |topology| topology.places[0].model = Some(PciModel { vendor: 0x10de, device: 0x2330 }),
            |topology| topology.places[0].node = None,
            |topology| topology.places[0].bridges = Some(Vec::new()),
            |topology| topology.places[0].bridges = None,
            |topology| topology.places[0].peers = vec![DeviceId(12)],
            |topology| topology.places[0].max_link = None,
        ];
        let mut keys = changes.map(|change| {
            let mut topology = full();
            change(&mut topology);
            assert_eq!(topology.key(), topology.clone().key());
            topology.key().to_string()
        });
        keys.sort_unstable();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert!(keys.iter().all(|key| key.len() == 32));
    }

    #[test]
    fn an_idle_link_and_the_nodes_of_other_devices_do_not_change_the_key() {
        let mut topology = full();
        topology.places[0].current_link = None;
        topology.nodes.push(Node { id: NodeId(7), cpus: [1, 2].into_iter().collect() });
        assert_eq!(topology.key(), full().key());
    }
}
