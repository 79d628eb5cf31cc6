//! The streams that the driver knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use glake_core::driver::{DriverError, Result};
use glake_core::units::{DeviceId, StreamId};

use super::device::{Device, Entered};
use super::{Shared, lock};
use crate::call::kernel::{self, Grid};
use crate::call::{Function, Stream, device, order};
use crate::kernels::Kernels;

/// The legacy stream and the calling thread's own.
pub(crate) const DEFAULT_STREAMS: [Stream; 2] = [Stream(StreamId::LEGACY.0), Stream(StreamId::PER_THREAD.0)];

/// Who destroys a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Driver,
    Adopted,
}

/// A known stream. Calls that use it hold a share, so that it is destroyed behind the last.
#[derive(Debug)]
pub(crate) struct Known {
    raw: Stream,
    device: DeviceId,
    owner: Owner,
}

impl Drop for Known {
    fn drop(&mut self) {
        if self.owner == Owner::Driver {
            // SAFETY: the driver created the stream and nobody holds it any more. Destroying does
            // not wait for its work; a failure means that its context is gone, and it with it.
            let _ = unsafe { order::destroy_stream(self.raw) };
        }
    }
}

/// Streams by the value of their handle.
#[derive(Debug, Default)]
pub(crate) struct Streams(BTreeMap<StreamId, Arc<Known>>);

impl Streams {
    pub(crate) fn adopt(&mut self, raw: Stream, device: DeviceId) {
        let known = Known { raw, device, owner: Owner::Adopted };
        // A stream of the driver's own, or adopted before, stays as it is.
        self.0.entry(StreamId(raw.0)).or_insert_with(|| Arc::new(known));
    }

    pub(crate) fn disown(&mut self, stream: StreamId) -> Result<()> {
        self.remove(stream, Owner::Adopted).map(drop)
    }

    fn remove(&mut self, stream: StreamId, owner: Owner) -> Result<Arc<Known>> {
        match self.0.get(&stream) {
            Some(known) if known.owner == owner => {
                self.0.remove(&stream).ok_or(DriverError::UnknownStream(stream))
            }
            _ => Err(DriverError::UnknownStream(stream)),
        }
    }

    /// All streams of a device.
    pub(crate) fn of(&self, device: DeviceId) -> Vec<Arc<Known>> {
        self.0.values().filter(|known| known.device == device).cloned().collect()
    }

    /// Forgets all, for closing.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Known {
    pub(crate) fn raw(&self) -> Stream {
        self.raw
    }
}

/// What a stream stands for: work is ordered behind work of the same device and queue. A stream's
/// handle says less: another stream may have it later, and each thread has its own
/// [`StreamId::PER_THREAD`].
#[derive(Clone, Debug)]
pub(crate) enum Queue {
    Legacy,
    PerThread(ThreadId),
    Known(Weak<Known>),
}

impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Legacy, Self::Legacy) => true,
            (Self::PerThread(one), Self::PerThread(other)) => one == other,
            // Neither's place goes to another stream while there is such a reference to it.
            (Self::Known(one), Self::Known(other)) => Weak::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// A stream during one call: alive, and its context current.
#[derive(Debug)]
pub(crate) struct OnStream<'a> {
    id: StreamId,
    pub(crate) raw: Stream,
    pub(crate) device: &'a Device,
    _entered: Entered,
    share: Option<Arc<Known>>,
}

impl OnStream<'_> {
    /// Whether the stream is captured into a graph.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        // SAFETY: `self` keeps the stream alive.
        self.device.watched(unsafe { order::is_capturing(self.raw) })
    }

    /// The queue that the calling thread's work on the stream goes to.
    pub(crate) fn queue(&self) -> Queue {
        match &self.share {
            Some(known) => Queue::Known(Arc::downgrade(known)),
            None if self.raw.0 == StreamId::PER_THREAD.0 => Queue::PerThread(thread::current().id()),
            None => Queue::Legacy,
        }
    }

    /// Refuses what is impossible while the stream is captured.
    pub(crate) fn uncaptured(&self) -> Result<()> {
        if self.is_capturing()? { Err(DriverError::Capturing(self.id)) } else { Ok(()) }
    }

    /// Blocks until the work of the stream is done; whatever happens, no copy that was enqueued
    /// on it touches host memory any more.
    pub(crate) fn settle(&self) -> Result<()> {
        // SAFETY: `self` keeps the stream alive.
        let done = self.device.watched(unsafe { order::synchronize_stream(self.raw) });
        if done.is_err() {
            // Refused (by a capture that began meanwhile) or lost. The wider wait covers the
            // first; on a lost device nothing runs any more.
            let _ = device::synchronize();
        }
        done
    }

    /// Enqueues a kernel that `choose` picks.
    ///
    /// # Safety
    /// The words are what the kernel takes; the addresses among them are valid for what it does,
    /// until it is done.
    pub(crate) unsafe fn launch(
        &self,
        choose: impl FnOnce(&Kernels) -> Function,
        grid: Grid,
        words: &mut [u64],
    ) -> Result<()> {
        let function = choose(self.device.kernels()?);
        // SAFETY: function and stream are of the same device and alive; the caller vouches for
        // the words.
        self.device.watched(unsafe { kernel::launch(function, grid, words, self.raw) })
    }
}

impl Shared {
    /// Creates a stream.
    pub(crate) fn create_stream(&self, id: DeviceId) -> Result<StreamId> {
        let _entered = self.device(id)?.enter_beside_captures()?;
        let raw = order::create_stream()?;
        let known = Known { raw, device: id, owner: Owner::Driver };
        // Replaces an adopted stream of the same value, which must have been destroyed since.
        lock(&self.streams).0.insert(StreamId(raw.0), Arc::new(known));
        Ok(StreamId(raw.0))
    }

    /// Destroys a stream that the driver created.
    pub(crate) fn destroy_stream(&self, stream: StreamId) -> Result<()> {
        self.on(stream)?.uncaptured()?;
        let known = lock(&self.streams).remove(stream, Owner::Driver)?;
        let _entered = self.device(known.device)?.enter_beside_captures()?;
        drop(known);
        Ok(())
    }

    /// The stream for one call on it.
    pub(crate) fn on(&self, stream: StreamId) -> Result<OnStream<'_>> {
        let (raw, share, device) = if stream.0 <= StreamId::PER_THREAD.0 {
            (Stream(stream.0.max(StreamId::LEGACY.0)), None, self.current_device()?)
        } else {
            let known = lock(&self.streams).0.get(&stream).cloned();
            let known = known.ok_or(DriverError::UnknownStream(stream))?;
            (known.raw, Some(Arc::clone(&known)), self.device(known.device)?)
        };
        Ok(OnStream { id: stream, raw, device, _entered: device.enter()?, share })
    }

    /// As [`on`](Self::on), for a copy with host memory: refused while the stream is captured,
    /// because a graph would keep the host address and replay it.
    pub(crate) fn on_for_host(&self, stream: StreamId) -> Result<OnStream<'_>> {
        let on = self.on(stream)?;
        on.uncaptured()?;
        Ok(on)
    }

    /// The streams of a device that the driver knows, the default ones aside. Refused while one of them,
    /// or a default stream of the calling thread, is captured. The context is current.
    pub(crate) fn uncaptured(&self, device: &Device) -> Result<Vec<Arc<Known>>> {
        let known = lock(&self.streams).of(device.id);
        let raw = known.iter().map(|known| known.raw).chain(DEFAULT_STREAMS);
        for stream in raw {
            // SAFETY: `known` keeps the streams alive; the default ones always are.
            if unsafe { order::is_capturing(stream) }? {
                return Err(DriverError::Capturing(StreamId(stream.0)));
            }
        }
        Ok(known)
    }

    /// The device whose primary context is current on the calling thread, or else the first.
    fn current_device(&self) -> Result<&Device> {
        let first = self.device(DeviceId(0))?;
        let current = device::current()?;
        if current.0 == 0 {
            return Ok(first);
        }
        let cu = device::of_current()?;
        match self.devices.iter().find(|device| device.cu == cu) {
            Some(device) if device.context()? == current => Ok(device),
            _ => Ok(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_with_the_handle_of_an_earlier_one_is_another_queue() {
        let (mut streams, id) = (Streams::default(), StreamId(77));
        let mut adopt = || {
            streams.adopt(Stream(id.0), DeviceId(0));
            let known = streams.0.get(&id).map(Arc::downgrade).unwrap();
            let again = streams.0.get(&id).map(Arc::downgrade).unwrap();
            streams.disown(id).unwrap();
            (Queue::Known(known), Queue::Known(again))
        };
        let (earlier, later) = (adopt(), adopt());
        assert_eq!(earlier.0, earlier.1);
        assert_ne!(earlier.0, later.0);
        assert_ne!(later.0, Queue::Legacy);
    }
}
