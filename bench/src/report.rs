//! The figures, as a table and as JSON.

use serde::Serialize;

use crate::contest::Sharing;

/// One contestant in one case.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) mix: &'static str,
    pub(crate) n_free: usize,
    pub(crate) n_threads: usize,
    pub(crate) contestant: &'static str,
    pub(crate) sharing: Sharing,
    /// Time from the first start to the last end, over the pairs of all threads; median of the rounds.
    pub(crate) ns_per_pair: f64,
    /// The same over that of glake with the same sharing.
    pub(crate) to_glake: f64,
    pub(crate) device_calls_per_pair: f64,
    pub(crate) rounds_ns: Vec<f64>,
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Fills in the ratios.
pub(crate) fn compare(rows: &mut [Row]) {
    for sharing in [Sharing::Own, Sharing::Shared] {
        let glake = rows.iter().find(|row| row.contestant == "glake" && row.sharing == sharing);
        let Some(glake_ns) = glake.map(|row| row.ns_per_pair) else { continue };
        for row in rows.iter_mut().filter(|row| row.sharing == sharing) {
            row.to_glake = row.ns_per_pair / glake_ns;
        }
    }
}

pub(crate) fn print_head() {
    println!(
        "| sizes | free intervals | threads | pool | contestant | ns/pair | lowest-highest | to glake | device calls/pair |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
}

pub(crate) fn print(rows: &[Row]) {
    for row in rows {
        let lowest = row.rounds_ns.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = row.rounds_ns.iter().copied().fold(0.0, f64::max);
        let pool = if row.sharing == Sharing::Own { "own" } else { "shared" };
        println!(
            "| {} | {} | {} | {pool} | {} | {:.1} | {lowest:.1}-{highest:.1} | {:.2} | {:.3} |",
            row.mix,
            row.n_free,
            row.n_threads,
            row.contestant,
            row.ns_per_pair,
            row.to_glake,
            row.device_calls_per_pair
        );
    }
}
