//! Any bytes as a program for the pool.
#![no_main]
#![allow(missing_docs, clippy::unwrap_used, reason = "a fuzz target panics to fail")]

#[path = "../../tests/corpus/program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| program::run(bytes));
