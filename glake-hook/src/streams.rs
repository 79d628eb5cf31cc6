//! The program's streams: on which device they are, made known to the driver seam.

use std::cell::Cell;
use std::collections::HashMap;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use glake_core::units::StreamId;
use glake_cuda::Foreign;
use glake_vmm::{Mark, SharedPool};

use crate::device::Device;
use crate::hook::{Hook, lock};
use crate::real::{Handle, SUCCESS};

/// The streams that were seen. Threads remember some, until one of them is destroyed.
#[derive(Debug)]
pub(crate) struct Streams {
    /// Stream to device, by its place.
    known: Mutex<HashMap<StreamId, usize>>,
    /// Counts the streams that were destroyed.
    generation: AtomicU64,
}

impl Default for Streams {
    fn default() -> Self {
        Self { known: Mutex::default(), generation: AtomicU64::new(1) }
    }
}

/// Streams that a thread remembers.
const N_ENTRIES: usize = 8;

#[derive(Clone, Copy)]
struct Entry {
    stream: StreamId,
    generation: u64,
    device: usize,
}

thread_local! {
    static SEEN: [Cell<Entry>; N_ENTRIES] =
        const { [const { Cell::new(Entry { stream: StreamId(0), generation: 0, device: 0 }) }; N_ENTRIES] };
}

/// Handles are addresses, aligned to some power of two.
fn place(StreamId(stream): StreamId) -> usize {
    (stream.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % N_ENTRIES
}

impl Hook {
    /// The device that a stream is on, made known to the driver seam. None for streams of contexts that
    /// are no device's primary one.
    #[inline]
    pub(crate) fn device_of_stream(&self, stream: StreamId) -> Option<&Device> {
        if stream.0 <= StreamId::PER_THREAD.0 {
            return self.device_of(self.current_context());
        }
        let generation = self.streams.generation.load(Ordering::Acquire);
        let entry = SEEN.with(|seen| seen[place(stream)].get());
        if entry.stream == stream && entry.generation == generation {
            return self.devices.get(entry.device);
        }
        let device = self.look_up(stream)?;
        SEEN.with(|seen| seen[place(stream)].set(Entry { stream, generation, device }));
        self.devices.get(device)
    }

    fn look_up(&self, stream: StreamId) -> Option<usize> {
        let mut known = lock(&self.streams.known);
        if let Some(&device) = known.get(&stream) {
            return Some(device);
        }
        let mut context: Handle = ptr::null_mut();
        // SAFETY: the program names a stream, and would have the driver use it.
        let code = unsafe { (self.real.cuStreamGetCtx)(raw(stream), &raw mut context) };
        if code != SUCCESS {
            return None;
        }
        let device = self.device_of(context.expose_provenance() as u64)?;
        let foreign = Foreign::Stream { stream, device: device.id };
        // SAFETY: the program's stream, of the device's primary context. The hook hears when it is
        // destroyed, and disowns it first.
        unsafe { self.driver.adopt(foreign) }.ok()?;
        let index = self.devices.iter().position(|other| other.id == device.id)?;
        known.insert(stream, index);
        Some(index)
    }

    /// The program is about to destroy a stream.
    pub(crate) fn stream_ends(&self, stream: StreamId) {
        if !lock(&self.streams.known).contains_key(&stream) {
            return;
        }
        for device in &self.devices {
            let Some(pool) = device.pool_if_any() else { continue };
            self.leave_captures(device, pool, stream);
            if let Err(error) = pool.pool.stream_ends(stream) {
                // The pool notices later.
                tracing::debug!(%error, "no event behind the last work of a stream");
            }
        }
        lock(&self.streams.known).remove(&stream);
        self.streams.generation.fetch_add(1, Ordering::Release);
        // It was adopted when it came to be known.
        let _ = self.driver.disown_stream(stream);
    }
}

impl Hook {
    /// Marks what was enqueued so far on the current device, before it is synchronised.
    pub(crate) fn mark(&self) -> Option<(&SharedPool, Mark)> {
        let device = self.device_of(self.current_context())?;
        let pool = &*device.pool_if_any()?.pool;
        Some((pool, pool.mark().ok()?))
    }
}

/// A stream as the driver's type.
pub(crate) fn raw(stream: StreamId) -> Handle {
    ptr::with_exposed_provenance_mut(usize::try_from(stream.0).unwrap_or_default())
}
