//! Memory of captured graphs.
//!
//! A graph keeps the addresses that its kernels were captured with, and uses them whenever it is
//! launched. So what a stream allocates while it is captured, and what is freed there, belongs to
//! the graph: later requests of the capture may have it, nobody else, and its handles stay where
//! they are, until the graph is gone. In the pool's eyes a captured stream is one whose work never
//! ends.

use std::sync::{Arc, Mutex, PoisonError};

use glake_core::alloc::AllocError;
use glake_core::driver::DriverError;
use glake_core::units::StreamId;

use crate::order::StreamIndex;
use crate::pool::StitchPool;

/// How the launches of a graph ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launches {
    Done,
    MayBePending,
}

/// Graphs that are gone since the pool looked last.
#[derive(Debug, Default)]
pub(crate) struct Gone(Arc<Mutex<Vec<(StreamIndex, Launches)>>>);

/// The memory of a graph under capture or captured, for as long as the graph may be launched. It does not
/// keep the pool alive: a launch behind the pool's end finds nothing mapped.
///
/// Dropping it gives the memory back once the work enqueued until then is done.
/// [`finished`](Self::finished) gives it back at once. Both only leave a note, which the pool finds
/// when it next looks for memory: they may be called from anywhere, such as the destructor of a user
/// object that the graph retains (`cuGraphRetainUserObject`), where no call of CUDA is allowed.
#[derive(Debug)]
#[must_use = "the memory of the graph goes back to the pool when this is dropped"]
pub struct GraphMemory {
    /// The streams of the capture.
    streams: Vec<StreamIndex>,
    gone: Arc<Mutex<Vec<(StreamIndex, Launches)>>>,
    launches: Launches,
}

impl GraphMemory {
    /// Gives the memory back at once: the graph is gone and no launch of it is pending.
    pub fn finished(mut self) {
        self.launches = Launches::Done;
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.extend(self.streams.iter().map(|&stream| (stream, self.launches)));
    }
}

impl StitchPool {
    /// Serves `stream` with memory of a graph from now on until [`end_capture`](Self::end_capture).
    /// To be called before the capture begins: from then on no call of the pool breaks it, from whatever
    /// thread.
    ///
    /// Allocations that are alive at the end of the capture stay alive, and may be freed as any
    /// other; their memory stays with the graph all the same. Requests of the capture make driver
    /// calls where the graph's memory does not suffice (create, map, set access, event queries; a wait
    /// for the other streams before one fails for lack of memory), none on the captured stream.
    ///
    /// # Errors
    /// As [`join_capture`](Self::join_capture).
    pub fn begin_capture(&mut self, stream: StreamId) -> Result<GraphMemory, AllocError> {
        let gone = Arc::clone(&self.gone.0);
        let mut memory = GraphMemory { streams: Vec::new(), gone, launches: Launches::MayBePending };
        self.join_capture(&mut memory, stream)?;
        Ok(memory)
    }

    /// Serves another stream that takes part in the capture of `memory`, which is to be called
    /// before the first allocation there.
    ///
    /// # Errors
    /// [`AllocError::TooManyStreams`]; [`DriverError::Capturing`] if the stream takes part in a capture
    /// already; [`DriverError::InvalidValue`] if the memory is another pool's.
    pub fn join_capture(&mut self, memory: &mut GraphMemory, stream: StreamId) -> Result<(), AllocError> {
        self.collect_graphs();
        if !Arc::ptr_eq(&memory.gone, &self.gone.0) {
            return Err(DriverError::InvalidValue("the memory of the graph is another pool's").into());
        }
        let under = self.index_of(stream)?;
        if self.order.is_captured(under) {
            return Err(DriverError::Capturing(stream).into());
        }
        let index = if let Some(index) = self.order.begin_capture(stream) {
            index
        } else {
            self.order.find_ended(&*self.driver);
            self.order.begin_capture(stream).ok_or(AllocError::TooManyStreams)?
        };
        memory.streams.push(index);
        Ok(())
    }

    /// Serves `stream` as any other again: its capture is over.
    pub fn end_capture(&mut self, stream: StreamId) {
        self.order.end_capture(stream);
    }

    /// Takes the memory of graphs back that are gone.
    pub(crate) fn collect_graphs(&mut self) {
        let gone = std::mem::take(&mut *self.gone.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (stream, launches) in gone {
            match launches {
                Launches::Done => self.order.vacate(stream, &*self.driver),
                Launches::MayBePending => self.order.uncapture(stream, &*self.driver),
            }
        }
    }
}
