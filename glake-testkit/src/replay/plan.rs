//! A trace, made ready for a fast loop.

use std::collections::HashMap;

use glake_core::trace::{Event, Op, TraceError};

/// One operation of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Allocate `bytes` for the object in `slot`.
    Allocate {
        /// Where the object is kept while it lives.
        slot: u32,
        /// Index of the stream.
        stream: u32,
        /// Size in bytes.
        bytes: u64,
    },
    /// Free the object in `slot`.
    Free {
        /// Where the object is kept while it lives.
        slot: u32,
    },
}

/// A trace whose objects bear small numbers, *slots*, that are used again after a free.
///
/// A free happens where it is complete; that it was asked for earlier is no operation.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The operations in order.
    pub steps: Vec<Step>,
    /// The time of each in microseconds.
    pub at_us: Vec<u64>,
    /// The number of slots: the most objects that live at a time.
    pub n_slots: usize,
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
        let mut unused: Vec<u32> = Vec::new();
        let mut live_bytes: u64 = 0;
        for event in events {
            let Event { op, id, at_us } = event?;
            let step = match op {
                Op::AskFree => continue,
                Op::Allocate { bytes, stream } => {
                    let slot = unused.pop().unwrap_or_else(|| {
                        plan.n_slots += 1;
                        u32::try_from(plan.n_slots - 1).expect("fewer than 2^32 live objects")
                    });
                    plan.n_streams = plan.n_streams.max(stream as usize + 1);
                    live.insert(id, (slot, bytes));
                    live_bytes = live_bytes.saturating_add(bytes);
                    plan.peak_requested_bytes = plan.peak_requested_bytes.max(live_bytes);
                    Step::Allocate { slot, stream, bytes }
                }
                Op::Free => {
                    let (slot, bytes) = live.remove(&id).expect("the reader checks ids");
                    live_bytes = live_bytes.saturating_sub(bytes);
                    unused.push(slot);
                    Step::Free { slot }
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
