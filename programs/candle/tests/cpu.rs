//! The programs as a user runs them, on the CPU.

use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_glake-candle-programs"))
        .args(arguments.split_whitespace())
        .args(["--device", "cpu"])
        .output()
        .unwrap()
}

fn report(arguments: &str) -> Value {
    let output = run(&format!("{arguments} --json"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const TRAIN: &str = "train --steps 24 --batch-min 1 --batch-max 4 --len-min 8 --len-max 32 --layers 2 --heads 2 --dim 32 \
     --learning-rate 3e-3";
const GENERATE: &str = "generate --prompts 3 --tokens 8 --batch-min 1 --batch-max 3 --len-min 8 --len-max 24 --layers 2 --heads 4 \
     --dim 32";

fn losses(report: &Value) -> Vec<f64> {
    report["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

#[test]
fn training_learns_and_repeats_to_the_bit() {
    for dtype in ["f32", "bf16"] {
        let run = || report(&format!("{TRAIN} --dtype {dtype}"));
        let (first, second) = (run(), run());
        assert_eq!(first["hash"], second["hash"], "{dtype}");
        assert_eq!(first["losses"], second["losses"], "{dtype}");
        let losses = losses(&first);
        assert_eq!(losses.len(), 24);
        assert!((losses[0] - 128f64.ln()).abs() < 0.1, "{dtype} {losses:?}");
        assert!(losses[23] < losses[0] - 0.5, "{dtype} {losses:?}");
    }
}

#[test]
fn another_seed_or_dtype_is_another_result() {
    let first = report(TRAIN);
    for other in ["--seed 2", "--dtype bf16", "--len-max 40"] {
        assert_ne!(first["hash"], report(&format!("{TRAIN} {other}"))["hash"], "{other}");
    }
}

#[test]
fn generation_repeats_to_the_bit() {
    for dtype in ["f32", "bf16"] {
        let run = || report(&format!("{GENERATE} --dtype {dtype}"));
        let (first, second) = (run(), run());
        assert_eq!(first["hash"], second["hash"], "{dtype}");
        let logits = losses(&first);
        assert!(logits.iter().all(|logit| logit.is_finite()), "{dtype} {logits:?}");
        let distinct: std::collections::BTreeSet<_> = logits.iter().map(|logit| logit.to_bits()).collect();
        assert!(distinct.len() > 10, "{dtype} {logits:?}");
    }
}

#[test]
#[cfg(not(feature = "cuda"))]
fn glake_without_cuda_is_refused_with_advice() {
    let output = run(&format!("{TRAIN} --glake on"));
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("glake is not active"), "{error}");
}

#[test]
fn a_checkpoint_is_loaded_and_every_byte_is_seen() {
    for dtype in ["f32", "bf16"] {
        let report = report(&format!("load --dim 64 --file-bytes 20MiB --rounds 2 --dtype {dtype}"));
        let bytes = report["bytes"].as_u64().unwrap();
        assert!(bytes > 19 << 20 && bytes <= 20 << 20, "{report}");
        assert_eq!(report["verified_bytes"], report["bytes"]);
        assert_eq!(report["seconds"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn a_checkpoint_that_is_there_is_not_written_again() {
    let folder = std::env::temp_dir().join(format!("glake-candle-cpu-{}", std::process::id()));
    let arguments = format!("load --dim 64 --file-bytes 1MiB --rounds 1 --dir {}", folder.display());
    report(&arguments);
    let file = folder.join("model-00001-of-00001.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let output = run(&arguments);
    std::fs::remove_dir_all(&folder).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("is not what the file has"), "{error}");
}

#[test]
fn empty_ranges_are_refused() {
    let output = run("train --batch-min 8 --batch-max 4");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("batch and length are at least 1"));
}

#[test]
fn a_report_for_people_has_the_same_hash() {
    let output = run(GENERATE);
    let text = String::from_utf8_lossy(&output.stdout);
    let hash = report(GENERATE)["hash"].as_str().unwrap().to_owned();
    assert!(text.contains(&format!("hash of results  {hash}")), "{text}");
}
