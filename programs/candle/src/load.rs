//! The program `load`: a checkpoint from files to a device, by candle or by glake.
#![allow(clippy::print_stdout, reason = "programs talk to people")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use glake_candle::{Checkpoint, Glake};
use serde::Serialize;

use crate::Outcome;
use crate::args::{LoadArgs, Switch};
use crate::files::Layout;
use crate::memory::Memory;

#[derive(Debug, Serialize)]
struct Report {
    program: &'static str,
    device: String,
    glake: bool,
    n_tensors: usize,
    n_shards: usize,
    bytes: u64,
    /// Of each round, until all tensors are there. The first has to get memory, and what is made once.
    seconds: Vec<f64>,
    /// 10^9 bytes per second, in the first round and in the fastest.
    first_gb_per_s: f64,
    best_gb_per_s: f64,
    /// Bytes that were read back and are those of the files: all, or it fails.
    verified_bytes: u64,
}

/// A folder that goes when it is dropped, if it is the program's own.
struct Folder {
    path: PathBuf,
    is_own: bool,
}

impl Folder {
    fn of(args: &LoadArgs) -> Self {
        let own = || std::env::temp_dir().join(format!("glake-candle-load-{}", std::process::id()));
        Self { path: args.dir.clone().unwrap_or_else(own), is_own: args.dir.is_none() }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_own {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

pub(crate) fn run(args: &LoadArgs) -> Outcome {
    let common = &args.common;
    let mut memory = Memory::prepare(common)?;
    let device = common.device.device()?;
    memory.attach(&device)?;
    let layout = Layout::new(common.dtype, args.dim, args.file_bytes, common.seed);
    let folder = Folder::of(args);
    layout.write(&folder.path)?;
    let (mut seconds, mut verified_bytes) = (Vec::new(), 0);
    for round in 1..=args.rounds {
        let (tensors, time) = timed(|| load(&layout, &folder.path, common.dtype.dtype(), &device))?;
        seconds.push(time);
        if round == args.rounds {
            verified_bytes = verify(&layout, &tensors)?;
        }
        drop(tensors);
        device.synchronize()?;
    }
    let rate = |seconds: f64| gb(layout.bytes()) / seconds;
    let report = Report {
        program: "load",
        device: common.device.to_string(),
        glake: common.glake == Switch::On,
        n_tensors: layout.weights().count(),
        n_shards: layout.n_shards(),
        bytes: layout.bytes(),
        first_gb_per_s: rate(seconds[0]),
        best_gb_per_s: rate(seconds.iter().copied().fold(f64::INFINITY, f64::min)),
        seconds,
        verified_bytes,
    };
    if common.json {
        println!("{}", serde_json::to_string(&report)?)
    } else {
        print(&report)
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[allow(clippy::disallowed_methods, reason = "it measures; nothing is decided by it")]
fn timed<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, f64)> {
    let start = Instant::now();
    let done = work()?;
    Ok((done, start.elapsed().as_secs_f64()))
}

/// All tensors, in the order of the layout, through a `VarBuilder` as models ask for them.
fn load(layout: &Layout, folder: &Path, dtype: DType, device: &Device) -> Outcome<Vec<Tensor>> {
    let builder = match Glake::installed() {
        Some(glake) => {
            VarBuilder::from_tensors(glake.load(&Checkpoint::open(folder)?, device)?, dtype, device)
        }
        None => mapped(&layout.paths(folder), dtype, device)?,
    };
    let get = |weight: &crate::files::Weight| builder.get_unchecked(&weight.name);
    let tensors = layout.weights().map(get).collect::<candle_core::Result<_>>()?;
    device.synchronize()?;
    Ok(tensors)
}

#[allow(unsafe_code, reason = "candle maps files")]
fn mapped(paths: &[PathBuf], dtype: DType, device: &Device) -> candle_core::Result<VarBuilder<'static>> {
    // SAFETY: the files are the program's, and nobody changes them.
    unsafe { VarBuilder::from_mmaped_safetensors(paths, dtype, device) }
}

fn verify(layout: &Layout, tensors: &[Tensor]) -> Outcome<u64> {
    let mut verified_bytes = 0;
    for (weight, tensor) in layout.weights().zip(tensors) {
        let shape: Vec<u64> = tensor.dims().iter().map(|length| *length as u64).collect();
        if shape != weight.shape || !layout.is(weight, &bytes(tensor)?) {
            return Err(format!("{} is not what the file has", weight.name).into());
        }
        verified_bytes += weight.bytes;
    }
    Ok(verified_bytes)
}

/// A tensor's bytes, on the host.
fn bytes(tensor: &Tensor) -> candle_core::Result<Vec<u8>> {
    let flat = tensor.flatten_all()?;
    Ok(match tensor.dtype() {
        DType::BF16 => flat.to_vec1::<half::bf16>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
        _ => flat.to_vec1::<f32>()?.iter().flat_map(|value| value.to_le_bytes()).collect(),
    })
}

fn print(report: &Report) {
    let by = if report.glake { "by glake" } else { "by candle" };
    println!("load to {}, {by}", report.device);
    println!(
        "tensors          {} in {} files, {:.2} GB",
        report.n_tensors,
        report.n_shards,
        gb(report.bytes)
    );
    let seconds: Vec<_> = report.seconds.iter().map(|seconds| format!("{seconds:.3}")).collect();
    println!("seconds          {}", seconds.join(" "));
    println!(
        "rate             {:.2} GB/s first, {:.2} GB/s best",
        report.first_gb_per_s, report.best_gb_per_s
    );
    println!("verified         {} bytes", report.verified_bytes);
}
