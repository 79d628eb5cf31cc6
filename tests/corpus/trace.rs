//! Any bytes as a trace.

use glake_core::trace::{Event, Writer, decode};

/// Reads `bytes` as a trace. What is a trace in them is written and read once more, and stays equal.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(reader) = decode(bytes) else { return };
    let events: Vec<Event> = reader.filter_map(Result::ok).collect();
    for mut writer in [Writer::new(Vec::new()), Writer::gzip(Vec::new())] {
        for event in &events {
            writer.write(event).unwrap();
        }
        let written = writer.finish().unwrap();
        let again: Vec<Event> = decode(&written[..]).unwrap().map(Result::unwrap).collect();
        assert_eq!(again, events);
    }
}
