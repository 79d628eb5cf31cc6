//! The table for people.

use std::fmt::{self, Display};

use crate::figures::Figures;

/// Prints as a table of one trace.
#[derive(Debug)]
pub struct Table<'a>(pub &'a Figures);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.0;
        let mut row = |name: &str, value: &dyn Display| writeln!(f, "  {name:<26} {value}");
        row("trace", &figures.trace)?;
        row("policy", &format_args!("{} ({}) on {}", figures.policy, figures.mode, figures.device))?;
        row("operations", &format_args!("{} on {} streams", figures.ops, figures.n_streams))?;
        if figures.gpu_lag_ms > 0.0 {
            row("lag of the GPU", &format_args!("{} ms", figures.gpu_lag_ms))?;
        }
        if let Some(bytes) = figures.limit_bytes {
            row("limit", &Mib(bytes))?;
        }
        row("peak requested", &Mib(figures.peak_requested_bytes))?;
        row("peak physical", &Mib(figures.peak_physical_bytes))?;
        row("utilization", &format_args!("{:.2} %", 100.0 * figures.utilization))?;
        row("driver calls", &Thirds(figures.driver_calls, figures.driver_calls_last_third))?;
        let share = |ms: f64, wall_ms: f64| format!("{ms:.1} ms ({:.2} %)", percent(ms, wall_ms));
        let whole = share(figures.driver_ms, figures.wall_ms);
        let last = share(figures.driver_ms_last_third, figures.wall_ms_last_third);
        row("driver time (of wall)", &Thirds(whole, last))?;
        for (call, n) in &figures.driver_calls_by_call {
            let ms = figures.driver_ms_by_call.get(call).copied().unwrap_or_default();
            row(&format!("  {call}"), &format_args!("{n:>8} calls {ms:>10.2} ms"))?;
        }
        if figures.n_streams > 1 {
            row(
                "waits of streams",
                &format_args!("{} ({:.1} a second)", figures.waits, figures.waits_per_s),
            )?;
            let per_16mib = figures.events_per_16mib_freed;
            row("events", &format_args!("{} ({per_16mib:.3} for each 16 MiB freed)", figures.events))?;
            row("waits of the host", &figures.synchronizations)?;
        }
        row("gathers", &figures.gathers)?;
        row(
            "longest allocation",
            &format_args!(
                "{:.2} ms, mapping {}; {:+.2} ms against the budget",
                figures.longest_allocation_ms,
                Mib(figures.longest_allocation_mapped_bytes),
                figures.longest_allocation_over_budget_ms
            ),
        )?;
        if let Some(ns) = figures.ns_per_op_mean {
            row("host time per operation", &format_args!("{ns:.0} ns"))?;
        }
        row("failed allocations", &figures.failed_allocations)?;
        if let Some(reason) = &figures.first_failure {
            row("first failure", reason)?;
        }
        if figures.failed_frees > 0 {
            row("failed frees", &figures.failed_frees)?;
        }
        if let Some(check) = figures.check {
            row("out-of-order reuses", &check.out_of_order_reuses)?;
            row("overlaps", &check.overlaps)?;
            row("unmapped, moved", &format_args!("{}, {}", check.unmapped, check.moved))?;
        }
        if let Some(bytes) = figures.bytes {
            row("gathers under pending work", &bytes.pending_gathers)?;
            row("corrupted words", &bytes.corrupted_words)?;
        }
        Ok(())
    }
}

/// The whole run, and its last third.
struct Thirds<T>(T, T);

impl<T: Display> Display for Thirds<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, last third {}", self.0, self.1)
    }
}

struct Mib(u64);

impl Display for Mib {
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}
