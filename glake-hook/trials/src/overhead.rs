//! What the hook adds to an allocation that needs no driver: pairs of an allocation and a free through cudarc's
//! functions, beside the pool itself.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, sys};
use glake_hook::{Config, DeviceId, StreamId};
use glake_vmm::SharedPool;

const N_PAIRS: u32 = 200_000;
const N_ROUNDS: usize = 5;

/// Nanoseconds of a pair, the best of some rounds.
fn measure(mut pair: impl FnMut()) -> f64 {
    let mut rounds = [f64::MAX; N_ROUNDS];
    for round in &mut rounds {
        let start = Instant::now();
        (0..N_PAIRS).for_each(|_| pair());
        *round = start.elapsed().as_secs_f64() * 1e9 / f64::from(N_PAIRS);
    }
    rounds.into_iter().fold(f64::MAX, f64::min)
}

/// Prints the figures.
pub(crate) fn run() {
    glake_hook::install(Config::new()).unwrap();
    let context = CudaContext::new(0).unwrap();
    let own = context.new_stream().unwrap();
    let driver = glake_cuda::open().unwrap();
    let stream = StreamId(own.cu_stream().addr() as u64);
    // SAFETY: the stream outlives the pool.
    unsafe { driver.adopt(glake_cuda::Foreign::Stream { stream, device: DeviceId(0) }) }.unwrap();
    let pool = SharedPool::new(Arc::new(driver), glake_vmm::Config::new(DeviceId(0))).unwrap();
    println!("ns per pair of allocation and free; the pool alone, through the hook, what the hook adds");
    for (name, cu) in [("own stream", own.cu_stream()), ("0x2", context.per_thread_stream().cu_stream())] {
        let id = StreamId(cu.addr() as u64);
        for bytes in [512usize, 64 << 10, 1 << 20, 64 << 20] {
            let alone = measure(|| {
                let request = glake_core::alloc::Request::new(bytes as u64, id);
                let allocation = pool.allocate(request).unwrap();
                pool.free(allocation.ptr, id).unwrap();
            });
            let hooked = measure(|| {
                let mut ptr = 0;
                // SAFETY: an address is written, and given up.
                unsafe {
                    sys::cuMemAllocAsync(&raw mut ptr, bytes, cu).result().unwrap();
                    sys::cuMemFreeAsync(ptr, cu).result().unwrap();
                }
            });
            println!("{name} {bytes} B: {alone:.0} {hooked:.0} +{:.0}", hooked - alone);
        }
    }
}
