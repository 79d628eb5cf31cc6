//! Host memory that the CUDA driver holds, among threads and behind the ends of things: on a GPU by
//! `device_host.rs`, on the stand-in by `standin_host.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use cudarc::driver::{CudaContext, sys};
use glake_core::driver::{
    Access, Copies, DeviceOps, Driver, DriverError, Held, HostBuffer, HostMemory, Lent, StreamOrder,
};
use glake_core::units::{AddressRange, DeviceId, HostId, PAGE_BYTES, StreamId};
use glake_cuda::{CudaDriver, Mapping, PhysicalHandle, Reservation};

use super::{driver, work_late};

const DEVICE: DeviceId = DeviceId(0);
/// How long a kernel makes others wait.
const DELAY_NS: u64 = 200_000;
const BYTES: usize = 64 << 10;
const N: u64 = BYTES as u64;

/// Some tests look at the whole device, which the others change: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page, readable and writable, that cleans up behind itself.
fn page(driver: &CudaDriver) -> Mapping {
    let reservation = Reservation::new(driver, PAGE_BYTES, PAGE_BYTES).unwrap();
    let handle = PhysicalHandle::new(driver, DEVICE, PAGE_BYTES).unwrap();
    let mapping = reservation.map(0, &handle).unwrap();
    mapping.set_access(&[DEVICE], Access::ReadWrite).unwrap();
    mapping
}

fn part(page: &Mapping) -> AddressRange {
    AddressRange::new(page.range().start, N)
}

fn pinned(driver: &CudaDriver) -> HostBuffer {
    driver.pin(N, DEVICE).unwrap()
}

fn finish(driver: &CudaDriver, stream: StreamId) {
    let event = driver.record(stream).unwrap();
    driver.synchronize(event).unwrap();
    driver.forget(event);
}

/// A buffer with its bytes inside it, or pinned, that tells when it is dropped.
#[derive(Debug)]
struct Watched<B> {
    bytes: B,
    is_dropped: Arc<AtomicBool>,
}

impl<B> Watched<B> {
    fn boxed(bytes: B) -> (Box<Self>, Arc<AtomicBool>) {
        let is_dropped = Arc::default();
        (Box::new(Self { bytes, is_dropped: Arc::clone(&is_dropped) }), is_dropped)
    }
}

impl AsRef<[u8]> for Watched<HostBuffer> {
    fn as_ref(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }
}

impl AsMut<[u8]> for Watched<HostBuffer> {
    fn as_mut(&mut self) -> &mut [u8] {
        (*self.bytes).as_mut()
    }
}

impl AsRef<[u8]> for Watched<[u8; 64]> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Watched<[u8; 64]> {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl<B> Drop for Watched<B> {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
    }
}

/// One thread takes buffers back and holds them again while others copy into them: what comes back does not
/// change any more.
#[test]
fn what_is_taken_back_while_others_enqueue_is_nobody_elses() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let (host, is_over) =
        (AtomicU64::new(driver.hold(Held::Owned(pinned(&driver))).0), AtomicBool::new(false));
    let (mut n_taken, mut n_changed, n_copies) = (0, 0, AtomicU64::new(0));
    let enqueue = |round: u8| {
        work_late();
        let streams: Vec<StreamId> = (0..3).map(|_| driver.create_stream(DEVICE).unwrap()).collect();
        for value in 0..400 {
            let stream = streams[value % 3];
            let id = host.load(Ordering::SeqCst);
            driver.fill(part(&page), round.wrapping_add(u8::try_from(value % 256).unwrap()), stream).unwrap();
            match driver.read_into(page.range().start, HostId(id), 0..N, stream) {
                Ok(()) => drop(n_copies.fetch_add(1, Ordering::SeqCst)),
                Err(error) => assert!(matches!(error, DriverError::UnknownHost(_)), "{error:?}"),
            }
            if value % 7 == 6 {
                // Time for the taker.
                for stream in &streams {
                    finish(&driver, *stream);
                }
                while host.load(Ordering::SeqCst) == id {
                    thread::yield_now();
                }
            }
        }
        for stream in streams {
            finish(&driver, stream);
        }
    };
    thread::scope(|scope| {
        let others = [0, 100].map(|round| scope.spawn(move || enqueue(round)));
        let taker = scope.spawn(|| {
            let mut before = vec![0; BYTES];
            while !is_over.load(Ordering::SeqCst) {
                let id = HostId(host.load(Ordering::SeqCst));
                let Some(buffer) = driver.take_back(id).unwrap() else { continue };
                n_taken += 1;
                before.copy_from_slice((*buffer).as_ref());
                driver.synchronize_all(DEVICE).unwrap();
                n_changed += u32::from((*buffer).as_ref() != before);
                let before = n_copies.load(Ordering::SeqCst);
                host.store(driver.hold(Held::Owned(buffer)).0, Ordering::SeqCst);
                // Time for the others.
                for _ in 0..1000 {
                    if n_copies.load(Ordering::SeqCst) > before {
                        break;
                    }
                    thread::yield_now();
                }
            }
        });
        for other in others {
            other.join().unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        taker.join().unwrap();
    });
    assert!(n_copies.into_inner() > 0);
    assert!(n_taken > 50, "{n_taken}");
    assert_eq!(n_changed, 0, "of {n_taken} buffers");
}

/// A thread that goes on to copy into what another one was lent finds it gone, and what it copied before that
/// is done when the loan ends: the sink is dropped, and its memory used again.
#[test]
fn a_loan_ends_behind_the_copies_of_all_threads() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    for round in 0..50 {
        driver.fill(part(&page), 7, stream).unwrap();
        let (mut sink, n_copies) = (driver.pinned(BYTES).unwrap(), AtomicU64::new(0));
        thread::scope(|scope| {
            let lent = driver.lend(Lent::Sink(&mut sink), &mut |host| {
                let (driver, page, n_copies) = (&driver, &page, &n_copies);
                scope.spawn(move || {
                    let at = page.range().start;
                    let copy = || driver.read_into(at, host, 0..N, stream);
                    while let Ok(()) = copy() {
                        n_copies.fetch_add(1, Ordering::SeqCst);
                    }
                    assert_eq!(copy(), Err(DriverError::UnknownHost(host)));
                });
                while n_copies.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
                Ok(())
            });
            lent.unwrap();
            assert!(sink.iter().all(|byte| *byte == 7), "round {round}");
            drop(sink);
            let again = driver.pinned(BYTES).unwrap();
            finish(&driver, stream);
            assert!(again.iter().all(|byte| *byte == 0), "round {round}");
        });
    }
}

#[test]
fn a_panic_on_loan_waits_for_the_copies() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.fill(part(&page), 7, stream).unwrap();
    let mut sink = driver.pinned(BYTES).unwrap();
    driver.delay(stream, DELAY_NS).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        driver.lend(Lent::Sink(&mut sink), &mut |host| {
            driver.read_into(page.range().start, host, 0..N, stream).unwrap();
            panic!("planned");
        })
    }));
    assert!(panicked.is_err());
    assert!(sink.iter().all(|byte| *byte == 7));
}

#[test]
fn memory_let_go_under_a_copy_is_dropped_behind_it() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.delay(stream, 1).unwrap();
    finish(&driver, stream);
    let (buffer, is_dropped) = Watched::boxed(pinned(&driver));
    let host = driver.hold(Held::Owned(buffer));
    driver.delay(stream, 100 * DELAY_NS).unwrap();
    driver.read_into(page.range().start, host, 0..N, stream).unwrap();
    driver.let_go(host);
    assert!(!is_dropped.load(Ordering::Relaxed), "its copy is pending");
    finish(&driver, stream);
    driver.let_go(host);
    assert!(is_dropped.load(Ordering::Relaxed), "the next call drops it");
    let (buffer, is_dropped) = Watched::boxed([1; 64]);
    driver.let_go(driver.hold(Held::Owned(buffer)));
    assert!(is_dropped.load(Ordering::Relaxed), "it had none");
}

/// A buffer may have its bytes inside.
#[test]
fn bytes_inside_a_buffer_stay_where_they_are() {
    let _alone = alone();
    let driver = driver();
    let page = page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.fill(part(&page), 7, stream).unwrap();
    let (buffer, is_dropped) = Watched::boxed([1; 64]);
    let at = (*buffer).as_ref().as_ptr();
    let host = driver.hold(Held::Owned(buffer));
    driver.read_into(page.range().start, host, 8..24, stream).unwrap();
    finish(&driver, stream);
    let buffer = driver.take_back(host).unwrap().unwrap();
    let bytes = (*buffer).as_ref();
    assert_eq!(
        (bytes.as_ptr(), &bytes[..8], &bytes[8..24], &bytes[24..]),
        (at, &[1; 8][..], &[7; 16][..], &[1; 40][..])
    );
    assert!(!is_dropped.load(Ordering::Relaxed));
}

/// Each thread has a default stream of its own, though they go by one id.
#[test]
fn default_streams_of_threads_are_waited_for_one_by_one() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let host = driver.hold(Held::Owned(pinned(&driver)));
    let read = |delay_ns| {
        work_late();
        driver.delay(StreamId::PER_THREAD, 1).unwrap();
        finish(&driver, StreamId::PER_THREAD);
        driver.fill(part(&page), 7, StreamId::PER_THREAD).unwrap();
        driver.delay(StreamId::PER_THREAD, delay_ns).unwrap();
        driver.read_into(page.range().start, host, 0..N, StreamId::PER_THREAD).unwrap();
    };
    thread::scope(|scope| {
        let (read, driver) = (&read, &driver);
        let (told, heard) = std::sync::mpsc::channel();
        let slow = scope.spawn(move || {
            read(100 * DELAY_NS);
            let event = driver.record(StreamId::PER_THREAD).unwrap();
            told.send(()).unwrap();
            event
        });
        heard.recv().unwrap();
        let fast = scope.spawn(move || {
            read(1);
            finish(driver, StreamId::PER_THREAD);
        });
        fast.join().unwrap();
        let event = slow.join().unwrap();
        assert!(driver.take_back(host).unwrap().is_none(), "the first thread's copy is pending");
        driver.synchronize(event).unwrap();
        assert!(driver.take_back(host).unwrap().is_some());
    });
}

#[test]
fn memory_that_others_have_pinned_is_pinned() {
    let _alone = alone();
    let driver = driver();
    let context = CudaContext::new(0).unwrap();
    context.bind_to_thread().unwrap();
    let mut registered = vec![0u8; 3 * 4096];
    // SAFETY: the vector lives, and stays where it is, until it is unregistered.
    unsafe { sys::cuMemHostRegister_v2(registered.as_mut_ptr().cast(), registered.len(), 0) }
        .result()
        .unwrap();
    assert!(driver.is_pinned(&registered) && driver.is_pinned(&registered[5000..5001]));
    assert!(!driver.is_pinned(&registered[..0]));
    // SAFETY: nobody uses it.
    unsafe { sys::cuMemHostUnregister(registered.as_mut_ptr().cast()) }.result().unwrap();
    assert!(!driver.is_pinned(&registered));
    let mut half = vec![0u8; 1 << 20];
    // SAFETY: the vector lives, and stays where it is, until it is unregistered.
    unsafe { sys::cuMemHostRegister_v2(half.as_mut_ptr().cast(), half.len() / 2, 0) }.result().unwrap();
    assert!(driver.is_pinned(&half[..1 << 19]) && !driver.is_pinned(&half));
    // SAFETY: nobody uses it.
    unsafe { sys::cuMemHostUnregister(half.as_mut_ptr().cast()) }.result().unwrap();
    let mut start = std::ptr::null_mut();
    // SAFETY: `start` is a live local.
    unsafe { sys::cuMemHostAlloc(&raw mut start, BYTES, 0) }.result().unwrap();
    // SAFETY: so many bytes have just been allocated there.
    unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, BYTES) };
    // SAFETY: they are initialised, and nobody writes them.
    let allocated = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), BYTES) };
    assert!(driver.is_pinned(allocated) && driver.is_pinned(&allocated[BYTES - 1..]));
    // SAFETY: nobody uses it any more.
    unsafe { sys::cuMemFreeHost(start) }.result().unwrap();
}

#[test]
fn pinned_memory_is_of_a_device_that_exists_and_fits() {
    let _alone = alone();
    let driver = driver();
    let nobody = DeviceId(driver.n_devices());
    assert_eq!(driver.pin(1, nobody).unwrap_err(), DriverError::InvalidDevice(nobody));
    for bytes in [u64::MAX, u64::MAX / 2] {
        assert_eq!(driver.pin(bytes, DEVICE).unwrap_err(), DriverError::OutOfMemory);
    }
    let long = driver.pin((66 << 20) + 5, DEVICE).unwrap();
    assert_eq!((*long).as_ref().len(), (66 << 20) + 5);
    let at = (*long).as_ref().as_ptr();
    drop(long);
    let again = driver.pin(66 << 20, DEVICE).unwrap();
    assert_eq!((*again).as_ref().as_ptr(), at, "idle blocks that are little longer serve, too");
}

#[test]
fn closing_drops_what_is_held_and_needs_what_it_has_pinned() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    let (pending, idle) = (Watched::boxed(pinned(&driver)), Watched::boxed(pinned(&driver)));
    let dropped = [pending.1, idle.1];
    let host = driver.hold(Held::Owned(pending.0));
    driver.hold(Held::Owned(idle.0));
    let gone = driver.hold(Held::Owned(pinned(&driver)));
    for host in [host, gone] {
        driver.delay(stream, DELAY_NS).unwrap();
        driver.read_into(page.range().start, host, 0..N, stream).unwrap();
    }
    driver.let_go(gone);
    drop(page);
    driver.close().unwrap();
    assert!(dropped.iter().all(|is_dropped| is_dropped.load(Ordering::Relaxed)));
    let driver = super::driver();
    let lent = pinned(&driver);
    let refused = driver.close();
    assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{refused:?}");
    assert!((*lent).as_ref().iter().all(|byte| *byte == 0), "it is still there");
}

#[test]
fn dropping_the_driver_drops_idle_memory_only() {
    let _alone = alone();
    work_late();
    let driver = driver();
    let page = page(&driver);
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.delay(stream, 1).unwrap();
    finish(&driver, stream);
    let (pending, idle) = (Watched::boxed(pinned(&driver)), Watched::boxed([1; 64]));
    let host = driver.hold(Held::Owned(pending.0));
    driver.hold(Held::Owned(idle.0));
    driver.delay(stream, 100 * DELAY_NS).unwrap();
    driver.read_into(page.range().start, host, 0..N, stream).unwrap();
    drop((page, driver));
    assert!(idle.1.load(Ordering::Relaxed));
    assert!(!pending.1.load(Ordering::Relaxed), "its copy is pending");
}

#[test]
fn the_clock_goes_on() {
    let driver = driver();
    let start = driver.now_ns();
    while driver.now_ns() == start {}
    assert!(driver.now_ns() > start);
    assert!(super::driver().now_ns() < driver.now_ns(), "it begins when the driver is opened");
}
