//! Streams and events.
//!
//! Events are CUDA events that are recorded again and again: a forgotten one goes back to its
//! device, and none is destroyed before the driver closes. Ids are never used twice.

use std::collections::HashMap;

use glake_core::driver::{Call, DriverError, Result, StreamOrder};
use glake_core::units::{DeviceId, EventId, StreamId};

use super::device::Device;
use super::{CudaDriver, Shared, lock};
use crate::call::{self, Event, order};

/// Events that were recorded and not forgotten.
#[derive(Debug, Default)]
pub(crate) struct Events {
    known: HashMap<EventId, (Event, DeviceId)>,
    last: u64,
}

impl Events {
    fn insert(&mut self, event: Event, device: DeviceId) -> EventId {
        self.last += 1;
        self.known.insert(EventId(self.last), (event, device));
        EventId(self.last)
    }

    /// Forgets all, for closing.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Event, DeviceId)> {
        self.known.drain().map(|(_, event)| event)
    }
}

impl Shared {
    /// A known event and its device.
    fn event(&self, id: EventId) -> Result<(Event, &Device)> {
        let known = lock(&self.events).known.get(&id).copied();
        let (event, device) = known.ok_or(DriverError::UnknownEvent(id))?;
        Ok((event, self.device(device)?))
    }
}

impl Shared {
    /// Takes events out of the hands of their owner; unknown ones are skipped.
    pub(crate) fn take_events(&self, ids: &[EventId]) -> Vec<(Event, DeviceId)> {
        let mut events = lock(&self.events);
        ids.iter().filter_map(|id| events.known.remove(id)).collect()
    }
}

impl StreamOrder for CudaDriver {
    fn create_stream(&self, device: DeviceId) -> Result<StreamId> {
        self.shared.create_stream(device)
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<()> {
        self.shared.destroy_stream(stream)
    }

    fn record(&self, stream: StreamId) -> Result<EventId> {
        let on = self.shared.checked(Call::Record, self.shared.on(stream))?;
        let event = on.device.take_event()?;
        let recorded = on.device.timed(Call::Record, || {
            on.uncaptured()?;
            // SAFETY: `on` keeps the stream alive and the event is the driver's, of the same device.
            unsafe { order::record(event, on.raw) }
        });
        if let Err(error) = recorded {
            on.device.recycle(event);
            return Err(error);
        }
        Ok(lock(&self.shared.events).insert(event, on.device.id))
    }

    fn record_all(&self, device: DeviceId) -> Result<EventId> {
        let device = self.shared.checked(Call::Record, self.shared.device(device))?;
        let event = device.timed(Call::Record, || {
            let record = self.shared.record_context;
            let record = record.ok_or(DriverError::NotSupported("cuCtxRecordEvent"))?;
            let _entered = device.enter_beside_captures()?;
            let _known = self.shared.uncaptured(device)?;
            device.record_context(record)
        })?;
        Ok(lock(&self.shared.events).insert(event, device.id))
    }

    fn query(&self, id: EventId) -> Result<bool> {
        let (event, device) = self.shared.checked(Call::Query, self.shared.event(id))?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the driver's events live until it closes.
        device.timed(Call::Query, || unsafe { order::query(event) })
    }

    fn wait(&self, stream: StreamId, id: EventId) -> Result<()> {
        let on = self.shared.checked(Call::Wait, self.shared.on(stream))?;
        let (event, _) = self.shared.checked(Call::Wait, self.shared.event(id))?;
        on.device.timed(Call::Wait, || {
            on.uncaptured()?;
            // SAFETY: `on` keeps the stream alive, and the driver's events live until it closes.
            unsafe { order::wait(on.raw, event) }
        })
    }

    fn synchronize(&self, id: EventId) -> Result<()> {
        let (event, device) = self.shared.checked(Call::Synchronize, self.shared.event(id))?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the driver's events live until it closes.
        device.timed(Call::Synchronize, || unsafe { order::synchronize(event) })
    }

    fn synchronize_all(&self, device: DeviceId) -> Result<()> {
        let device = self.shared.checked(Call::Synchronize, self.shared.device(device))?;
        device.timed(Call::Synchronize, || {
            let _entered = device.enter_beside_captures()?;
            let _known = self.shared.uncaptured(device)?;
            call::device::synchronize()
        })
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        self.shared.on(stream)?.is_capturing()
    }

    fn forget(&self, id: EventId) {
        let known = lock(&self.shared.events).known.remove(&id);
        if let Some((event, device)) = known
            && let Ok(device) = self.shared.device(device)
        {
            device.recycle(event);
        }
    }
}
