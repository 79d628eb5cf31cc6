//! Where the devices of a machine sit, and which ways lead to them.
//!
//! [`Topology`] is a value: it is read once, from the driver and from Linux's sysfs, and then asked. Whatever
//! nobody tells is unknown, not an error: containers and virtual machines hide much of it. Virtual machines also
//! make bridges up, so what is said of shared links holds of the machine as the system shows it.
//!
//! ```
//! use std::path::Path;
//! use glake_core::sim::SimDriver;
//! use glake_core::units::DeviceId;
//! use glake_multipath::topology::{SYSFS, Topology};
//!
//! let topology = Topology::read(&SimDriver::h200(3), Path::new(SYSFS))?;
//! assert_eq!(topology.relays_for(DeviceId(1)), [DeviceId(0), DeviceId(2)]);
//! assert_eq!(topology.shares_uplink(DeviceId(0), DeviceId(1)), None); // simulated devices sit nowhere
//! # Ok::<(), glake_multipath::topology::TopologyError>(())
//! ```

use glake_core::driver::{Driver, PciAddress};
use glake_core::units::DeviceId;

mod cpus;
mod error;
mod key;
mod link;
mod sysfs;

pub use cpus::{CpuSet, CpuSetError};
pub use error::TopologyError;
pub use key::TopologyKey;
pub use link::LinkRate;
pub use sysfs::SYSFS;

/// A NUMA node of the host, by Linux's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A NUMA node and its CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Which node.
    pub id: NodeId,
    /// Its CPUs that are online. A node of memory only has none.
    pub cpus: CpuSet,
}

/// The kind of a PCI device, by the numbers of its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciModel {
    /// The maker: 0x10de for NVIDIA.
    pub vendor: u16,
    /// The maker's number for the model.
    pub device: u16,
}

/// What is known of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Where it sits.
    pub pci: Option<PciAddress>,
    /// What it is.
    pub model: Option<PciModel>,
    /// The NUMA node that it is attached to.
    pub node: Option<NodeId>,
    /// The PCI bridges above it, its root port first, then the switch's if there is one. Empty where it sits on
    /// the root bus itself, as in a virtual machine that hides the bridges.
    pub bridges: Option<Vec<PciAddress>>,
    /// The other devices whose memory it can reach.
    pub peers: Vec<DeviceId>,
    /// The fastest link that the device itself is made for; its slot may be narrower.
    pub max_link: Option<LinkRate>,
    /// Its link when it was looked at. Idle GPUs slow theirs down.
    pub current_link: Option<LinkRate>,
}

/// Where all devices of a driver sit, and the host's nodes. See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    places: Vec<Place>,
    nodes: Vec<Node>,
    n_cpus: Option<u64>,
}

impl Topology {
    /// A topology of devices, by their ordinals, on a host of `nodes` and so many CPUs, as far as known.
    #[must_use]
    pub fn new(places: Vec<Place>, mut nodes: Vec<Node>, n_cpus: Option<u64>) -> Self {
        nodes.sort_by_key(|node| node.id);
        Self { places, nodes, n_cpus }
    }

    /// What the driver alone knows: addresses and peers. Nothing of the host is looked at.
    ///
    /// # Errors
    /// [`TopologyError::Driver`] where the driver fails.
    pub fn of(driver: &dyn Driver) -> Result<Self, TopologyError> {
        let place = |id| {
            let info = driver.device_info(DeviceId(id))?;
            Ok(Place { pci: info.pci, peers: info.peers, ..Place::default() })
        };
        let places = (0..driver.n_devices()).map(place).collect::<Result<_, TopologyError>>()?;
        Ok(Self::new(places, Vec::new(), None))
    }

    /// How many devices there are.
    #[must_use]
    pub fn n_devices(&self) -> usize {
        self.places.len()
    }

    /// What is known of a device; `None` if there is no such.
    #[must_use]
    pub fn place(&self, device: DeviceId) -> Option<&Place> {
        self.places.get(usize::try_from(device.0).ok()?)
    }

    /// The host's nodes, ascending. Empty where nobody tells.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many CPUs the host has online.
    #[must_use]
    pub const fn n_cpus(&self) -> Option<u64> {
        self.n_cpus
    }

    /// The CPUs of a node.
    #[must_use]
    pub fn cpus_of(&self, node: NodeId) -> Option<&CpuSet> {
        self.nodes.iter().find(|found| found.id == node).map(|found| &found.cpus)
    }

    /// The node that a device is attached to.
    #[must_use]
    pub fn node_of(&self, device: DeviceId) -> Option<NodeId> {
        self.place(device)?.node
    }

    /// The root port whose link carries all between the host and a device. Devices of one uplink share it.
    #[must_use]
    pub fn uplink_of(&self, device: DeviceId) -> Option<PciAddress> {
        self.place(device)?.bridges.as_ref()?.first().copied()
    }

    /// Whether two devices reach the host through one link, so that their copies halve each other's rate.
    /// `None` where that is unknown.
    #[must_use]
    pub fn shares_uplink(&self, a: DeviceId, b: DeviceId) -> Option<bool> {
        let (first, second) = (self.place(a)?, self.place(b)?);
        // Parts of one GPU are devices with one address.
        if a == b || first.pci.is_some() && first.pci == second.pci {
            return Some(true);
        }
        Some(self.uplink_of(a)? == self.uplink_of(b)?)
    }

    /// Whether each of two devices reaches the other's memory.
    #[must_use]
    pub fn are_peers(&self, a: DeviceId, b: DeviceId) -> bool {
        let reaches = |from, to| self.place(from).is_some_and(|place| place.peers.contains(&to));
        a != b && reaches(a, b) && reaches(b, a)
    }

    /// The devices that can relay copies between the host and `device`: its peers, both ways, whose uplink is not
    /// known to be its own. Those on its node come first, then those whose node is unknown, then the others; the
    /// lower ordinal first among equals. Two relays may share an uplink with each other
    /// ([`shares_uplink`](Self::shares_uplink)): the second then adds nothing.
    #[must_use]
    pub fn relays_for(&self, device: DeviceId) -> Vec<DeviceId> {
        let Some(place) = self.place(device) else { return Vec::new() };
        let can_relay = |peer: &DeviceId| {
            self.are_peers(device, *peer) && self.shares_uplink(device, *peer) != Some(true)
        };
        let mut relays: Vec<_> = place.peers.iter().copied().filter(can_relay).collect();
        relays.sort_unstable_by_key(|relay| {
            let is_near = place.node.zip(self.node_of(*relay)).map(|(a, b)| a == b);
            (is_near.map_or(1, |is_near| if is_near { 0 } else { 2 }), *relay)
        });
        relays.dedup();
        relays
    }

    /// What the topology is filed under: the same for the same machine, another where devices, their places, their
    /// peers or the number of CPUs differ.
    #[must_use]
    pub fn key(&self) -> TopologyKey {
        TopologyKey::of(self)
    }
}

/// Of `relays`, the first of each uplink: two behind one do not carry more than one of them.
pub(crate) fn one_per_uplink(
    topology: &Topology,
    relays: impl IntoIterator<Item = DeviceId>,
) -> Vec<DeviceId> {
    let mut kept: Vec<DeviceId> = Vec::new();
    for relay in relays {
        if !kept.iter().any(|other| topology.shares_uplink(relay, *other) == Some(true)) {
            kept.push(relay);
        }
    }
    kept
}

#[cfg(test)]
mod tests;
