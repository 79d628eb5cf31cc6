//! Staging memory of a relay: slots on its device that every device of the transfer can reach.

use std::sync::Arc;

use glake_core::driver::{Access, Driver, DriverError, Result, Retired};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, EventId, HandleId, StreamId, round_up};

/// Slots of device memory, side by side in one mapping. Dropping it hands the memory to the driver, to
/// be given back behind the work that may still use it; where that is not known, it stays with the driver.
#[derive(Debug)]
pub(crate) struct Ring {
    driver: Arc<dyn Driver>,
    range: AddressRange,
    handle: HandleId,
    slot_bytes: u64,
    /// The slots' last uses.
    events: Box<[Option<EventId>]>,
    next: usize,
    /// What work may use it that nobody has seen done.
    in_use: Use,
}

/// What work may use a ring that is dropped.
#[derive(Debug)]
enum Use {
    None,
    Before(Vec<EventId>),
    Unknown,
}

impl Ring {
    /// `n_slots` slots of `slot_bytes` on `device`, which `peer` can reach too.
    ///
    /// # Errors
    /// Those of the driver; nothing is held then.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        device: DeviceId,
        peer: DeviceId,
        n_slots: u64,
        slot_bytes: u64,
    ) -> Result<Self> {
        let step = driver.granularity(device)?.max(driver.granularity(peer)?);
        let bytes = n_slots.checked_mul(slot_bytes).and_then(|bytes| round_up(bytes, step));
        let bytes = bytes.ok_or(DriverError::OutOfMemory)?;
        let range = driver.reserve(bytes, step)?;
        let mut undo = Retired { reservations: vec![range], ..Retired::default() };
        let made = (|| {
            let handle = driver.create(device, bytes)?;
            undo.handles.push(handle);
            driver.map(range.start, handle)?;
            undo.mappings.push(range);
            let users = [device, peer];
            let users = if device == peer { &users[..1] } else { &users };
            driver.set_access(range, users, Access::ReadWrite)?;
            Ok(handle)
        })();
        match made {
            Ok(handle) => Ok(Self {
                driver: Arc::clone(driver),
                range,
                handle,
                slot_bytes,
                events: (0..n_slots).map(|_| None).collect(),
                next: 0,
                in_use: Use::None,
            }),
            Err(error) => {
                driver.retire(undo);
                Err(error)
            }
        }
    }

    /// Keeps it, when it is dropped, for ever: nobody knows what still uses it.
    pub(crate) fn keep(&mut self) {
        self.in_use = Use::Unknown;
    }

    /// Keeps it, when it is dropped, until what is enqueued on `streams` is done; for ever if that cannot be
    /// known.
    pub(crate) fn keep_behind(&mut self, streams: [StreamId; 2]) {
        let mut events = Vec::with_capacity(streams.len());
        for stream in streams {
            match self.driver.record(stream) {
                Ok(event) => events.push(event),
                // Nothing runs there any more.
                Err(DriverError::DeviceLost) => {}
                Err(_) => {
                    for event in events {
                        self.driver.forget(event);
                    }
                    return self.keep();
                }
            }
        }
        self.in_use = Use::Before(events);
    }

    /// The next slot, which `stream` may use behind its last use.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn enter(&mut self, stream: StreamId) -> Result<DevicePtr> {
        if let Some(event) = self.events[self.next].take() {
            let waited = self.driver.wait(stream, event);
            self.driver.forget(event);
            waited?;
        }
        Ok(self.range.start + self.next as u64 * self.slot_bytes)
    }

    /// The slot that was entered is free again behind what is enqueued on `stream`.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn leave(&mut self, stream: StreamId) -> Result<()> {
        self.events[self.next] = Some(self.driver.record(stream)?);
        self.next = (self.next + 1) % self.events.len();
        Ok(())
    }

    /// Where the first slot begins; the others follow.
    pub(crate) fn start(&self) -> DevicePtr {
        self.range.start
    }

    pub(crate) fn n_slots(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for event in self.events.iter().flatten() {
            self.driver.forget(*event);
        }
        let after = match std::mem::replace(&mut self.in_use, Use::Unknown) {
            Use::None => Vec::new(),
            Use::Before(events) => events,
            Use::Unknown => return,
        };
        self.driver.retire(Retired {
            after,
            mappings: vec![self.range],
            handles: vec![self.handle],
            reservations: vec![self.range],
        });
    }
}
