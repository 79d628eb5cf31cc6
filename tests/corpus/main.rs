//! What a fuzzer found worth keeping, run once more: `fuzz/corpus`.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]
#![allow(clippy::panic, reason = "tests panic to fail")]

use std::fs;
use std::path::Path;

mod program;
mod trace;

/// Runs every file of the corpus of `target`, in the order of their names.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "the corpus of {target} is not there");
    for file in files {
        // Shown where the run panics.
        eprintln!("{}", file.display());
        run(&fs::read(&file).unwrap());
    }
}

#[test]
fn traces() {
    replay("trace", trace::run);
}

#[test]
fn programs() {
    replay("program", program::run);
}
