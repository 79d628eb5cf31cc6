//! The beginning of a trace.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use glake_core::trace::{self, Writer};

/// Writes the first `n_events` events of the trace at `from` to `to`, gzip. Objects that live
/// across the cut have no free.
pub fn cut(from: &Path, to: &Path, n_events: usize) -> Result<(), Box<dyn Error>> {
    let mut writer = Writer::gzip(File::create(to)?);
    for event in trace::open(from)?.take(n_events) {
        writer.write(&event?)?;
    }
    writer.finish()?;
    Ok(())
}
