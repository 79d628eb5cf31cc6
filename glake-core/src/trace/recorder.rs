//! Events of a running program.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use super::{Event, Op, Writer};
use crate::units::{DevicePtr, StreamId};

/// Tells microseconds since the start of a recording.
pub type Clock = Box<dyn FnMut() -> u64 + Send>;

/// Writes what a program allocates and frees as a trace: addresses become ids, streams small numbers.
///
/// Lines are gathered in memory. [`make_room`](Self::make_room) hands them to the output; where that
/// fails nothing is lost, and they wait.
///
/// ```
/// use glake_core::trace::{Recorder, Writer};
/// use glake_core::units::{DevicePtr, StreamId};
/// let mut recorder = Recorder::new(Writer::new(Vec::new()), Box::new(|| 7));
/// recorder.allocated(DevicePtr(0x200), 512, StreamId(0x55));
/// recorder.freed(DevicePtr(0x200));
/// assert_eq!(recorder.finish()?, b"# glake-trace v1\na,0,512,0,7\nf,0,,,7\n");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Recorder<W: Write> {
    writer: Writer<W>,
    clock: Clock,
    live: HashMap<DevicePtr, u64>,
    streams: HashMap<StreamId, u32>,
    next_id: u64,
}

impl<W: Write> Recorder<W> {
    /// A recorder over `writer` with the time of `clock`.
    pub fn new(writer: Writer<W>, clock: Clock) -> Self {
        Self { writer, clock, live: HashMap::new(), streams: HashMap::new(), next_id: 0 }
    }

    /// Hands the lines to the output if there are many.
    ///
    /// # Errors
    /// That of the output; the lines wait in memory.
    pub fn make_room(&mut self) -> io::Result<()> {
        self.writer.make_room()
    }

    /// Writes that `bytes` were allocated at `ptr` on `stream`.
    pub fn allocated(&mut self, ptr: DevicePtr, bytes: u64, stream: StreamId) {
        let new_stream = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        let stream = *self.streams.entry(stream).or_insert(new_stream);
        let id = self.next_id;
        self.next_id += 1;
        self.live.insert(ptr, id);
        self.push(Op::Allocate { bytes, stream }, id);
    }

    /// Writes that the allocation at `ptr` was freed, if it was written that it was allocated.
    pub fn freed(&mut self, ptr: DevicePtr) {
        if let Some(id) = self.live.remove(&ptr) {
            self.push(Op::Free, id);
        }
    }

    /// Ends the trace and returns the output.
    ///
    /// # Errors
    /// That of the output; the rest of the trace is lost then.
    pub fn finish(self) -> io::Result<W> {
        self.writer.finish()
    }

    fn push(&mut self, op: Op, id: u64) {
        let at_us = (self.clock)();
        self.writer.push(&Event { op, id, at_us });
    }
}

impl<W: Write> fmt::Debug for Recorder<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("writer", &self.writer)
            .field("n_live", &self.live.len())
            .finish_non_exhaustive()
    }
}
