//! Everything behind the simulated driver's lock, and the account of its calls.

use super::config::SimConfig;
use super::fault::{Effect, Faults, Target};
use super::host::Host;
use super::links::Links;
use super::memory::{Memory, Physical};
use super::slab::Slab;
use super::space::Space;
use super::stream::Streams;
use crate::driver::{DriverError, Ledger, Result, Retired};
use crate::units::DeviceId;

/// One simulated GPU.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) ledger: Ledger,
    pub(super) lost: bool,
    /// Words that checks found wrong.
    pub(super) n_mismatches: u64,
    pub(super) links: Links,
}

/// The whole machine.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: SimConfig,
    pub(super) devices: Vec<Device>,
    pub(super) space: Space,
    pub(super) memory: Memory,
    pub(super) streams: Streams,
    pub(super) faults: Faults,
    /// Host memory in the driver's keeping.
    pub(super) hosts: Slab<Host>,
    /// What waits for its events to be given back.
    pub(super) retired: Vec<Retired>,
    /// The virtual clock.
    pub(super) now_ns: u64,
    /// The device that the running call concerns.
    current: usize,
}

impl State {
    pub(super) fn new(config: SimConfig) -> Self {
        Self {
            devices: (0..config.n_devices)
                .map(|_| Device { links: Links::new(config.links), ..Device::default() })
                .collect(),
            space: Space::new(),
            memory: Memory::new(config.n_devices),
            streams: Streams::new(),
            faults: Faults::default(),
            hosts: Slab::default(),
            retired: Vec::new(),
            now_ns: 0,
            current: 0,
            config,
        }
    }

    /// One call of the driver: work that is due, the planned fault, the call, the account.
    /// `act` returns its value and what it costs in nanoseconds.
    pub(super) fn call<T>(
        &mut self,
        target: Target,
        act: impl FnOnce(&mut Self) -> Result<(T, u64)>,
    ) -> Result<T> {
        self.current = 0;
        self.run_due();
        self.sweep_retired();
        let outcome = match self.faults.next(target) {
            None => act(self),
            Some(Effect::Fail(error)) => Err(error),
            Some(Effect::Lose(device)) => {
                self.lose(device.0 as usize);
                Err(DriverError::DeviceLost)
            }
        };
        let ns = outcome.as_ref().map_or(0, |(_, ns)| *ns);
        self.now_ns = self.now_ns.saturating_add(ns);
        let ledger = &mut self.devices[self.current].ledger;
        match target {
            Target::One(call) => ledger.count(call, ns),
            _ => ledger.driver_ns += ns,
        }
        outcome.map(|(value, _)| value)
    }

    /// Books the running call on a device by its index, which must not be lost.
    pub(super) fn on(&mut self, device: usize) -> Result<()> {
        self.current = device;
        if self.devices[device].lost { Err(DriverError::DeviceLost) } else { Ok(()) }
    }

    /// As [`on`](Self::on), for a device by its id; returns the index.
    pub(super) fn on_id(&mut self, device: DeviceId) -> Result<usize> {
        let index = device.0 as usize;
        if index >= self.devices.len() {
            return Err(DriverError::InvalidDevice(device));
        }
        self.on(index)?;
        Ok(index)
    }

    /// For calls that concern no device: one must be left.
    pub(super) fn on_any(&self) -> Result<()> {
        if self.devices.iter().all(|device| device.lost) { Err(DriverError::DeviceLost) } else { Ok(()) }
    }

    /// A kernel died or the device was reset.
    pub(super) fn lose(&mut self, device: usize) {
        if let Some(device) = self.devices.get_mut(device) {
            device.lost = true;
        }
    }

    /// Takes memory that nothing holds any more off the books.
    pub(super) fn forget(&mut self, physical: Option<Physical>) {
        if let Some(physical) = physical.filter(|physical| !physical.foreign) {
            self.devices[physical.device].ledger.shrink(physical.bytes);
        }
    }
}
