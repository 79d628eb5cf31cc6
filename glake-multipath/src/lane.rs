//! Lanes: what moves chunks on one path.
//!
//! A direct lane copies on one stream of the target device. A relay lane copies in two stages through a
//! ring of slots on another device: over that device's link to the host on a stream there, and between
//! the devices on a stream of the target. The target reaches into the relay's slots, so that the relay
//! needs no access to the user's memory. Both stages are copy engines'.
//!
//! A scattering lane is a relay lane through slots of the target itself: what has many short places there
//! goes between host and slot as a whole, and between slot and places in one launch of a kernel.

mod copy;
mod queue;

use std::collections::VecDeque;
use std::sync::Arc;

use glake_core::driver::{Driver, DriverError, Result};
use glake_core::units::{DeviceId, DevicePtr, EventId, HostId, StreamId};

use crate::chunk::Chunk;
use crate::mark::Mark;
use crate::ring::Ring;

use copy::enqueue_host;

/// The route of a copy between the host and a device, or between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// Over the device's own link; between two devices, by the driver's own copy.
    Direct,
    /// Over the link of another device, and from there to the device; from that device itself, through slots there.
    Via(DeviceId),
    /// From a device through the host's memory: over its own link, and over that of the device it goes to.
    Host,
}

/// How a lane goes its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Route {
    Direct,
    /// Over the device's own link and through slots there.
    Scattering,
    Via(DeviceId),
}

impl From<Path> for Route {
    fn from(path: Path) -> Self {
        match path {
            Path::Direct | Path::Host => Self::Direct,
            Path::Via(relay) => Self::Via(relay),
        }
    }
}

impl Route {
    /// The device that the route's slots are on.
    pub(crate) fn slots_on(self, device: DeviceId) -> Option<DeviceId> {
        match self {
            Self::Direct => None,
            Self::Scattering => Some(device),
            Self::Via(relay) => Some(relay),
        }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Direction {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
}

/// Chunks on a direct lane at a time: while one is copied, the next one waits behind it.
const N_DIRECT: usize = 2;

/// The host side of a chunk, or what stands for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostSide {
    /// All of the transfer's host side, in the driver's keeping.
    Whole(HostId),
    /// The bytes of the chunk alone, piece by piece, in the driver's keeping.
    Packed(HostId),
    /// Device memory from that address on, which the streams that copy can reach.
    Device(DevicePtr),
}

/// A chunk that was enqueued.
#[derive(Debug)]
struct InFlight {
    chunk: Chunk,
    event: EventId,
}

/// What a relay lane has besides.
#[derive(Debug)]
struct Relay {
    stream: StreamId,
    ring: Ring,
    /// Between the stages of the last chunk.
    half: Option<EventId>,
}

/// A worker on a path, for one transfer at a time.
#[derive(Debug)]
pub(crate) struct Lane {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    route: Route,
    stream: StreamId,
    relay: Option<Relay>,
    in_flight: VecDeque<InFlight>,
    /// What the next chunk waits for.
    behind: Option<Arc<Mark>>,
    /// The stream of the last stage of what was queued for a stream that waits for it.
    queued_on: Option<StreamId>,
    /// The event behind that.
    end: Option<EventId>,
    /// Whether a call failed: copies may be enqueued that no event is behind.
    has_failed: bool,
}

impl Lane {
    /// A lane to and from `device` by that route, with slots where it has some.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        device: DeviceId,
        route: Route,
        n_slots: u64,
        slot_bytes: u64,
    ) -> Result<Self> {
        let Some(at) = route.slots_on(device) else {
            return Ok(Self::over(driver, device, route, driver.create_stream(device)?, None));
        };
        let ring = Ring::new(driver, at, device, n_slots, slot_bytes)?;
        let stream = driver.create_stream(device)?;
        match driver.create_stream(at) {
            Ok(staging) => Ok(Self::over(
                driver,
                device,
                route,
                stream,
                Some(Relay { stream: staging, ring, half: None }),
            )),
            Err(error) => {
                let _ = driver.destroy_stream(stream);
                Err(error)
            }
        }
    }

    fn over(
        driver: &Arc<dyn Driver>,
        device: DeviceId,
        route: Route,
        stream: StreamId,
        relay: Option<Relay>,
    ) -> Self {
        Self {
            driver: Arc::clone(driver),
            device,
            route,
            stream,
            relay,
            in_flight: VecDeque::new(),
            behind: None,
            queued_on: None,
            end: None,
            has_failed: false,
        }
    }

    pub(crate) fn route(&self) -> Route {
        self.route
    }

    pub(crate) fn path(&self) -> Path {
        match self.route {
            Route::Direct | Route::Scattering => Path::Direct,
            Route::Via(relay) => Path::Via(relay),
        }
    }

    /// The most bytes that one chunk may have here.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.relay.as_ref().map_or(u64::MAX, |relay| relay.ring.slot_bytes())
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether another chunk keeps the lane busy without making it hoard.
    pub(crate) fn has_room(&self) -> bool {
        let most = self.relay.as_ref().map_or(N_DIRECT, |relay| relay.ring.n_slots());
        self.in_flight.len() < most
    }

    /// Has what is enqueued from now on wait for `behind`; a lane that is given nothing waits for nothing.
    pub(crate) fn follow(&mut self, behind: Option<Arc<Mark>>) {
        self.behind = behind;
    }

    /// Makes all that is pushed from now on wait for `event`.
    pub(crate) fn wait(&self, event: EventId) -> Result<()> {
        self.driver.wait(self.stream, event)?;
        self.relay.as_ref().map_or(Ok(()), |relay| self.driver.wait(relay.stream, event))
    }

    /// Enqueues a chunk. On `Err` a part of it may have been enqueued, and the lane is of no more use.
    pub(crate) fn push(
        &mut self,
        direction: Direction,
        host: HostSide,
        chunk: Chunk,
    ) -> Result<(), PushError> {
        match self.enqueue(direction, host, &chunk) {
            Ok(event) => {
                self.in_flight.push_back(InFlight { chunk, event });
                Ok(())
            }
            Err(error) => Err(PushError { chunk, error }),
        }
    }

    /// Enqueues the copies of a chunk that the end of the host memory's loan waits for.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue).
    pub(crate) fn push_unmarked(
        &mut self,
        direction: Direction,
        host: HostSide,
        chunk: &Chunk,
    ) -> Result<()> {
        self.copy(direction, host, chunk).map(drop).inspect_err(|_| self.has_failed = true)
    }

    /// Enqueues the copies of a chunk; the event behind them is the caller's to forget.
    ///
    /// # Errors
    /// Those of the driver. A part of it may have been enqueued, and the lane is of no more use.
    pub(crate) fn enqueue(&mut self, direction: Direction, host: HostSide, chunk: &Chunk) -> Result<EventId> {
        let enqueued = self.copy(direction, host, chunk).and_then(|last| self.driver.record(last));
        enqueued.inspect_err(|_| self.has_failed = true)
    }

    /// Enqueues the copies of a chunk, and returns the stream of the last stage.
    fn copy(&mut self, direction: Direction, host: HostSide, chunk: &Chunk) -> Result<StreamId> {
        if let Some(behind) = self.behind.take() {
            self.wait(behind.event())?;
        }
        match &mut self.relay {
            None => {
                enqueue_host(&*self.driver, direction, host, chunk, self.stream, None)?;
                Ok(self.stream)
            }
            Some(relay) => relay.copy(&*self.driver, direction, host, chunk, self.stream),
        }
    }

    /// The streams that it enqueues on.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + use<> {
        let staging = self.relay.as_ref().map(|relay| relay.stream);
        std::iter::once(self.stream).chain(staging)
    }

    /// Takes note that a call failed on the lane's work. Where a device is lost, what the lane has still to write is
    /// not what it should be, and comes before what follows on `others`, which bring it once more.
    pub(crate) fn fail(&mut self, error: DriverError, others: impl IntoIterator<Item = StreamId>) {
        if error == DriverError::DeviceLost {
            for stream in others {
                self.precede(stream);
            }
        }
        self.has_failed = true;
    }

    /// The event behind the oldest chunk.
    pub(crate) fn oldest(&self) -> Option<EventId> {
        self.in_flight.front().map(|chunk| chunk.event)
    }

    /// Takes the oldest chunk off if it is done.
    ///
    /// # Errors
    /// Those of the driver: the lane is of no more use.
    pub(crate) fn settle(&mut self) -> Result<Option<Chunk>> {
        let Some(oldest) = self.in_flight.front() else { return Ok(None) };
        let is_done = self
            .driver
            .query(oldest.event)
            .and_then(|is_done| if is_done { self.relay_is_well().map(|()| true) } else { Ok(false) });
        if !is_done.inspect_err(|_| self.has_failed = true)? {
            return Ok(None);
        }
        Ok(self.in_flight.pop_front().map(|done| self.take_off(done)))
    }

    /// Whether the device that relays is not lost: what it staged then is not what it should be, though the second
    /// stage ends all the same.
    pub(crate) fn relay_is_well(&self) -> Result<()> {
        let half = self.relay.as_ref().and_then(|relay| relay.half);
        match (self.route, half) {
            (Route::Via(_), Some(half)) => self.driver.query(half).map(drop),
            _ => Ok(()),
        }
    }

    /// Waits until nothing that was pushed runs any more. A device that is lost runs nothing. Whether that is so.
    pub(crate) fn quiesce(&mut self) -> bool {
        let relay = self.route.slots_on(self.device);
        let is_still =
            |device| matches!(self.driver.synchronize_all(device), Ok(()) | Err(DriverError::DeviceLost));
        self.has_failed = !(is_still(self.device) && relay.is_none_or(is_still));
        !self.has_failed
    }

    /// Takes all chunks off that are not known to be done.
    pub(crate) fn take_all(&mut self) -> Vec<Chunk> {
        let all = std::mem::take(&mut self.in_flight);
        all.into_iter().map(|one| self.take_off(one)).collect()
    }

    fn take_off(&mut self, one: InFlight) -> Chunk {
        self.driver.forget(one.event);
        one.chunk
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let is_in_use = self.has_failed || !self.in_flight.is_empty() || self.end.is_some();
        if let Some(relay) = self.relay.as_mut().filter(|_| is_in_use) {
            relay.ring.keep_behind([self.stream, relay.stream]);
        }
        let half = self.relay.as_ref().and_then(|relay| relay.half);
        let events = self.in_flight.iter().map(|one| one.event).chain(self.end).chain(half);
        events.for_each(|event| self.driver.forget(event));
        for stream in self.streams() {
            let _ = self.driver.destroy_stream(stream);
        }
    }
}

/// A chunk that could not be enqueued.
#[derive(Debug)]
pub(crate) struct PushError {
    pub(crate) chunk: Chunk,
    pub(crate) error: DriverError,
}
