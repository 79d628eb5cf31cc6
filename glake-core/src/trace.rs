//! Allocation traces: what a program allocated and freed, and when.
//!
//! A trace is text, plain or gzip, one event a line; `#` starts a comment line and blank lines
//! are skipped:
//!
//! ```text
//! # glake-trace v1
//! a,<id>,<bytes>,<stream>,<microseconds>   allocate
//! r,<id>,,,<microseconds>                  free asked for; other streams may still use it
//! f,<id>,,,<microseconds>                  free complete: the memory may be reused
//! ```
//!
//! Without an `r` line the free is asked for and complete at the `f` line. An id names one object
//! from its `a` to its `f` line and may be used again after that; objects without an `f` line
//! live to the end. Streams are small numbers in order of appearance. The order of the events is
//! the order of the *lines*: timestamps inform, and may stand still or go back, as they do where
//! several threads record.
//!
//! ```
//! use glake_core::trace::{Op, Reader};
//! let text = "# glake-trace v1\na,7,512,0,10\nf,7,,,25\n";
//! let events: Vec<_> = Reader::new(text.as_bytes()).collect::<Result<_, _>>()?;
//! assert_eq!(events[0].op, Op::Allocate { bytes: 512, stream: 0 });
//! assert_eq!((events[1].id, events[1].at_us), (7, 25));
//! # Ok::<(), glake_core::trace::TraceError>(())
//! ```

mod error;
mod line;
mod read;
mod recorder;
#[cfg(test)]
mod tests;
mod write;

pub use error::{Field, TraceError, TraceErrorKind};
pub use read::{Reader, decode, open};
pub use recorder::{Clock, Recorder};
pub use write::Writer;

/// The first line of a trace.
const HEADER: &str = "# glake-trace v1";

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// What happened.
    pub op: Op,
    /// The object that it happened to.
    pub id: u64,
    /// When, in microseconds since the start of the recording.
    pub at_us: u64,
}

/// What happened to an object of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// It was allocated.
    Allocate {
        /// Its size as the program asked for; never zero.
        bytes: u64,
        /// The stream that it was allocated on.
        stream: u32,
    },
    /// Its free was asked for on its stream, while other streams may still use it.
    AskFree,
    /// Its free is complete: the memory may be reused.
    Free,
}
