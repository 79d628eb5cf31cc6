//! Memory in pieces, used in one piece. Runs without a GPU: `cargo run --example quickstart`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use glake::sim::SimDriver;
use glake::{AllocError, DeviceId, Pool};

fn main() -> Result<(), AllocError> {
    let driver = SimDriver::h200(1); // on a GPU: glake::cuda::open()?
    let pool = Pool::builder(driver, DeviceId(0)).limit_bytes(192 << 20).build()?;
    let stream = pool.stream();
    let a = pool.alloc::<f32>(16 << 20, stream)?; // 64 MiB
    let b = pool.alloc::<f32>(16 << 20, stream)?;
    let c = pool.alloc::<f32>(16 << 20, stream)?;
    drop((a, c)); // 128 MiB are free, but not in one piece: b lies between them
    let mut d = pool.alloc::<f32>(32 << 20, stream)?; // one piece all the same
    d.copy_from_slice(&vec![1.0; d.len()])?;
    println!("{b:?}\n{d:?}\n{}", pool.stats());
    Ok(())
}
