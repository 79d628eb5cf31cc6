//! The program `check`: that `glake-candle` keeps its promises on this GPU.
#![allow(clippy::print_stdout, reason = "programs talk to people")]

use std::error::Error;
use std::thread;

use candle_core::{DType, Device, Tensor};
use glake_candle::{Config, Glake};

use crate::args::CheckArgs;

type Outcome = Result<(), Box<dyn Error>>;
type Check = fn(Glake, &Device) -> Outcome;

const MIB: usize = 1 << 20;

const CHECKS: [(&str, Check); 11] = [
    ("a tensor of candle's is in the pool", in_the_pool),
    ("a tensor in the pool is like any other", like_any_other),
    ("a view's address is that of its first element", views),
    ("no elements are as good as candle's", no_elements),
    ("memory dropped on another thread comes back", other_threads),
    ("bytes have their tag", tags),
    ("cuBLAS works in the pool's memory, and without it", cublas),
    ("a captured graph keeps its memory", graphs),
    ("a limit is kept, and lifted", limits),
    ("trimming gives memory back", trimming),
    ("a trace is recorded", recording),
];

pub(crate) fn run(args: &CheckArgs) -> Result<(), Box<dyn Error>> {
    let glake = glake_candle::install(Config::from_env()?)?;
    let device = args.device.device()?;
    let mut n_failed = 0;
    for (name, check) in CHECKS {
        let before = live(glake, &device)?;
        let outcome = check(glake, &device).and_then(|()| {
            device.synchronize()?;
            see(live(glake, &device)? == before, "live bytes are as before")
        });
        match outcome {
            Ok(()) => println!("ok      {name}"),
            Err(error) => {
                n_failed += 1;
                println!("FAILED  {name}: {error}");
            }
        }
    }
    let passed_on = glake.passed_on();
    println!(
        "to the driver's own allocator: {} allocations, {} bytes",
        passed_on.n_allocations, passed_on.bytes
    );
    println!("{} passed, {n_failed} failed", CHECKS.len() - n_failed);
    if n_failed == 0 { Ok(()) } else { Err("some checks failed".into()) }
}

fn see(is_so: bool, what: &str) -> Outcome {
    if is_so { Ok(()) } else { Err(format!("not so: {what}").into()) }
}

fn live(glake: Glake, device: &Device) -> Result<u64, glake_candle::Error> {
    Ok(glake.memory_stats(device)?.requested_bytes)
}

fn in_the_pool(glake: Glake, device: &Device) -> Outcome {
    glake.self_test(device)?;
    let before = live(glake, device)?;
    let tensor = Tensor::zeros((MIB, 3), DType::F32, device)?;
    see(glake.owns(&tensor), "the tensor is owned")?;
    see(live(glake, device)? == before + 12 * MIB as u64, "its bytes are counted")?;
    see(!glake.owns(&Tensor::zeros(4, DType::F32, &Device::Cpu)?), "a tensor on the CPU is not owned")
}

fn like_any_other(glake: Glake, device: &Device) -> Outcome {
    let zeros = glake.zeros::<f32>((3, 5), device)?;
    see(glake.owns(&zeros), "the tensor is owned")?;
    see(zeros.to_vec2::<f32>()? == vec![vec![0.0; 5]; 3], "it is zero")?;
    let sum = (Tensor::ones((3, 5), DType::F32, device)? + &zeros)?.sum_all()?;
    see(sum.to_scalar::<f32>()?.to_bits() == 15f32.to_bits(), "it is added")?;
    let bytes = glake.uninit::<u8>((7, MIB), device)?;
    see(bytes.dtype() == DType::U8 && bytes.dims() == [7, MIB], "it has its type and shape")?;
    see(glake.owns(&bytes), "the other is owned")
}

fn views(glake: Glake, device: &Device) -> Outcome {
    let tensor = glake.zeros::<f32>((8, 16), device)?;
    let (whole, part) = (glake.address(&tensor), glake.address(&tensor.narrow(0, 2, 3)?));
    see(whole.and_then(|whole| whole.checked_add(2 * 16 * 4)) == part, "two rows behind")
}

fn no_elements(glake: Glake, device: &Device) -> Outcome {
    // The driver decides; asked for no bytes, the pool is not.
    let own = Tensor::zeros((0, 4), DType::F32, device);
    match (glake.zeros::<f32>((0, 4), device), own) {
        (Ok(tensor), Ok(own)) => see(tensor.dims() == own.dims(), "it has its shape"),
        (Err(_), Err(_)) => Ok(()),
        _ => see(false, "both are there, or none"),
    }
}

fn other_threads(glake: Glake, device: &Device) -> Outcome {
    let tensors = [Tensor::ones(MIB, DType::F32, device)?, glake.zeros::<f32>(MIB, device)?];
    thread::spawn(move || drop(tensors)).join().map_err(|_| "the thread panicked")?;
    Ok(())
}

fn tags(glake: Glake, device: &Device) -> Outcome {
    let bytes = || glake.tagged_bytes().get("weights").copied().unwrap_or_default();
    let tensor = {
        let _tag = glake.tag("weights");
        Tensor::zeros(MIB, DType::F32, device)?
    };
    let _untagged = Tensor::zeros(MIB, DType::F32, device)?;
    see(bytes() == 4 * MIB as u64, "the tag has the tensor's bytes")?;
    drop(tensor);
    see(bytes() == 0, "the tag has none when it is dropped")
}

fn cublas(glake: Glake, device: &Device) -> Outcome {
    let ones = Tensor::ones((256, 256), DType::F32, device)?;
    let product = || ones.matmul(&ones)?.to_vec2::<f32>();
    let right = vec![vec![256.0; 256]; 256];
    let before = live(glake, device)?;
    let workspace = glake.cublas_workspace(device)?;
    see(live(glake, device)? == before + 32 * MIB as u64, "the workspace is in the pool")?;
    see(product()? == right, "the product is right")?;
    drop(workspace);
    see(product()? == right, "the product is right without it")
}

/// A graph of candle's operations, with what they allocate inside, launched while others allocate.
#[cfg(feature = "cuda")]
fn graphs(_: Glake, device: &Device) -> Outcome {
    use candle_core::cuda_backend::cudarc::driver::sys::{
        CUgraphInstantiate_flags as Flags, CUstreamCaptureMode as Mode,
    };

    const SIDE: usize = 256;
    let stream = device.as_cuda_device()?.cuda_stream();
    let filled = |value: f32| Tensor::full(value, (SIDE, SIDE), device);
    let (input, ones) = (filled(0.0)?, filled(1.0)?);
    let operations = || (input.matmul(&ones)?.relu()? + &ones)?.sqr();
    // The first time kernels are loaded, which a capture forbids.
    drop(operations()?);
    device.synchronize()?;
    stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let output = operations();
    let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    let (output, graph) = (output?, graph.ok_or("no graph was captured")?);
    let mut others = Vec::new();
    for n in [1.0f32, 2.0, 3.0] {
        input.slice_set(&filled(n)?, 0, 0)?;
        others.push(filled(-n)?);
        graph.launch()?;
        let right = (n * 256.0 + 1.0).powi(2);
        see(
            output.to_vec2::<f32>()? == vec![vec![right; SIDE]; SIDE],
            "a launch computes what was captured",
        )?;
        see(others.iter().all(|other| !overlap(other, &output)), "others have memory of their own")?;
    }
    for (other, n) in others.iter().zip([1.0f32, 2.0, 3.0]) {
        see(other.to_vec2::<f32>()? == vec![vec![-n; SIDE]; SIDE], "others are as they were")?;
    }
    Ok(())
}

/// Whether two tensors of the same size have memory in common.
#[cfg(feature = "cuda")]
fn overlap(a: &Tensor, b: &Tensor) -> bool {
    let Some(glake) = Glake::installed() else { return true };
    let bytes = (a.elem_count() * a.dtype().size_in_bytes()) as u64;
    match (glake.address(a), glake.address(b)) {
        (Some(a), Some(b)) => a.0.abs_diff(b.0) < bytes,
        _ => true,
    }
}

/// Without CUDA `install` has failed before.
#[cfg(not(feature = "cuda"))]
fn graphs(_: Glake, _: &Device) -> Outcome {
    see(false, "candle is built for a GPU")
}

fn limits(glake: Glake, device: &Device) -> Outcome {
    const LARGE: usize = 1 << 28;
    let reserved = glake.memory_stats(device)?.reserved_bytes;
    glake.limit_bytes(device, reserved + MIB as u64)?;
    let refused = Tensor::zeros(LARGE, DType::F32, device);
    glake.limit_bytes(device, u64::MAX)?;
    see(refused.is_err(), "what is above the limit is refused")?;
    see(Tensor::zeros(LARGE, DType::F32, device)?.dims() == [LARGE], "and is served without the limit")
}

fn trimming(glake: Glake, device: &Device) -> Outcome {
    drop(Tensor::zeros(64 * MIB, DType::F32, device)?);
    let before = glake.memory_stats(device)?.reserved_bytes;
    let given_back = glake.trim(device, 0)?;
    let after = glake.memory_stats(device)?.reserved_bytes;
    see(given_back >= 256 * MIB as u64, "what was dropped is given back")?;
    see(before - after == given_back, "as much as is said")?;
    glake.defragment(device)?;
    see(glake.fragmentation_ratio(device)? <= 1.0, "a ratio")
}

fn recording(glake: Glake, device: &Device) -> Outcome {
    let path = std::env::temp_dir().join(format!("glake-check-{}.csv", std::process::id()));
    let recording = glake.record(device, &path)?;
    drop(Tensor::zeros(MIB, DType::F32, device)?);
    recording.finish()?;
    let trace = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    see(trace.lines().any(|line| line.contains(&(4 * MIB).to_string())), "the allocation is in the trace")
}
