//! What only the CUDA driver does: on a GPU by `device.rs`, on the stand-in by `standin_device.rs`.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DevicePtr as _, LaunchConfig, PushKernelArg};
use glake_core::driver::{
    Access, Call, Copies, DeviceOps, Driver, DriverError, Held, HostMemory, Lent, StreamOrder, VirtualMemory,
    pattern_word,
};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES, StreamId};
use glake_cuda::{CudaDriver, DeviceBuffer, Foreign, Mapping, PhysicalHandle, Reservation};

use super::driver;

const DEVICE: DeviceId = DeviceId(0);
const LONG_NS: u64 = 300_000_000;
/// Well under the delay: what does not wait for it takes less.
const SOON: Duration = Duration::from_millis(100);

/// Some tests look at the clock or at the whole device, which the others change: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// cudarc's own context and a stream there, and one of glake's kernels loaded by cudarc.
fn cudarc_kernel(name: &str) -> (Arc<CudaStream>, CudaFunction) {
    let context = CudaContext::new(0).unwrap();
    let ptx = cudarc::nvrtc::Ptx::from_src(include_str!("../../kernels/glake.ptx"));
    let kernel = context.load_module(ptx).unwrap().load_function(name).unwrap();
    (context.new_stream().unwrap(), kernel)
}

fn stream_id(stream: &CudaStream) -> StreamId {
    StreamId(stream.cu_stream().expose_provenance() as u64)
}

fn physical_bytes(driver: &CudaDriver) -> u64 {
    driver.ledger(DEVICE).unwrap().physical_bytes
}

/// A page, readable and writable, that cleans up behind itself.
fn page(driver: &CudaDriver) -> Mapping {
    let reservation = Reservation::new(driver, PAGE_BYTES, PAGE_BYTES).unwrap();
    let handle = PhysicalHandle::new(driver, DEVICE, PAGE_BYTES).unwrap();
    let mapping = reservation.map(0, &handle).unwrap();
    mapping.set_access(&[DEVICE], Access::ReadWrite).unwrap();
    mapping
}

#[test]
fn values_go_to_the_device_and_back() {
    let _alone = alone();
    let driver = driver();
    let stream = driver.create_stream(DEVICE).unwrap();
    let values: Vec<f32> = (0..50_003u16).map(f32::from).collect();
    let mut buffer = DeviceBuffer::new(&driver, DEVICE, values.len()).unwrap();
    buffer.copy_from_slice(&values, stream).unwrap();
    assert_eq!(buffer.to_vec(stream).unwrap(), values);
    let doubled: Vec<f32> = values.iter().map(|value| 2.0 * value).collect();
    buffer.copy_from_vec_async(doubled.clone(), stream).unwrap();
    let mut pending = buffer.to_vec_async(stream).unwrap();
    let taken = loop {
        if let Some(taken) = pending.take().unwrap() {
            break taken;
        }
    };
    assert_eq!(taken, doubled);
    assert_eq!(pending.take(), Err(DriverError::UnknownRead));
    let short = buffer.copy_from_slice(&values[1..], stream);
    assert!(matches!(short, Err(DriverError::InvalidValue(_))), "{short:?}");
    let none = DeviceBuffer::<f32>::new(&driver, DEVICE, 0);
    assert!(matches!(none, Err(DriverError::InvalidValue(_))), "{none:?}");
}

#[test]
fn a_buffer_is_an_argument_of_a_kernel_launched_by_cudarc() {
    let _alone = alone();
    let driver = driver();
    let (stream, kernel) = cudarc_kernel("glake_fill_pattern");
    let n = 100_000;
    let mut buffer = DeviceBuffer::<u64>::new(&driver, DEVICE, n).unwrap();
    let (n_words, seed) = (n as u64, 77u64);
    let config = LaunchConfig::for_num_elems(100_000);
    // SAFETY: the kernel takes a pointer, a number of words and a seed, and stays inside.
    unsafe { stream.launch_builder(&kernel).arg(&mut buffer).arg(&n_words).arg(&seed).launch(config) }
        .unwrap();
    // SAFETY: the stream lives longer than its use here.
    unsafe { driver.adopt(Foreign::Stream { stream: stream_id(&stream), device: DEVICE }) }.unwrap();
    let words = buffer.to_vec(stream_id(&stream)).unwrap();
    let expected: Vec<u64> = (0..n_words).map(|index| pattern_word(seed, index)).collect();
    assert!(words == expected);
    driver.disown_stream(stream_id(&stream)).unwrap();
    let unknown = buffer.to_vec(stream_id(&stream));
    assert_eq!(unknown, Err(DriverError::UnknownStream(stream_id(&stream))));
}

#[test]
fn dropping_a_buffer_under_a_kernel_neither_waits_nor_faults() {
    let _alone = alone();
    let driver = driver();
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.delay(stream, 1).unwrap();
    let buffer = DeviceBuffer::<u64>::new(&driver, DEVICE, 1 << 20).unwrap();
    let start = Instant::now();
    driver.delay(stream, LONG_NS).unwrap();
    driver.fill_pattern(buffer.range(), 1, stream).unwrap();
    let event = driver.record(stream).unwrap();
    drop(buffer);
    driver.memory_info(DEVICE).unwrap();
    assert!(start.elapsed() < SOON, "dropping waited: {:?}", start.elapsed());
    assert_eq!(driver.query(event), Ok(false));
    assert_eq!(physical_bytes(&driver), 8 << 20, "still mapped under the kernel");
    driver.synchronize(event).unwrap();
    reap(&driver);
    assert_eq!(physical_bytes(&driver), 0, "unmapped at a later call");
    driver.record(stream).expect("the device lives");
}

/// Large enough, and over enough borders, that the driver takes a kernel instead of the copy
/// engine; the ends lie inside words of 16 bytes, alike or not.
#[test]
fn a_long_copy_over_small_handles_is_whole() {
    let _alone = alone();
    let driver = driver();
    let stream = driver.create_stream(DEVICE).unwrap();
    let reservation = Reservation::new(&driver, 32 * PAGE_BYTES, PAGE_BYTES).unwrap();
    let pages: Vec<Mapping> = (0..32)
        .map(|page| {
            let handle = PhysicalHandle::new(&driver, DEVICE, PAGE_BYTES).unwrap();
            let mapping = reservation.map(page * PAGE_BYTES, &handle).unwrap();
            mapping.set_access(&[DEVICE], Access::ReadWrite).unwrap();
            mapping
        })
        .collect();
    let (src, dst) = (pages[0].range().start, pages[16].range().start);
    driver.fill_pattern(AddressRange::new(src, 16 * PAGE_BYTES), 9, stream).unwrap();
    for (from, to, bytes) in [
        (0, 0, 16 * PAGE_BYTES),
        (3, 19, 16 * PAGE_BYTES - 64),
        (0, 5, 9 * PAGE_BYTES + 4099),
        (8, 16, 5 * PAGE_BYTES + 1),
    ] {
        driver.fill(AddressRange::new(dst, 16 * PAGE_BYTES), 0, stream).unwrap();
        driver.copy(dst + to, src + from, bytes, stream).unwrap();
        assert_eq!(driver.compare(dst + to, src + from, bytes, stream), Ok(true), "{from} {to} {bytes}");
        if to + bytes < 16 * PAGE_BYTES {
            let mut behind = [1];
            driver.read(dst + (to + bytes), &mut behind, stream).unwrap();
            assert_eq!(behind, [0], "{from} {to} {bytes}: the byte behind it");
        }
    }
}

/// Calls that poll, until the reaper has nothing left that has passed.
fn reap(driver: &CudaDriver) {
    let start = Instant::now();
    while physical_bytes(driver) > 0 && start.elapsed() < Duration::from_secs(5) {
        driver.memory_info(DEVICE).unwrap();
    }
}

#[test]
fn the_reaper_waits_for_streams_that_it_does_not_know() {
    let _alone = alone();
    let driver = driver();
    let (stream, fill) = cudarc_kernel("glake_fill_pattern");
    let (_, delay) = cudarc_kernel("glake_delay");
    let buffer = DeviceBuffer::<u64>::new(&driver, DEVICE, 1 << 18).unwrap();
    let (n_words, seed) = (1u64 << 18, 1u64);
    let one = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    let many = LaunchConfig::for_num_elems(1 << 18);
    // SAFETY: the kernel takes a time and touches no memory.
    unsafe { stream.launch_builder(&delay).arg(&LONG_NS).launch(one) }.unwrap();
    // SAFETY: the kernel takes a pointer, a number of words and a seed, and stays inside.
    unsafe { stream.launch_builder(&fill).arg(&buffer).arg(&n_words).arg(&seed).launch(many) }.unwrap();
    let start = Instant::now();
    drop(buffer);
    for _ in 0..32 {
        driver.memory_info(DEVICE).unwrap();
    }
    assert!(start.elapsed() < SOON, "dropping waited: {:?}", start.elapsed());
    assert_eq!(physical_bytes(&driver), 2 << 20);
    stream.synchronize().expect("the kernel found its memory");
    reap(&driver);
    assert_eq!(physical_bytes(&driver), 0);
}

#[test]
fn virtual_memory_and_asynchronous_calls_do_not_wait_for_a_kernel() {
    let _alone = alone();
    let driver = driver();
    let stream = driver.create_stream(DEVICE).unwrap();
    let (busy, free) = (page(&driver), page(&driver));
    // First uses load kernels and pin memory, which may wait.
    driver.fill_pattern(busy.range(), 1, stream).unwrap();
    driver.write_async(busy.range().start, Arc::new(vec![1; 4096]), stream).unwrap();
    let read = driver.read_async(busy.range().start, vec![0; 4096].into(), stream).unwrap();
    driver.mismatches(stream).unwrap();
    assert!(driver.take_read(read).unwrap().is_some());
    driver.delay(stream, LONG_NS).unwrap();
    let event = driver.record(stream).unwrap();
    let start = Instant::now();
    driver.write_async(busy.range().start, Arc::new(vec![2; 4096]), stream).unwrap();
    let read = driver.read_async(busy.range().start, vec![0; 4096].into(), stream).unwrap();
    driver.copy_by_kernel(busy.range().start + 8192, busy.range().start, 4096, stream).unwrap();
    driver.copy(busy.range().start + 16384, busy.range().start, 4096, stream).unwrap();
    free.set_access(&[DEVICE], Access::ReadOnly).unwrap();
    driver.unmap(free.range()).unwrap();
    drop(page(&driver));
    assert_eq!(driver.take_read(read), Ok(None));
    let elapsed = start.elapsed();
    assert_eq!(driver.query(event), Ok(false), "the delay was too short to tell");
    assert!(elapsed < SOON, "waited: {elapsed:?}");
    driver.synchronize(event).unwrap();
    let taken = loop {
        if let Some(taken) = driver.take_read(read).unwrap() {
            break taken;
        }
    };
    assert_eq!(*taken, [2; 4096]);
}

#[test]
fn pinned_bytes_are_written_as_they_are() {
    let _alone = alone();
    let driver = driver();
    let stream = driver.create_stream(DEVICE).unwrap();
    let range = page(&driver);
    let mut bytes = driver.pinned(100_000).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    bytes.fill(0x5a);
    driver.delay(stream, 3_000_000).unwrap();
    driver.write_async(range.range().start, Arc::new(bytes), stream).unwrap();
    let mut back = vec![0; 100_000];
    driver.read(range.range().start, &mut back, stream).unwrap();
    assert!(back.iter().all(|byte| *byte == 0x5a));
    driver.memory_info(DEVICE).unwrap();
    let again = driver.pinned(100_000).unwrap();
    assert!(again.iter().all(|byte| *byte == 0), "recycled memory is cleared");
}

#[test]
fn adopted_memory_is_used_and_foreign_memory_refused() {
    let _alone = alone();
    let driver = driver();
    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let slice = stream.alloc_zeros::<u8>(4096).unwrap();
    stream.synchronize().unwrap();
    let start = DevicePtr(slice.device_ptr(&stream).0);
    let range = AddressRange::new(start, 4096);
    let refused = driver.write(start, &[1], StreamId::LEGACY);
    assert_eq!(refused, Err(DriverError::UnknownAddress(start)));
    // SAFETY: the slice lives until it is disowned, and nobody else uses it.
    unsafe { driver.adopt(Foreign::Memory { range, device: DEVICE, access: Access::ReadWrite }) }.unwrap();
    driver.write(start + 10, &[1, 2, 3], StreamId::LEGACY).unwrap();
    let mut back = [0; 5];
    driver.read(start + 9, &mut back, StreamId::LEGACY).unwrap();
    assert_eq!(back, [0, 1, 2, 3, 0]);
    let behind = driver.fill(AddressRange::new(start, 4097), 1, StreamId::LEGACY);
    assert_eq!(behind, Err(DriverError::UnknownAddress(range.end())));
    driver.disown_memory(start).unwrap();
    let refused = driver.write(start, &[1], StreamId::LEGACY);
    assert_eq!(refused, Err(DriverError::UnknownAddress(start)));
}

#[test]
fn a_capture_is_neither_broken_nor_given_host_memory() {
    let _alone = alone();
    let driver = driver();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let id = stream_id(&stream);
    // SAFETY: the stream lives longer than its use here.
    unsafe { driver.adopt(Foreign::Stream { stream: id, device: DEVICE }) }.unwrap();
    let target = page(&driver);
    let other = driver.create_stream(DEVICE).unwrap();
    driver.fill_pattern(target.range(), 1, other).unwrap();
    driver.mismatches(other).unwrap();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    driver.fill(AddressRange::new(target.range().start, 64), 9, id).unwrap();
    let refused = driver.write(target.range().start, &[1], id);
    let capturing = DriverError::Capturing(id);
    assert_eq!((refused, driver.record(id)), (Err(capturing), Err(capturing)));
    let host = driver.hold(Held::Owned(Box::new(vec![1])));
    let start = target.range().start;
    let refused = [driver.write_from(start, host, 0..1, id), driver.read_into(start, host, 0..1, id)];
    assert_eq!(refused, [Err(capturing); 2]);
    assert_eq!((driver.record_all(DEVICE), driver.synchronize_all(DEVICE)), (Err(capturing), Err(capturing)));
    assert_eq!((driver.is_capturing(id), driver.is_capturing(other)), (Ok(true), Ok(false)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let event = driver.record(other).unwrap();
            drop(page(&driver));
            driver.query(event).unwrap();
            driver.synchronize(event).unwrap();
            driver.memory_info(DEVICE).unwrap();
            use_host_memory(&driver, start + 64, other);
        });
    });
    use_host_memory(&driver, start + 64, other);
    assert_eq!(*(*driver.take_back(host).unwrap().unwrap()).as_ref(), [1]);
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("the capture is whole").expect("it has work");
    graph.launch().unwrap();
    let mut back = [0; 2];
    driver.read(target.range().start + 63, &mut back, id).unwrap();
    assert_eq!(back[0], 9, "the graph ran");
    reap_to(&driver, PAGE_BYTES);
}

/// Every call for host memory, pinned and not.
fn use_host_memory(driver: &CudaDriver, at: DevicePtr, stream: StreamId) {
    let mut buffer = driver.pin(64, DEVICE).unwrap();
    assert!(driver.is_pinned((*buffer).as_ref()));
    for _ in 0..2 {
        let host = driver.hold(Held::Owned(buffer));
        driver.write_from(at, host, 0..64, stream).unwrap();
        driver.read_into(at, host, 0..64, stream).unwrap();
        buffer = loop {
            if let Some(buffer) = driver.take_back(host).unwrap() {
                break buffer;
            }
        };
    }
    let lent = driver.lend(Lent::Sink(&mut [1; 64]), &mut |host| driver.read_into(at, host, 0..64, stream));
    lent.unwrap();
    let host = driver.hold(Held::Shared(Arc::new([1; 64])));
    driver.write_from(at, host, 0..64, stream).unwrap();
    driver.let_go(host);
}

fn reap_to(driver: &CudaDriver, bytes: u64) {
    let start = Instant::now();
    while physical_bytes(driver) > bytes && start.elapsed() < Duration::from_secs(5) {
        driver.memory_info(DEVICE).unwrap();
    }
    assert_eq!(physical_bytes(driver), bytes);
}

#[test]
fn the_context_of_the_thread_is_put_back() {
    let _alone = alone();
    let driver = driver();
    if driver.n_devices() < 2 {
        return;
    }
    let context = CudaContext::new(1).unwrap();
    context.bind_to_thread().unwrap();
    driver.memory_info(DEVICE).unwrap();
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.delay(stream, 1).unwrap();
    let current = cudarc::driver::result::ctx::get_current().unwrap();
    assert_eq!(current, Some(context.cu_ctx()));
    let event = driver.record(StreamId::LEGACY).unwrap();
    assert_eq!(driver.ledger(DeviceId(1)).unwrap().n(Call::Record), 1, "the current context's stream");
    driver.synchronize(event).unwrap();
}

/// Its address is the one that CUDA writes.
#[test]
fn a_device_says_where_it_sits() {
    let driver = driver();
    for id in 0..driver.n_devices() {
        let (mut name, cu) = ([0; 32], id.cast_signed());
        // SAFETY: `name` is a live array of 32 characters.
        let named = unsafe { sys::cuDeviceGetPCIBusId(name.as_mut_ptr(), 32, cu) };
        assert_eq!(named, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: CUDA ended the name with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().unwrap();
        assert_eq!(driver.device_info(DeviceId(id)).unwrap().pci, Some(name.parse().unwrap()));
    }
}

#[test]
fn closing_frees_everything_and_needs_the_last_clone() {
    let _alone = alone();
    let free = |driver: &CudaDriver| driver.memory_info(DEVICE).unwrap().free_bytes;
    let watcher = driver();
    let before = free(&watcher);
    let driver = driver();
    let handle = driver.create(DEVICE, 256 << 20).unwrap();
    let range = driver.reserve(256 << 20, PAGE_BYTES).unwrap();
    driver.map(range.start, handle).unwrap();
    driver.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.fill_pattern(range, 1, stream).unwrap();
    driver.read_async(range.start, vec![0; 4096].into(), stream).unwrap();
    assert!(free(&watcher) + (256 << 20) <= before);
    let clone = driver.clone();
    let refused = clone.close();
    assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{refused:?}");
    driver.close().unwrap();
    let left = before.saturating_sub(free(&watcher));
    assert!(left < 64 << 20, "{left} bytes are left");
}
