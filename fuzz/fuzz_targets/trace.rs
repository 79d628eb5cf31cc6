//! Any bytes as a trace.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target panics to fail")]

#[path = "../../tests/corpus/trace.rs"]
mod trace;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trace::run(bytes));
