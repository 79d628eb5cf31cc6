//! A run on the first GPU: what stands under cubecl, and what it took.
//!
//! cubecl 0.10 has no allocation by tensors. What comes nearest is its persistent memory, where each
//! tensor has an allocation of its own, of exactly its size, that only a tensor of that size uses again:
//! `Granularity::Tensor` is that for everything, with a collection where a step has freed much. What is
//! freed between two collections is lost to tensors of other sizes.

use burn::backend::{Autodiff, Cuda};
use cubecl::client::ComputeClient;
use cubecl::config::memory::PersistentMemory;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl::prelude::Runtime as _;
use glake_burn_common::{Args, Failure, Glake, Granularity, Memory, Pool, Report, Steps};
use glake_hook::{Config, DeviceId};

use crate::{PROGRAM, train};

const DEVICE: DeviceId = DeviceId(0);

/// Trains on the first GPU with glake or without.
pub(crate) fn run(args: &Args) -> Result<Report, Failure> {
    let mut settings = CubeClRuntimeConfig::default();
    if args.granularity == Granularity::Tensor {
        settings.memory.persistent_memory = PersistentMemory::Enforced;
    }
    CubeClRuntimeConfig::set(settings);
    match args.glake {
        Glake::On => {
            let mut config = Config::from_env()?;
            if let Some(limit_bytes) = args.limit_bytes {
                config = config.limit_bytes(limit_bytes);
            }
            let glake = glake_hook::install(config)?;
            let peak = Memory::open()?.watch()?;
            let recording = args.record.as_ref().map(|path| glake.record(DEVICE, path)).transpose()?;
            let (steps, pages) = train_on(args);
            if let Some(recording) = recording {
                recording.finish()?;
            }
            let stats = glake.memory_stats(DEVICE);
            println!("{stats}");
            let pool = Pool {
                requested_peak_bytes: stats.peak_requested_bytes,
                allocated_peak_bytes: stats.peak_allocated_bytes,
                reserved_peak_bytes: stats.peak_reserved_bytes,
                n_allocations: stats.n_allocations,
                n_passed_on: glake.passed_on().n_allocations as u64,
            };
            Ok(Report { glake: Some(pool), ..report(args, &steps, &pages, peak.finish()) })
        }
        Glake::Off => {
            let peak = Memory::open()?.watch()?;
            let (steps, pages) = train_on(args);
            Ok(report(args, &steps, &pages, peak.finish()))
        }
    }
}

fn train_on(args: &Args) -> (Steps, Pages) {
    let device = CudaDevice::new(0);
    let mut pages = Pages { client: CudaRuntime::client(&device), peak_bytes: 0 };
    let collector = pages.client.clone();
    // Queued behind the work so far; nothing waits for it.
    let collect = || {
        if args.granularity == Granularity::Tensor {
            collector.memory_cleanup();
        }
    };
    let steps = train::<Autodiff<Cuda>>(args, &device, collect, || pages.look());
    (steps, pages)
}

fn report(args: &Args, steps: &Steps, pages: &Pages, device_peak_bytes: u64) -> Report {
    Report {
        cubecl_reserved_peak_bytes: Some(pages.peak_bytes),
        device_peak_bytes: Some(device_peak_bytes),
        ..Report::new(PROGRAM, args, steps)
    }
}

/// What cubecl holds, by its own account.
struct Pages {
    client: ComputeClient<CudaRuntime>,
    peak_bytes: u64,
}

impl Pages {
    fn look(&mut self) {
        if let Ok(usage) = self.client.memory_usage() {
            self.peak_bytes = self.peak_bytes.max(usage.bytes_reserved);
        }
    }
}
