//! A trace, made ready for a fast loop.

use std::collections::HashMap;

use glake_core::trace::{Event, Op, TraceError};

/// One operation of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate `bytes` for `object`.
    Allocate {
        /// Index of the object.
        object: u32,
        /// Index of the stream.
        stream: u32,
        /// Size in bytes.
        bytes: u64,
    },
    /// Free `object`.
    Free {
        /// Index of the object.
        object: u32,
    },
}

/// A trace whose objects are numbered 0, 1, 2... in order of allocation.
///
/// A free happens where it is complete; that it was asked for earlier is no operation.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The operations in order.
    pub steps: Vec<Step>,
    /// The time of each in microseconds.
    pub at_us: Vec<u64>,
    /// The number of objects.
    pub n_objects: usize,
    /// The number of streams.
    pub n_streams: usize,
    /// The largest sum of sizes of objects between allocation and complete free.
    pub peak_requested_bytes: u64,
}

impl Plan {
    /// The plan of a trace.
    ///
    /// # Errors
    /// The first error of the trace.
    pub fn from_events(
        events: impl IntoIterator<Item = Result<Event, TraceError>>,
    ) -> Result<Self, TraceError> {
        let mut plan = Self::default();
        let mut live: HashMap<u64, (u32, u64)> = HashMap::new();
        let mut live_bytes: u64 = 0;
        for event in events {
            let Event { op, id, at_us } = event?;
            let step = match op {
                Op::AskFree => continue,
                Op::Allocate { bytes, stream } => {
                    let object = u32::try_from(plan.n_objects).expect("fewer than 2^32 objects");
                    plan.n_objects += 1;
                    plan.n_streams = plan.n_streams.max(stream as usize + 1);
                    live.insert(id, (object, bytes));
                    live_bytes = live_bytes.saturating_add(bytes);
                    plan.peak_requested_bytes = plan.peak_requested_bytes.max(live_bytes);
                    Step::Allocate { object, stream, bytes }
                }
                Op::Free => {
                    let (object, bytes) = live.remove(&id).expect("the reader checks ids");
                    live_bytes = live_bytes.saturating_sub(bytes);
                    Step::Free { object }
                }
            };
            plan.steps.push(step);
            plan.at_us.push(at_us);
        }
        Ok(plan)
    }

    /// The index of the first operation of the last third.
    #[must_use]
    pub const fn last_third(&self) -> usize {
        self.steps.len() - self.steps.len() / 3
    }

    /// Milliseconds from operation `first` to the last one.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn wall_ms_from(&self, first: usize) -> f64 {
        let start = self.at_us.get(first).copied().unwrap_or(0);
        let end = self.at_us.last().copied().unwrap_or(0);
        end.saturating_sub(start) as f64 / 1e3
    }
}
