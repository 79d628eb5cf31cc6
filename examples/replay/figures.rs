//! What a replay is about.

use std::collections::BTreeMap;

use serde::Serialize;

/// The figures of one trace.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Name of the trace.
    pub trace: String,
    /// The allocator.
    pub policy: &'static str,
    /// The mode of glake's pool.
    pub mode: &'static str,
    /// `sim`, or the GPU.
    pub device: String,
    /// Where the streams are from: `recorded`, or how they were made up.
    pub streams: &'static str,
    /// How many there are.
    pub n_streams: usize,
    /// How far the simulated GPU lags behind the host, in milliseconds of the trace's time.
    pub gpu_lag_ms: f64,
    /// Allocations and frees.
    pub ops: usize,
    /// The most physical bytes, if limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// The largest sum of live sizes as asked for, an object living until its free is complete.
    pub peak_requested_bytes: u64,
    /// The most physical memory held, by the driver's ledger.
    pub peak_physical_bytes: u64,
    /// The former over the latter.
    pub utilization: f64,
    /// Driver calls made in all operations and to set the pool up.
    pub driver_calls: u64,
    /// Those of the last third of the operations.
    pub driver_calls_last_third: u64,
    /// Milliseconds in those calls: modelled on `sim`, measured on a GPU.
    pub driver_ms: f64,
    /// Those of the last third of the operations.
    pub driver_ms_last_third: f64,
    /// Calls of all operations and to set the pool up, by kind; kinds that were never used are left
    /// out.
    pub driver_calls_by_call: BTreeMap<&'static str, u64>,
    /// Milliseconds in them.
    pub driver_ms_by_call: BTreeMap<&'static str, f64>,
    /// Events recorded.
    pub events: u64,
    /// Streams made to wait for an event: of another stream, if the allocator knows what it does.
    pub waits: u64,
    /// These for each second of the trace by its own timestamps.
    pub waits_per_s: f64,
    /// Times that the host was blocked.
    pub synchronizations: u64,
    /// Bytes of all frees, as asked for.
    pub freed_bytes: u64,
    /// Events recorded for each 16 MiB freed.
    pub events_per_16mib_freed: f64,
    /// Gathers of free handles into one run; none where the allocator knows none.
    pub gathers: u64,
    /// Milliseconds of the trace by its own timestamps.
    pub wall_ms: f64,
    /// Those of the last third of the operations.
    pub wall_ms_last_third: f64,
    /// The most driver time that a single allocation took, in milliseconds.
    pub longest_allocation_ms: f64,
    /// The bytes that this allocation mapped.
    pub longest_allocation_mapped_bytes: u64,
    /// The most by which an allocation exceeded 1 ms and 8 ms (`compact`: 30) for each GiB that it
    /// mapped; negative if all were within.
    pub longest_allocation_over_budget_ms: f64,
    /// Host nanoseconds per operation of a whole loop without clocks, the fastest of three on
    /// `sim`, a single one on a GPU. Not reported with a check on `sim`, or with the oracle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_op_mean: Option<f64>,
    /// Allocations that were refused; their frees were skipped.
    pub failed_allocations: u64,
    /// The reason of the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
    /// Frees that failed: a broken pool.
    pub failed_frees: u64,
    /// What the oracle found.
    #[serde(flatten)]
    pub check: Option<Checked>,
    /// What the patterns found.
    #[serde(flatten)]
    pub bytes: Option<CheckedBytes>,
}

/// What the oracle found wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Allocations with a byte whose last owner's work was not known to be done first.
    pub out_of_order_reuses: u64,
    /// Allocations that shared a byte with a live one.
    pub overlaps: u64,
    /// Allocations that were not mapped throughout.
    pub unmapped: u64,
    /// Allocations whose memory was exchanged while they lived.
    pub moved: u64,
}

/// What the patterns found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckedBytes {
    /// Gathers that happened while work submitted before them was pending.
    pub pending_gathers: u64,
    /// 8-byte words that were wrong at a free.
    pub corrupted_words: u64,
}
