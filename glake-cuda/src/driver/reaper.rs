//! The reaper: things that wait for events. Polled at later calls, and never blocks.

use std::any::Any;
use std::collections::VecDeque;
use std::mem::{self, ManuallyDrop};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use glake_core::driver::{DriverError, Result, Retired};
use glake_core::units::{AddressRange, DeviceId};

use super::device::Device;
use super::stream::{DEFAULT_STREAMS, OnStream};
use super::{Shared, lock};
use crate::call::{Event, Stream, order};
use crate::probe::CtxRecordEvent;

/// How many waiting things one poll looks at.
const N_LOOKS: usize = 16;

/// What to do behind the events.
pub(crate) enum Then {
    /// Drop host memory that a copy engine or kernel works on.
    Drop(Box<dyn Any + Send>),
    /// Unmap a range that work may still touch.
    Unmap(AddressRange),
    /// Give a reservation back when nothing is mapped in it any more.
    Unreserve(AddressRange),
    /// Give mappings, handles and reservations back.
    Retire(Retired),
}

/// Something that waits.
struct Waiting {
    /// None until events could be recorded behind all work that may touch a range.
    events: Option<Vec<(Event, DeviceId)>>,
    then: Then,
}

/// All that waits, oldest first.
#[derive(Default)]
pub(crate) struct Reaper {
    waiting: Mutex<VecDeque<Waiting>>,
    n: AtomicUsize,
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // What still waits may be in use by the device: it is leaked, never freed early.
        let waiting = mem::take(&mut *lock(&self.waiting));
        let _leaked = ManuallyDrop::new(waiting);
    }
}

impl Shared {
    /// Keeps `what` until the work enqueued on the stream so far is done. If that cannot be
    /// recorded, it is kept for good.
    pub(crate) fn keep(&self, what: Box<dyn Any + Send>, on: &OnStream<'_>) {
        let Ok(event) = on.device.record(on.raw) else {
            let _leaked = ManuallyDrop::new(what);
            return;
        };
        self.keep_behind(what, vec![(event, on.device.id)]);
    }

    /// Keeps `what` until the events have passed.
    pub(crate) fn keep_behind(&self, what: Box<dyn Any + Send>, events: Vec<(Event, DeviceId)>) {
        self.push(Waiting { events: Some(events), then: Then::Drop(what) });
    }

    /// Unmaps `range` when all work that may touch it is done. Does not block.
    pub(crate) fn unmap_later(&self, range: AddressRange) {
        let events = self.record_all(range).ok();
        self.push(Waiting { events, then: Then::Unmap(range) });
    }

    /// Gives a reservation back when all that is mapped in it is unmapped.
    pub(crate) fn unreserve_later(&self, range: AddressRange) {
        self.push(Waiting { events: Some(Vec::new()), then: Then::Unreserve(range) });
    }

    /// Gives back what its owner is done with when its events have passed. Does not block.
    pub(crate) fn retire(&self, retired: Retired) {
        let events = self.take_events(&retired.after);
        self.push(Waiting { events: Some(events), then: Then::Retire(retired) });
        self.poll_all();
    }

    /// Looks at the oldest waiting things and does what is due. Does not block.
    pub(crate) fn poll(&self) {
        self.look_at(N_LOOKS);
    }

    /// Looks at everything that waits and does what is due. Does not block.
    pub(crate) fn poll_all(&self) {
        self.look_at(usize::MAX);
    }

    fn look_at(&self, most: usize) {
        for _ in 0..most.min(self.reaper.n.load(Ordering::Relaxed)) {
            let Some(waiting) = lock(&self.reaper.waiting).pop_front() else { return };
            self.reaper.n.fetch_sub(1, Ordering::Relaxed);
            self.look(waiting);
        }
    }

    /// Does everything that waits, because all work is done; for closing.
    pub(crate) fn reap_all(&self) {
        let waiting = mem::take(&mut *lock(&self.reaper.waiting));
        self.reaper.n.store(0, Ordering::Relaxed);
        for one in waiting {
            self.recycle(one.events.unwrap_or_default());
            self.act(one.then);
        }
    }

    fn push(&self, waiting: Waiting) {
        lock(&self.reaper.waiting).push_back(waiting);
        self.reaper.n.fetch_add(1, Ordering::Relaxed);
    }

    fn look(&self, mut waiting: Waiting) {
        if let (None, Then::Unmap(range)) = (&waiting.events, &waiting.then) {
            waiting.events = self.record_all(*range).ok();
        }
        match &waiting.events {
            Some(events)
                if events.iter().all(|(event, device)| self.has_passed(*event, *device) == Ok(true)) =>
            {
                self.recycle(waiting.events.unwrap_or_default());
                self.act(waiting.then);
            }
            _ => self.push(waiting),
        }
    }

    fn act(&self, then: Then) {
        match then {
            Then::Drop(what) => drop(what),
            // It may have been unmapped by its address meanwhile; then nothing is left to do.
            Then::Unmap(range) => drop(self.unmap(range)),
            Then::Unreserve(range) => self.unreserve_or_wait(range),
            // What fails is unknown by now, or on a lost device: nothing is left to do.
            Then::Retire(retired) => {
                for &range in &retired.mappings {
                    let _ = self.unmap(range);
                }
                for &handle in &retired.handles {
                    let _ = self.release(handle);
                }
                retired.reservations.iter().for_each(|&range| self.unreserve_or_wait(range));
            }
        }
    }

    fn unreserve_or_wait(&self, range: AddressRange) {
        if let Err(DriverError::StillMapped(_)) = self.unreserve(range) {
            self.unreserve_later(range);
        }
    }

    /// Whether an event has passed; an error on a lost device.
    pub(crate) fn has_passed(&self, event: Event, device: DeviceId) -> Result<bool> {
        let device = self.device(device)?;
        let _entered = device.enter_beside_captures()?;
        // SAFETY: the driver's events live until it closes.
        device.watched(unsafe { order::query(event) })
    }

    pub(crate) fn recycle(&self, events: Vec<(Event, DeviceId)>) {
        for (event, device) in events {
            if let Ok(device) = self.device(device) {
                device.recycle(event);
            }
        }
    }

    /// Events behind all work of the devices that may touch `range`.
    fn record_all(&self, range: AddressRange) -> Result<Vec<(Event, DeviceId)>> {
        let (_, users) = lock(&self.space).devices_of(range);
        let mut events = Vec::new();
        for device in self.devices.iter().filter(|device| users & super::space::bit(device.id) != 0) {
            match self.record_device(device) {
                Ok(more) => events.extend(more),
                Err(error) => {
                    self.recycle(events);
                    return Err(error);
                }
            }
        }
        Ok(events)
    }

    /// Events behind all work of a device: one for the context, or where the driver cannot (before
    /// 12.5), one for each stream that it knows and for the default streams. An error while one of
    /// these is captured into a graph: an event of the context would break the capture.
    fn record_device(&self, device: &Device) -> Result<Vec<(Event, DeviceId)>> {
        let _entered = device.enter_beside_captures()?;
        let known = self.uncaptured(device)?;
        if let Some(call) = self.record_context {
            return Ok(vec![(device.record_context(call)?, device.id)]);
        }
        let mut events = Vec::new();
        for stream in known.iter().map(|known| known.raw()).chain(DEFAULT_STREAMS) {
            match device.record(stream) {
                Ok(event) => events.push((event, device.id)),
                Err(error) => {
                    self.recycle(events);
                    return Err(error);
                }
            }
        }
        Ok(events)
    }
}

impl Device {
    /// An event behind the work of one stream, which the caller keeps alive; the context is
    /// current.
    pub(crate) fn record(&self, stream: Stream) -> Result<Event> {
        let event = self.take_event()?;
        // SAFETY: the caller keeps the stream alive; the event is the driver's, of this device.
        if let Err(error) = unsafe { order::record(event, stream) } {
            self.recycle(event);
            return Err(error);
        }
        Ok(event)
    }

    /// An event behind all work of the context, which is current.
    pub(crate) fn record_context(&self, call: CtxRecordEvent) -> Result<Event> {
        let (event, context) = (self.take_event()?, self.context()?);
        // SAFETY: the context is retained and the event is the driver's, of that context.
        if let Err(error) = unsafe { order::record_context(call, event, context) } {
            self.recycle(event);
            return Err(error);
        }
        Ok(event)
    }
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reaper({} waiting)", self.n.load(Ordering::Relaxed))
    }
}
