//! How a simulated driver is set up.

use super::{CostTable, LinkRates, SimDriver};
use crate::driver::{DeviceInfo, PciAddress};
use crate::units::DeviceId;

/// When device work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Completion {
    /// While it is enqueued. Nothing is ever pending, and delays take no time.
    #[default]
    Immediate,
    /// When the test says so, with [`SimDriver::complete`] and [`SimDriver::complete_all`].
    Manual,
    /// This many nanoseconds of the virtual clock after it was enqueued, delays added, and what
    /// copies take where links have rates ([`SimConfig::links`]).
    Lag(u64),
}

/// The most devices that a simulated driver has.
pub const MAX_DEVICES: u32 = 64;

/// A simulated machine: devices, their memory, what calls cost, when work is done.
///
/// ```
/// use glake_core::driver::Driver;
/// use glake_core::sim::{Completion, SimConfig};
///
/// let driver = SimConfig::h200(2).memory_bytes(1 << 30).completion(Completion::Manual).build();
/// assert_eq!(driver.n_devices(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct SimConfig {
    pub(super) n_devices: u32,
    pub(super) memory_bytes: u64,
    pub(super) costs: CostTable,
    pub(super) completion: Completion,
    pub(super) links: Option<LinkRates>,
    /// For each device, the devices whose memory it can reach, as a bit mask.
    pub(super) reach: Vec<u64>,
    /// For each device, where it sits.
    pub(super) pci: Vec<Option<PciAddress>>,
}

impl SimConfig {
    /// `n_devices` H200 GPUs, at least 1 and at most [`MAX_DEVICES`], all of them peers.
    #[must_use]
    pub fn h200(n_devices: u32) -> Self {
        let n_devices = n_devices.clamp(1, MAX_DEVICES);
        Self {
            n_devices,
            memory_bytes: 143_770 << 20,
            costs: CostTable::h200(),
            completion: Completion::Immediate,
            links: None,
            reach: vec![u64::MAX; n_devices as usize],
            pci: vec![None; n_devices as usize],
        }
    }

    /// Gives each device `bytes` of memory instead of 140.4 GiB.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Uses another cost table.
    #[must_use]
    pub fn costs(mut self, costs: CostTable) -> Self {
        self.costs = costs;
        self
    }

    /// Chooses when device work is done.
    #[must_use]
    pub fn completion(mut self, completion: Completion) -> Self {
        self.completion = completion;
        self
    }

    /// Gives the links of every device rates, so that copies take time under [`Completion::Lag`]; under
    /// the others rates change nothing. [`SimDriver::set_links`] changes them later.
    #[must_use]
    pub fn links(mut self, rates: LinkRates) -> Self {
        self.links = Some(rates);
        self
    }

    /// Cuts the link between two devices, both ways. Unknown devices are ignored.
    #[must_use]
    pub fn without_peers(mut self, a: DeviceId, b: DeviceId) -> Self {
        if a != b {
            for (from, to) in [(a, b), (b, a)] {
                if let (Some(reach), Some(bit)) =
                    (self.reach.get_mut(from.0 as usize), 1u64.checked_shl(to.0))
                {
                    *reach &= !bit;
                }
            }
        }
        self
    }

    /// Says where a device sits: nowhere if not told. An unknown device is ignored.
    #[must_use]
    pub fn pci_address(mut self, device: DeviceId, address: PciAddress) -> Self {
        if let Some(pci) = self.pci.get_mut(device.0 as usize) {
            *pci = Some(address);
        }
        self
    }

    /// What is said of a device, if there is such.
    pub(super) fn info(&self, device: DeviceId) -> Option<DeviceInfo> {
        let (pci, reach) = (self.pci.get(device.0 as usize)?, self.reach.get(device.0 as usize)?);
        let others = (0..self.n_devices).filter(|other| *other != device.0);
        Some(DeviceInfo::new(*pci, others.filter(|other| reach >> other & 1 != 0).map(DeviceId).collect()))
    }

    /// The driver.
    #[must_use]
    pub fn build(self) -> SimDriver {
        SimDriver::new(self)
    }
}
