//! A run on the first GPU: what stands under cubecl, and what it took.

use burn::tensor::Device;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, memory::CudaAllocator};
use cubecl::cuda::CudaDevice;
use glake_burn::Config;
use glake_burn_common::{Allocator, Args, Failure, Glake, Granularity, Memory, Pool, Report, Steps};

use crate::{PROGRAM, train};

/// Trains on the first GPU with glake or without.
pub(crate) fn run(args: &Args) -> Result<Report, Failure> {
    match args.glake {
        Glake::On => with_glake(args),
        Glake::Off => without_glake(args),
    }
}

fn with_glake(args: &Args) -> Result<Report, Failure> {
    let mut config = Config::from_env()?.granularity(match args.granularity {
        Granularity::Page => glake_burn::Granularity::Page,
        Granularity::Tensor => glake_burn::Granularity::Tensor,
    });
    if let Some(limit_bytes) = args.limit_bytes {
        config = config.limit_bytes(limit_bytes);
    }
    let glake = glake_burn::install(config)?;
    let device = Device::cuda(0).autodiff();
    let peak = Memory::open()?.watch()?;
    let gpu = glake.gpu(&device)?;
    let recording = args.record.as_ref().map(|path| gpu.record(path)).transpose()?;
    let mut pages = Pages::default();
    let after_step = || {
        pages.look(&device);
        if args.granularity == Granularity::Tensor { gpu.collect() } else { Ok(()) }
    };
    let steps = gpu.run(|| train(args, &device, after_step))?;
    if let Some(recording) = recording {
        recording.finish()?;
    }
    let stats = gpu.memory_stats();
    println!("{stats}");
    let glake = Pool {
        requested_peak_bytes: stats.peak_requested_bytes,
        allocated_peak_bytes: stats.peak_allocated_bytes,
        reserved_peak_bytes: stats.peak_reserved_bytes,
        n_allocations: stats.n_allocations,
        n_passed_on: glake.passed_on().n_allocations as u64,
    };
    Ok(Report { glake: Some(glake), ..report(args, &steps, pages, peak.finish()) })
}

/// cubecl on the driver's own memory: in pages as it comes, or by tensors ("dedicated").
fn without_glake(args: &Args) -> Result<Report, Failure> {
    let mut settings = CubeClRuntimeConfig::default();
    settings.memory.cuda.allocator = match args.allocator {
        Allocator::Sync => CudaAllocator::Sync,
        Allocator::Async => CudaAllocator::Async,
    };
    CubeClRuntimeConfig::set(settings);
    let device = Device::cuda(0).autodiff();
    let peak = Memory::open()?.watch()?;
    let client = cubecl::Device::Cuda(CudaDevice::new(0)).client();
    let mut pages = Pages::default();
    let mut work = || {
        train(args, &device, || {
            pages.look(&device);
            Ok::<(), Failure>(())
        })
    };
    let steps = match args.granularity {
        Granularity::Page => work(),
        Granularity::Tensor => {
            // cubecl forgets the mode of a stream that is not there yet at the first weight.
            client.flush()?;
            client.memory_dedicated_allocation((), |()| work())
        }
    }?;
    Ok(report(args, &steps, pages, peak.finish()))
}

fn report(args: &Args, steps: &Steps, pages: Pages, device_peak_bytes: u64) -> Report {
    Report {
        cubecl_reserved_peak_bytes: Some(pages.peak_bytes),
        device_peak_bytes: Some(device_peak_bytes),
        ..Report::new(PROGRAM, args, steps)
    }
}

/// What cubecl holds, by its own account.
#[derive(Debug, Default)]
struct Pages {
    peak_bytes: u64,
}

impl Pages {
    fn look(&mut self, device: &Device) {
        let usage = device.memory_pool_usage().unwrap_or_default();
        self.peak_bytes = self.peak_bytes.max(usage.bytes_reserved);
    }
}
