//! Pinned slots: what memory that is not pinned is staged through.

use std::sync::{Arc, PoisonError};

use glake_core::driver::{Driver, DriverError, HostBuffer, Result};
use glake_core::units::DeviceId;

use crate::sync::{Mutex, MutexGuard};

/// The pinned slots of an engine, made when they are needed and kept.
#[derive(Debug)]
pub(crate) struct Slots {
    driver: Arc<dyn Driver>,
    slot_bytes: u64,
    n_most: usize,
    stock: Mutex<Stock>,
}

#[derive(Debug, Default)]
struct Stock {
    idle: Vec<HostBuffer>,
    /// Those that there are, idle or lent.
    n_made: usize,
    /// Those that are being made.
    n_coming: usize,
    /// How many there were when no more could be made, if that was so.
    n_at_most: Option<usize>,
}

impl Slots {
    /// Slots of `slot_bytes`, at most as many as fit in `most_bytes`.
    pub(crate) fn new(driver: Arc<dyn Driver>, slot_bytes: u64, most_bytes: u64) -> Self {
        let n_most = usize::try_from(most_bytes / slot_bytes.max(1)).unwrap_or(usize::MAX);
        Self { driver, slot_bytes, n_most, stock: Mutex::new(Stock::default()) }
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most slots that there may be.
    pub(crate) fn n_most(&self) -> usize {
        self.n_most
    }

    /// A slot, close to `near` if it is made now; `None` if all are lent, and no more can be made.
    ///
    /// # Errors
    /// Those of the driver, where there is no slot to wait for; `InvalidValue` if there may be none.
    pub(crate) fn take(&self, near: DeviceId) -> Result<Option<HostBuffer>> {
        let mut stock = self.lock();
        if let Some(slot) = stock.idle.pop() {
            return Ok(Some(slot));
        }
        if self.n_most == 0 {
            return Err(DriverError::InvalidValue("a slot is larger than all pinned memory may be"));
        }
        if stock.n_made + stock.n_coming >= self.n_most || stock.n_at_most == Some(stock.n_made) {
            return Ok(None);
        }
        stock.n_coming += 1;
        drop(stock);
        let made = self.driver.pin(self.slot_bytes, near);
        let mut stock = self.lock();
        stock.n_coming -= 1;
        match made {
            Ok(slot) => {
                stock.n_made += 1;
                Ok(Some(slot))
            }
            // Those that are lent come back.
            Err(_) if stock.n_made > 0 => {
                stock.n_at_most = Some(stock.n_made);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sees to it that there is a slot, lent or not.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn prepare(&self, near: DeviceId) -> Result<()> {
        if self.lock().n_made == 0
            && let Some(slot) = self.take(near)?
        {
            self.put(slot);
        }
        Ok(())
    }

    /// Takes a slot back.
    pub(crate) fn put(&self, slot: HostBuffer) {
        self.lock().idle.push(slot);
    }

    /// A slot does not come back.
    pub(crate) fn forget(&self) {
        self.lock().n_made -= 1;
    }
}
