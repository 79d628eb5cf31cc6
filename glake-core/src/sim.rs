//! A simulated GPU driver: the rules of the hardware, real bytes, and a virtual clock.
//!
//! [`SimDriver`] keeps what glake relies on of an NVIDIA H200:
//!
//! - a handle is mapped whole or not at all, at any number of addresses, which show the same
//!   bytes; a mapping has no access until it is given; rights are checked;
//! - work is queued on streams and translates its addresses *when it runs*: a kernel whose memory
//!   was unmapped or made read-only meanwhile takes the device with it, from when on everything
//!   there fails with [`DriverError::DeviceLost`];
//! - memory that is released but still mapped is kept until it is unmapped.
//!
//! Bytes live in sparse memory files, one for each device, and take no memory of the host before
//! they are written. Fresh memory is zero. An exported handle moves to a file of its own, which
//! other processes can import; the process that created it accounts for its memory.
//!
//! Each call costs what the [`CostTable`] says. The cost goes to the
//! [`Ledger`] of the device and moves the virtual clock on
//! ([`SimDriver::now_ns`]). [`Completion`] says when device work is done, [`LinkRates`] how long copies
//! take. A [`Fault`] makes calls fail. The same calls give the same ids, addresses and figures.
//!
//! ```
//! use glake_core::driver::{Access, Call, Copies, Driver, VirtualMemory};
//! use glake_core::sim::SimDriver;
//! use glake_core::units::{DeviceId, PAGE_BYTES, StreamId};
//!
//! let driver = SimDriver::h200(1);
//! let range = driver.reserve(2 * PAGE_BYTES, PAGE_BYTES)?;
//! let handle = driver.create(DeviceId(0), PAGE_BYTES)?;
//! driver.map(range.start, handle)?;
//! driver.map(range.start + PAGE_BYTES, handle)?; // the same bytes once more
//! driver.set_access(range, &[DeviceId(0)], Access::ReadWrite)?;
//! driver.write(range.start, b"glake", StreamId::LEGACY)?;
//! let mut bytes = [0; 5];
//! driver.read(range.start + PAGE_BYTES, &mut bytes, StreamId::LEGACY)?;
//! assert_eq!(&bytes, b"glake");
//! assert_eq!(driver.ledger(DeviceId(0))?.n(Call::Map), 2);
//! # Ok::<(), glake_core::driver::DriverError>(())
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::{DeviceInfo, Driver, DriverError, Ledger, Result};
use crate::units::{DeviceId, StreamId};

mod bytes;
mod capture;
mod config;
mod copies;
mod cost;
mod fault;
mod host;
mod links;
mod memory;
mod ops;
mod order;
mod pages;
mod share;
mod slab;
mod space;
mod state;
mod stream;
mod vmm;
mod work;

pub use capture::GraphId;
pub use config::{Completion, MAX_DEVICES, SimConfig};
pub use cost::{CostTable, Curve};
pub use fault::{Fault, Target};
pub use links::{LinkRates, LinkTimes};

/// A simulated GPU driver. See the [module](self).
///
/// [`StreamId::LEGACY`] (and stream 0) and [`StreamId::PER_THREAD`] are streams of device 0, the latter
/// one for each thread: `complete` and `n_pending` speak of the calling thread's. Calls
/// that concern no device, and failed calls whose device is not known yet, are booked there.
#[derive(Debug)]
pub struct SimDriver {
    n_devices: u32,
    pins: Arc<host::Pins>,
    state: Mutex<state::State>,
}

impl SimDriver {
    /// A driver of `n_devices` H200 GPUs, at least 1 and at most [`MAX_DEVICES`], all of them
    /// peers, on which work is done at once. [`SimConfig`] sets up others.
    #[must_use]
    pub fn h200(n_devices: u32) -> Self {
        SimConfig::h200(n_devices).build()
    }

    fn new(config: SimConfig) -> Self {
        Self {
            n_devices: config.n_devices,
            pins: Arc::default(),
            state: Mutex::new(state::State::new(config)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, state::State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a failure, beside those that are planned already.
    pub fn plan(&self, fault: Fault) {
        self.lock().faults.add(fault);
    }

    /// Drops all planned failures.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// How many calls have been made to fail so far.
    #[must_use]
    pub fn n_faults(&self) -> u64 {
        self.lock().faults.n_hits
    }

    /// The virtual clock: nanoseconds that calls have cost, and that [`advance`](Self::advance)
    /// and blocking on pending work have added.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Moves the virtual clock on by `ns` and runs the work that is due then.
    pub fn advance(&self, ns: u64) {
        let mut state = self.lock();
        state.now_ns = state.now_ns.saturating_add(ns);
        state.run_due();
    }

    /// Runs up to `n` pieces of the pending work of `stream`, oldest first, and returns how many
    /// ran: fewer where no more is pending or the next waits for an event that has not passed.
    /// Copies, kernels, delays, recorded events and waits are one piece each; an event behind a
    /// whole device is none.
    ///
    /// Meant for [`Completion::Manual`]; under [`Completion::Lag`] it does nothing.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`].
    pub fn complete(&self, stream: StreamId, n: usize) -> Result<usize> {
        let mut state = self.lock();
        let stream = state.streams.resolve(stream)?;
        Ok(state.complete(stream, n))
    }

    /// Runs everything that is pending on all streams. Under [`Completion::Lag`] the clock moves
    /// to the end of the work.
    pub fn complete_all(&self) {
        self.lock().complete_all();
    }

    /// How many pieces of work are pending on `stream`.
    ///
    /// # Errors
    /// [`DriverError::UnknownStream`].
    pub fn n_pending(&self, stream: StreamId) -> Result<usize> {
        let mut state = self.lock();
        let stream = state.streams.resolve(stream)?;
        Ok(state.streams.n_pending(stream))
    }
}

impl Driver for SimDriver {
    fn n_devices(&self) -> u32 {
        self.n_devices
    }

    fn device_info(&self, device: DeviceId) -> Result<DeviceInfo> {
        self.lock().config.info(device).ok_or(DriverError::InvalidDevice(device))
    }

    fn ledger(&self, device: DeviceId) -> Result<Ledger> {
        let state = self.lock();
        let found = state.devices.get(device.0 as usize).ok_or(DriverError::InvalidDevice(device))?;
        Ok(found.ledger)
    }

    fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }
}

#[cfg(test)]
mod tests;
