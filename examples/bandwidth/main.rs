//! How fast bytes get to a GPU and back, by plain copies and by the transfer engine.
//!
//!     cargo run --release --example bandwidth -- [--device sim|cuda:N] [--from BYTES] [--to BYTES] [--json]
//!
//! On a machine with several GPUs the engine's last column takes all their links. GB are 10^9 bytes.
#![allow(clippy::print_stdout, reason = "an example talks to people")]
#![allow(clippy::cast_precision_loss, reason = "rates are shown with few digits")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use glake::driver::{Driver, HostBytes};
use glake::multipath::{Config, Direction, Engine};
use glake::sim::{Completion, LinkRates, SimConfig};
use glake::units::DeviceId;

use args::Args;
use bytes::{DeviceSide, Pinned};
use device::Device;
use measure::{Copies, Memory, SEED, Submission, Way};
use scattered::Scattered;

mod args;
mod bytes;
#[path = "../shared/device.rs"]
mod device;
mod measure;
mod scattered;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The scattered copies: as many pieces of as many bytes.
const N_PIECES: u64 = 10_000;
const PIECE_BYTES: u64 = 16 << 10;

/// One line: rates in GB/s.
#[derive(Debug, serde::Serialize)]
struct Line {
    direction: &'static str,
    memory: Memory,
    bytes: u64,
    n_pieces: u64,
    plain_gb_per_s: f64,
    one_link_gb_per_s: f64,
    all_links_gb_per_s: f64,
    plain_us: f64,
    one_link_us: f64,
    all_links_us: f64,
}

/// What the machine carries at most.
#[derive(Debug, serde::Serialize)]
struct Ceilings {
    device: String,
    n_links: usize,
    to_device_gb_per_s: f64,
    to_host_gb_per_s: f64,
    /// `None` on the simulated driver, whose clock knows nothing of it.
    memcpy_gb_per_s: Option<f64>,
    memcpy_threads: usize,
}

fn main() -> ExitCode {
    let Err(error) = run(&Args::parse()) else { return ExitCode::SUCCESS };
    eprint!("bandwidth: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprint!(": {error}");
        cause = error.source();
    }
    eprintln!();
    ExitCode::FAILURE
}

fn run(args: &Args) -> Outcome<()> {
    let (driver, device, name) = open(args.device)?;
    let is_simulated = name == "sim";
    let most = args.to.unwrap_or(if is_simulated { 256 << 20 } else { 4 << 30 }).max(args.from).max(8);

    let mut config = Config::new();
    if let Some(n) = args.threads {
        config = config.n_threads(n);
    }
    if let Some(bytes) = args.chunk {
        config = config.chunk_bytes(bytes);
    }
    if let Some(bytes) = args.slot {
        config = config.slot_bytes(bytes);
    }
    if let Some(bytes) = args.stage_from {
        config = config.stage_from_bytes(bytes);
    }
    let one = Engine::new(Arc::clone(&driver), config.clone().relays(Vec::new()))?;
    let all = Engine::new(Arc::clone(&driver), config)?;

    let mut devices = vec![device];
    devices.extend(all.topology().relays_for(device));
    let ceilings = ceilings(&*driver, &name, &devices, args.threads)?;
    if args.json {
        println!("{}", serde_json::to_string(&ceilings)?);
    } else {
        ceilings.show();
        println!("direction  memory         bytes     plain  one link  all links   GB/s");
    }

    let copies =
        Copies { device, side: DeviceSide::new(&*driver, device, most)?, rounds: args.rounds.max(1) };
    for memory in [Memory::Pinned, Memory::Pageable, Memory::File] {
        let pinned = if memory == Memory::Pinned { Pinned::Yes } else { Pinned::No };
        let mut host = bytes::host_memory(&*driver, device, most, pinned)?;
        for direction in [Direction::ToDevice, Direction::ToHost] {
            if (memory, direction) == (Memory::File, Direction::ToHost) {
                continue;
            }
            bytes::fill(&mut *host, SEED);
            let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
            let file = match memory {
                Memory::File => Some(bytes::file(&folder, (*host).as_ref())?),
                _ => None,
            };
            for bytes in sizes(args.from, most) {
                let mut time =
                    |way| copies.time(way, direction, &mut *host as &mut dyn HostBytes, file.as_ref(), bytes);
                let ns = [time(Way::Plain)?, time(Way::Engine(&one))?, time(Way::Engine(&all))?];
                show(&line(direction, memory, bytes, ns), args.json)?;
            }
        }
    }
    let scattered = Scattered::new(&*driver, device, N_PIECES, PIECE_BYTES)?;
    if !args.json {
        println!("\n{N_PIECES} pieces of {PIECE_BYTES} bytes, plain ones in a loop");
    }
    for direction in [Direction::ToDevice, Direction::ToHost] {
        for memory in [Memory::Pinned, Memory::Pageable] {
            let mut host = scattered.host(memory)?;
            let mut time = |way| scattered.time(way, direction, &mut host, args.rounds.max(1));
            let ns = [time(Way::Plain)?, time(Way::Engine(&one))?, time(Way::Engine(&all))?];
            show(&Line { n_pieces: N_PIECES, ..line(direction, memory, scattered.bytes(), ns) }, args.json)?;
        }
    }
    for engine in [&one, &all] {
        show_submission(&measure::submission(engine, &copies.side, device, most)?, args.json)?;
    }
    Ok(())
}

impl Ceilings {
    fn show(&self) {
        let Self { device, n_links, to_device_gb_per_s, to_host_gb_per_s, .. } = self;
        print!("{device}: {n_links} links carry {to_device_gb_per_s:.1} GB/s to devices and ");
        print!("{to_host_gb_per_s:.1} to the host; ");
        match self.memcpy_gb_per_s {
            Some(rate) => println!("{} threads copy {rate:.1} GB/s\n", self.memcpy_threads),
            None => println!(
                "times are simulated, without the host's own work: lines of pageable memory and files say nothing\n"
            ),
        }
    }
}

/// Powers of four from `from` on, and `to`; all of them whole words.
fn sizes(from: u64, to: u64) -> Vec<u64> {
    let from = from.max(8).next_multiple_of(8);
    let mut sizes: Vec<u64> = std::iter::successors(Some(from), |bytes| bytes.checked_mul(4))
        .take_while(|bytes| *bytes < to)
        .collect();
    sizes.push(to / 8 * 8);
    sizes
}

fn line(direction: Direction, memory: Memory, bytes: u64, ns: [u64; 3]) -> Line {
    let [plain, one, all] = ns.map(|ns| bytes as f64 / ns.max(1) as f64);
    let [plain_us, one_link_us, all_links_us] = ns.map(|ns| ns as f64 / 1e3);
    Line {
        direction: match direction {
            Direction::ToDevice => "to device",
            Direction::ToHost => "to host",
        },
        memory,
        bytes,
        n_pieces: 1,
        plain_gb_per_s: plain,
        one_link_gb_per_s: one,
        all_links_gb_per_s: all,
        plain_us,
        one_link_us,
        all_links_us,
    }
}

fn show(line: &Line, json: bool) -> Outcome<()> {
    if json {
        println!("{}", serde_json::to_string(line)?);
    } else {
        println!(
            "{:<10} {:<8} {:>11} {:>9.1} {:>9.1} {:>10.1}",
            line.direction,
            format!("{:?}", line.memory).to_lowercase(),
            line.bytes,
            line.plain_gb_per_s,
            line.one_link_gb_per_s,
            line.all_links_gb_per_s,
        );
    }
    Ok(())
}

fn show_submission(submission: &Submission, json: bool) -> Outcome<()> {
    if json {
        println!("{}", serde_json::to_string(submission)?);
    } else {
        let Submission { bytes, n_direct_chunks, n_relayed_chunks, us } = submission;
        println!(
            "to have a stream wait for {bytes} bytes takes the host {us:.1} us: {n_direct_chunks} chunks direct, {n_relayed_chunks} relayed"
        );
    }
    Ok(())
}

fn ceilings(
    driver: &dyn Driver,
    name: &str,
    devices: &[DeviceId],
    n_threads: Option<usize>,
) -> Outcome<Ceilings> {
    const BYTES: u64 = 256 << 20;
    let rate = |direction| measure::links_together(driver, devices, direction, BYTES);
    let n_threads =
        n_threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get().min(8)));
    let from = vec![1; usize::try_from(BYTES)?];
    let mut to = driver.pin(BYTES, devices[0])?;
    let memcpy = measure::memcpy_peak(driver, &from, (*to).as_mut(), n_threads);
    Ok(Ceilings {
        device: name.to_owned(),
        n_links: devices.len(),
        to_device_gb_per_s: rate(Direction::ToDevice)? / 1e9,
        to_host_gb_per_s: rate(Direction::ToHost)? / 1e9,
        memcpy_gb_per_s: (name != "sim").then_some(memcpy / 1e9),
        memcpy_threads: n_threads,
    })
}

fn open(device: Option<Device>) -> Outcome<(Arc<dyn Driver>, DeviceId, String)> {
    match device {
        Some(Device::Cuda(ordinal)) => Ok((open_cuda()?, DeviceId(ordinal), format!("cuda:{ordinal}"))),
        None => match open_cuda() {
            Ok(driver) => Ok((driver, DeviceId(0), "cuda:0".to_owned())),
            Err(_) => Ok(simulated()),
        },
        Some(Device::Sim) => Ok(simulated()),
    }
}

fn simulated() -> (Arc<dyn Driver>, DeviceId, String) {
    let driver = SimConfig::h200(2).links(LinkRates::h200()).completion(Completion::Lag(0)).build();
    (Arc::new(driver), DeviceId(0), "sim".to_owned())
}

#[cfg(feature = "cuda")]
fn open_cuda() -> Outcome<Arc<dyn Driver>> {
    Ok(Arc::new(glake::cuda::open()?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda() -> Outcome<Arc<dyn Driver>> {
    Err("built without the feature `cuda`".into())
}
