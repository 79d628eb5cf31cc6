//! glake beside the CUDA driver on one GPU: the host time of allocations, and the rate of copies
//! by copy engine and by kernel over large and small handles.
//!
//! `cargo run --release -p glake-cuda --example gpu_compare [-- pairs|copies]`. Lines that begin
//! with `bar` say what glake wants to reach. Without a GPU it says so and does nothing.
#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::disallowed_methods, reason = "an example measures time")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::env;
use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use glake_core::units::{DeviceId, StreamId};
use glake_cuda::{CudaDriver, Foreign};

mod copies;
mod pairs;
mod raw;

const DEVICE: DeviceId = DeviceId(0);

/// The driver, and a stream of cudarc's that it knows.
struct Machine {
    driver: CudaDriver,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    id: StreamId,
}

impl Machine {
    fn open(driver: CudaDriver) -> Result<Self, Box<dyn Error>> {
        let context = CudaContext::new(0)?;
        let stream = context.new_stream()?;
        let id = StreamId(stream.cu_stream().expose_provenance() as u64);
        // SAFETY: the stream is kept beside the driver until the program ends.
        unsafe { driver.adopt(Foreign::Stream { stream: id, device: DEVICE }) }?;
        Ok(Self { driver, context, stream, id })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let driver = match glake_cuda::open() {
        Ok(driver) => driver,
        Err(error) => {
            println!("nothing to compare: {error}");
            return Ok(());
        }
    };
    let machine = Machine::open(driver)?;
    let only = env::args().nth(1).filter(|arg| !arg.starts_with('-'));
    let wanted = |name: &str| only.as_deref().is_none_or(|only| only == name);
    if wanted("pairs") {
        pairs::compare(&machine)?;
    }
    if wanted("copies") {
        copies::compare(&machine)?;
    }
    Ok(())
}

/// The middle one of some figures.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// A line for a summary: whether a figure reaches what it should.
fn bar(what: &str, figure: f64, at_least: f64) {
    let verdict = if figure >= at_least { "reached" } else { "MISSED" };
    println!("bar {what}: {figure:.2} (wanted {at_least}) {verdict}");
}
