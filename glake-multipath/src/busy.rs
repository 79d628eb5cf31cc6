//! Lanes whose copies a stream waits for: nobody has them, and they are busy.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use glake_core::units::{DeviceId, StreamId};

use crate::lane::{Lane, Route};

/// The stream that waits for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    stream: StreamId,
    /// Whose it is, where each thread has one of that name.
    thread: Option<ThreadId>,
}

impl Behind {
    /// The stream of that name in the calling thread.
    pub(crate) fn stream(stream: StreamId) -> Self {
        let is_own = stream == StreamId::PER_THREAD;
        Self { stream, thread: is_own.then(|| std::thread::current().id()) }
    }
}

/// Lanes whose copies a stream waits for.
///
/// What comes behind the end of that stream comes behind the copies, too: it may have such a lane, and waits for
/// nothing that it would not wait for anyway. Other transfers get it when it is done.
#[derive(Debug, Default)]
pub(crate) struct Busy(Mutex<Vec<(Behind, DeviceId, Lane)>>);

impl Busy {
    fn lock(&self) -> MutexGuard<'_, Vec<(Behind, DeviceId, Lane)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a lane there. The stream already waits for its end.
    pub(crate) fn put(&self, behind: Behind, device: DeviceId, lane: Lane) {
        self.lock().push((behind, device, lane));
    }

    /// A lane that is busy behind the same stream. What it is given must come behind an event recorded on
    /// that stream from now on.
    pub(crate) fn take(&self, behind: Behind, device: DeviceId, route: Route) -> Option<Lane> {
        let mut all = self.lock();
        let fits = |(of, to, lane): &(Behind, DeviceId, Lane)| {
            *of == behind && *to == device && lane.route() == route
        };
        let at = all.iter().position(fits)?;
        Some(all.swap_remove(at).2)
    }

    /// The lanes that are done, and as errors those that failed. One driver call for each lane.
    pub(crate) fn take_done(&self) -> Vec<(DeviceId, Result<Lane, Lane>)> {
        let mut done = Vec::new();
        let mut all = self.lock();
        for (behind, device, mut lane) in std::mem::take(&mut *all) {
            match lane.is_done() {
                Ok(true) => done.push((device, Ok(lane))),
                Ok(false) => all.push((behind, device, lane)),
                Err(_) => done.push((device, Err(lane))),
            }
        }
        done
    }
}
