//! Links with rates: how long copies take by the virtual clock, and which engine carries them.
//!
//! A device has a link to it and one from it, to the host; an engine for what it sends to peers and
//! one for what it gets from them (`NVLink` carries both at once); and one for what stays inside. A
//! copy begins when its stream is ready and all its engines are free, and keeps both until it is
//! done. Work that cannot begin yet, because its stream waits for an event, keeps nobody from using
//! an engine before: a copy goes into the first gap that it fits into.

use super::SimDriver;
use crate::driver::{DriverError, Result};
use crate::units::DeviceId;

mod path;
mod schedule;

pub(super) use path::Traffic;
use schedule::Schedule;

/// What copies of a device take by the virtual clock: `start_ns` and their bytes at a rate, in bytes
/// per microsecond (1,000 are 1 GB/s). A rate of 0 counts as 1.
///
/// Host memory counts as pinned. The links to and from the host do not slow one another down, though
/// an H200's carry 100 GB/s in sum when both are busy.
///
/// ```
/// use glake_core::driver::{Access, Copies, VirtualMemory};
/// use glake_core::sim::{Completion, CostTable, LinkRates, SimConfig};
/// use glake_core::units::{DeviceId, PAGE_BYTES, StreamId};
///
/// let config = SimConfig::h200(1).costs(CostTable::free()).completion(Completion::Lag(0));
/// let driver = config.links(LinkRates { to_device_bytes_per_us: 1 << 10, ..LinkRates::h200() }).build();
/// let range = driver.reserve(PAGE_BYTES, PAGE_BYTES)?;
/// driver.map(range.start, driver.create(DeviceId(0), PAGE_BYTES)?)?;
/// driver.set_access(range, &[DeviceId(0)], Access::ReadWrite)?;
/// driver.write(range.start, &[1; 1 << 20], StreamId::LEGACY)?;
/// assert_eq!(driver.now_ns(), 2_600 + 1_024_000);
/// assert_eq!(driver.busy_ns(DeviceId(0))?.to_device_ns, driver.now_ns());
/// # Ok::<(), glake_core::driver::DriverError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkRates {
    /// Host memory to the device.
    pub to_device_bytes_per_us: u64,
    /// The device's memory to the host.
    pub to_host_bytes_per_us: u64,
    /// Between the device and its peers, each way.
    pub peer_bytes_per_us: u64,
    /// Copies, fills, gathers, checks and compares inside the device. A byte copied is one byte, though it
    /// is read and written.
    pub on_device_bytes_per_us: u64,
    /// What each copy takes beside its bytes. Stream and engines are busy meanwhile.
    pub start_ns: u64,
}

impl LinkRates {
    /// Rates measured on NVIDIA H200s (driver 580.159.04, CUDA 13.0), each with a link of its own to
    /// the host: medians of large copies, host memory pinned. Inside the device it is half of the
    /// 4,242 GB/s that are read and written in sum. With `start_ns`, chunks on one stream come within
    /// 3 % of what was measured: 64 KiB 17.6 GB/s, 256 KiB 35.3, 1 MiB 48.4, 4 MiB 53.4, 16 MiB 54.9.
    #[must_use]
    pub const fn h200() -> Self {
        Self {
            to_device_bytes_per_us: 55_400,
            to_host_bytes_per_us: 55_300,
            peer_bytes_per_us: 397_000,
            on_device_bytes_per_us: 2_100_000,
            start_ns: 2_600,
        }
    }

    const fn bytes_per_us(&self, engine: Engine) -> u64 {
        match engine {
            Engine::ToDevice => self.to_device_bytes_per_us,
            Engine::ToHost => self.to_host_bytes_per_us,
            Engine::PeerOut | Engine::PeerIn => self.peer_bytes_per_us,
            Engine::OnDevice => self.on_device_bytes_per_us,
        }
    }
}

/// How long each engine of a device has been busy, in nanoseconds of the virtual clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkTimes {
    /// The link from host memory to the device.
    pub to_device_ns: u64,
    /// The link from the device to host memory.
    pub to_host_ns: u64,
    /// What the device's memory or cores sent to peers.
    pub peer_out_ns: u64,
    /// What the device's memory or cores got from peers.
    pub peer_in_ns: u64,
    /// Copies, fills, gathers, checks and compares inside the device.
    pub on_device_ns: u64,
}

/// What a device has one of, and what carries one copy at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    ToDevice,
    ToHost,
    PeerOut,
    PeerIn,
    OnDevice,
}

/// The engines of one device. Without rates they carry nothing, and copies take no time.
#[derive(Debug, Default)]
pub(super) struct Links {
    rates: Option<LinkRates>,
    schedules: [Schedule; 5],
}

impl Links {
    pub(super) fn new(rates: Option<LinkRates>) -> Self {
        Self { rates, ..Self::default() }
    }

    fn schedule(&self, engine: Engine) -> &Schedule {
        &self.schedules[engine as usize]
    }

    fn schedule_mut(&mut self, engine: Engine) -> &mut Schedule {
        &mut self.schedules[engine as usize]
    }

    fn times(&self, now_ns: u64) -> LinkTimes {
        let busy_ns = |engine| self.schedule(engine).busy_ns(now_ns);
        LinkTimes {
            to_device_ns: busy_ns(Engine::ToDevice),
            to_host_ns: busy_ns(Engine::ToHost),
            peer_out_ns: busy_ns(Engine::PeerOut),
            peer_in_ns: busy_ns(Engine::PeerIn),
            on_device_ns: busy_ns(Engine::OnDevice),
        }
    }
}

impl SimDriver {
    /// Gives the links of `device` other rates, as if another process loaded them or they had slowed
    /// down, or rates at all. They hold for work that is enqueued from now on. Used under
    /// [`Completion::Lag`](super::Completion::Lag) only, as those of [`SimConfig::links`].
    ///
    /// [`SimConfig::links`]: super::SimConfig::links
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`].
    pub fn set_links(&self, device: DeviceId, rates: LinkRates) -> Result<()> {
        let mut state = self.lock();
        let found = state.devices.get_mut(device.0 as usize).ok_or(DriverError::InvalidDevice(device))?;
        found.links.rates = Some(rates);
        Ok(())
    }

    /// How long each engine of `device` has been busy up to now.
    ///
    /// # Errors
    /// [`DriverError::InvalidDevice`].
    pub fn busy_ns(&self, device: DeviceId) -> Result<LinkTimes> {
        let state = self.lock();
        let found = state.devices.get(device.0 as usize).ok_or(DriverError::InvalidDevice(device))?;
        Ok(found.links.times(state.now_ns))
    }
}

#[cfg(test)]
mod tests;
