//! Transfers that are submitted: futures, waits, memory, order, and what goes wrong.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use glake_core::driver::{Copies, DriverError, HostBuffer, SharedBytes, StreamOrder};
use glake_core::sim::{Fault, Target};
use glake_core::units::StreamId;

use super::bytes::segments;
use super::*;
use crate::{Cancel, Pending, Priority, Progress, Report, SharedProgress, TransferError};

/// Wakes a thread, and counts.
struct Unpark(Thread, AtomicU64);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// The smallest executor.
fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark(thread::current(), AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

fn small() -> Config {
    Config::new().chunk_bytes(64 << 10).relay_from_bytes(0).stage_from_bytes(256 << 10)
}

/// A driver of two devices on which copies are done when the test says so, or when the host waits.
fn manual() -> SimDriver {
    SimConfig::h200(2).completion(Completion::Manual).build()
}

fn shared(bytes: &Arc<Vec<u8>>) -> SharedBytes {
    Arc::clone(bytes) as SharedBytes
}

fn found(rig: &Rig, at: DevicePtr, bytes: u64) -> Vec<u8> {
    let mut found = vec![0; usize::try_from(bytes).unwrap()];
    rig.driver.read(at, &mut found, StreamId::LEGACY).unwrap();
    found
}

/// A callback that stops the worker at each call until the gate is opened, and says that it is there.
fn gate() -> (SharedProgress, mpsc::Receiver<()>, Arc<AtomicBool>) {
    let (tell, told) = mpsc::channel();
    let (tell, is_open) = (Mutex::new(tell), Arc::new(AtomicBool::new(false)));
    let opens = Arc::clone(&is_open);
    let stop = move |_: Progress| {
        let _ = tell.lock().unwrap().send(());
        while !opens.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    };
    (Arc::new(stop), told, is_open)
}

#[test]
fn a_future_is_ready_when_its_bytes_are_there() {
    let rig = Rig::new(2, small());
    let (source, dst) = (Arc::new(noise(MIB + 5, 1)), rig.memory(GPU, MIB + 5));
    let back = block_on(async {
        let report = rig.engine.on(GPU).submit_write(dst, shared(&source)).await?;
        assert_eq!(report.bytes, MIB + 5);
        assert_eq!(report.lanes.len(), 2);
        let buffer = Box::new(vec![0; source.len()]);
        Ok::<_, TransferError>(rig.engine.on(GPU).submit_read(dst, buffer).await?)
    });
    assert!((*back.unwrap().buffer).as_ref() == &**source);
    assert_eq!(Arc::strong_count(&source), 1);
    let written = rig.engine.on(GPU).submit_write_buffer(dst, Box::new(vec![9; 100])).wait().unwrap();
    assert_eq!((*written.buffer).as_ref(), [9; 100], "it comes back");
    assert_eq!(found(&rig, dst, 101)[..100], [9; 100]);
}

#[test]
fn the_waker_of_the_last_poll_is_woken_once() {
    let rig = Rig::new(1, small());
    let dst = rig.memory(GPU, 10);
    let (tell, told, is_open) = gate();
    let mut pending = pin!(rig.engine.on(GPU).share_progress(tell).submit_write(dst, Arc::new([1; 10])));
    told.recv().unwrap();
    let [first, last] = [(); 2].map(|()| Arc::new(Unpark(thread::current(), AtomicU64::new(0))));
    for unpark in [&first, &last] {
        let waker = Waker::from(Arc::clone(unpark));
        assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert!(!pending.is_done());
    is_open.store(true, Ordering::SeqCst);
    while last.1.load(Ordering::SeqCst) == 0 {
        thread::park();
    }
    assert!(pending.is_done());
    assert_eq!([&first, &last].map(|unpark| unpark.1.load(Ordering::SeqCst)), [0, 1]);
    let ready = pending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(Report { bytes: 10, .. }))));
}

#[test]
fn a_hundred_random_transfers_at_once_are_exact() {
    let rig = Rig::new(3, small().n_workers(3));
    let mut rng = Rng::new(7);
    let work: Vec<_> = (0..100)
        .map(|seed| {
            let (n, most) = (rng.between(1, 20), rng.log_between(1, 100_000));
            let device = rig.memory(GPU, n * (most + 1000) + 10);
            let (segments, host_bytes, _) = segments(&mut rng, n, most, device);
            (segments, Arc::new(noise(host_bytes, seed)))
        })
        .collect();
    thread::scope(|scope| {
        for part in work.chunks(10) {
            let engine = rig.engine.clone();
            scope.spawn(move || {
                let write = |(segments, source): &(Vec<Segment>, Arc<Vec<u8>>)| {
                    engine.on(GPU).submit_write_segments(segments.clone(), shared(source))
                };
                let pending: Vec<Pending<Report>> = part.iter().map(write).collect();
                let read = |(segments, source): &(Vec<Segment>, Arc<Vec<u8>>)| {
                    let sink: HostBuffer = Box::new(vec![0xdd; source.len()]);
                    engine.on(GPU).submit_read_segments(segments.clone(), sink)
                };
                for pending in pending {
                    pending.wait().unwrap();
                }
                let pending: Vec<_> = part.iter().map(read).collect();
                for (pending, (segments, source)) in pending.into_iter().zip(part) {
                    let mut expected = vec![0xdd; source.len()];
                    for segment in segments {
                        let at = usize::try_from(segment.host_offset).unwrap();
                        let at = at..at + usize::try_from(segment.bytes).unwrap();
                        expected[at.clone()].copy_from_slice(&source[at]);
                    }
                    assert!((*pending.wait().unwrap().buffer).as_ref() == expected);
                    assert_eq!(Arc::strong_count(source), 1);
                }
            });
        }
    });
}

/// cudarc #340, vllm #51667: a buffer that is dropped while it is copied.
#[test]
fn host_buffer_dropped_during_an_asynchronous_copy() {
    let rig = Rig::over(manual(), small());
    let (source, dst) = (Arc::new(noise(MIB, 3)), rig.memory(GPU, MIB));
    let expected = source.to_vec();
    // The callback holds the transfer up in its midst.
    let (gate, meanwhile) = (Arc::new(Barrier::new(2)), AtomicBool::new(false));
    let at_gate = Arc::clone(&gate);
    let tell = move |_: Progress| {
        if !meanwhile.swap(true, Ordering::Relaxed) {
            at_gate.wait();
            at_gate.wait();
        }
    };
    let pending = rig.engine.on(GPU).share_progress(Arc::new(tell)).submit_write(dst, shared(&source));
    let weak = Arc::downgrade(&source);
    drop(source);
    gate.wait();
    assert_eq!(weak.strong_count(), 1, "the worker has it");
    assert!(!pending.is_done());
    drop(pending);
    gate.wait();
    while weak.strong_count() > 0 {
        rig.driver.complete_all();
    }
    assert!(found(&rig, dst, MIB) == expected);
}

/// The `n`th stream that an engine makes of a driver that has made none.
fn lane(n: u64) -> StreamId {
    StreamId((1 << 32) + n)
}

/// `LMCache` #4830: a buffer that is used anew while it is copied. It is the worker's until the transfer is over.
#[test]
fn host_buffer_reused_while_it_is_copied() {
    let rig = Rig::over(manual(), small());
    let dst = rig.memory(GPU, 2 * MIB);
    let mut buffer: HostBuffer = Box::new(noise(MIB, 0));
    for seed in 0..4 {
        (*buffer).as_mut().copy_from_slice(&noise(MIB, seed));
        let pending = rig.engine.on(GPU).submit_write_buffer(dst + seed % 2 * MIB, buffer);
        while !pending.is_done() {
            rig.driver.complete_all();
        }
        buffer = pending.wait().unwrap().buffer;
    }
    for seed in [2, 3] {
        assert!(found(&rig, dst + seed % 2 * MIB, MIB) == noise(MIB, seed));
    }
}

#[test]
#[expect(clippy::mem_forget, reason = "that it is safe is what is tried")]
fn a_transfer_goes_on_when_nobody_waits() {
    let rig = Rig::new(2, small());
    let source = Arc::new(noise(MIB, 5));
    let dst = rig.memory(GPU, 2 * MIB);
    drop(rig.engine.on(GPU).submit_write(dst, shared(&source)));
    std::mem::forget(rig.engine.on(GPU).submit_write(dst + MIB, shared(&source)));
    drop(rig.engine.on(GPU).submit_read(dst, Box::new(vec![0; 1 << 20])));
    while Arc::strong_count(&source) > 1 {
        thread::yield_now();
    }
    assert!(found(&rig, dst, MIB) == *source && found(&rig, dst + MIB, MIB) == *source);
}

#[test]
fn dropping_the_engine_waits_for_nothing_and_ends_its_threads() {
    let driver = Arc::new(timed(2).build());
    let topology = Topology::of(&*driver).unwrap();
    let engine = Engine::with_topology(Arc::clone(&driver), small().n_workers(1), topology);
    let rig = Rig { driver, engine };
    let (source, dst) = (Arc::new(noise(MIB, 6)), rig.memory(GPU, 3 * MIB));
    let free = [0, 1].map(|device| rig.driver.memory_info(DeviceId(device)).unwrap().free_bytes);
    let (tell, told, is_open) = gate();
    let first = rig.engine.on(GPU).share_progress(tell).submit_write(dst, shared(&source));
    let rest: Vec<_> = [1, 2].map(|n| rig.engine.on(GPU).submit_write(dst + n * MIB, shared(&source))).into();
    told.recv().unwrap();
    let Rig { driver, engine } = rig;
    drop(engine);
    assert!(!first.is_done());
    is_open.store(true, Ordering::SeqCst);
    first.wait().unwrap();
    for pending in rest {
        pending.wait().unwrap();
    }
    // The last thread takes its share of the driver along.
    while Arc::strong_count(&driver) > 1 {
        thread::yield_now();
    }
    driver.complete_all();
    assert_eq!([0, 1].map(|device| driver.memory_info(DeviceId(device)).unwrap().free_bytes), free);
    let mut bytes = vec![0; 1 << 20];
    driver.read(dst + 2 * MIB, &mut bytes, StreamId::LEGACY).unwrap();
    assert!(bytes == *source);
}

#[test]
fn urgent_transfers_overtake() {
    let rig = Rig::new(1, small().n_workers(1));
    let dst = rig.memory(GPU, MIB);
    let order = Arc::new(Mutex::new(Vec::new()));
    let (tell, told, is_open) = gate();
    let low = rig.engine.on(GPU).priority(Priority::Low).share_progress(tell);
    let low = low.submit_write(dst, Arc::new([1; 10]));
    told.recv().unwrap();
    let submit = |name, priority| {
        let order = Arc::clone(&order);
        let tell = Arc::new(move |_: Progress| order.lock().unwrap().push(name));
        rig.engine.on(GPU).priority(priority).share_progress(tell).submit_write(dst, Arc::new([2; 10]))
    };
    // The only thread is busy with what is less urgent, and still this one ends.
    submit("urgent", Priority::High).wait().unwrap();
    assert!(!low.is_done());
    let rest = [submit("low", Priority::Low), submit("later", Priority::Low)];
    submit("normal", Priority::Normal).wait().unwrap();
    assert_eq!(*order.lock().unwrap(), ["urgent", "normal"]);
    is_open.store(true, Ordering::SeqCst);
    for pending in rest {
        pending.wait().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), ["urgent", "normal", "low", "later"]);
    low.wait().unwrap();
}

#[test]
fn a_transfer_is_cancelled_by_its_pending_or_its_switch_and_no_other_is() {
    let rig = Rig::new(1, small().n_workers(1));
    let (dst, cancel) = (rig.memory(GPU, MIB), Cancel::new());
    let (tell, told, is_open) = gate();
    let other = rig.engine.on(GPU).share_progress(tell).submit_write(dst, Arc::new([1; 10]));
    told.recv().unwrap();
    let buffer = || Box::new(vec![7; 100]);
    let by_pending = rig.engine.on(GPU).cancel(&cancel).submit_read(dst, buffer());
    let goes_on = rig.engine.on(GPU).cancel(&cancel).submit_write(dst, Arc::new([2; 10]));
    by_pending.cancel();
    is_open.store(true, Ordering::SeqCst);
    let failed = by_pending.wait().unwrap_err();
    let TransferError::Cancelled { missing } = failed.error else { panic!("{failed:?}") };
    assert_eq!(*missing, [Segment { host_offset: 0, device: dst, bytes: 100 }]);
    assert_eq!((*failed.buffer).as_ref(), [7; 100], "the buffer comes back as it was");
    other.wait().unwrap();
    goes_on.wait().unwrap();
    cancel.cancel();
    let by_switch = rig.engine.on(GPU).cancel(&cancel).submit_write(dst, Arc::new([3; 10]));
    assert!(matches!(by_switch.wait(), Err(TransferError::Cancelled { .. })));
    assert_eq!(found(&rig, dst, 10), [2; 10]);
}

#[test]
fn a_transfer_under_way_is_cancelled_between_chunks() {
    let rig = Rig::new(2, small());
    let dst = rig.memory(GPU, 64 * MIB);
    let (tell, told, is_open) = gate();
    let transfer = rig.engine.on(GPU).share_progress(tell);
    let pending = transfer.submit_write_buffer(dst, Box::new(vec![1; 64 << 20]));
    told.recv().unwrap();
    pending.cancel();
    is_open.store(true, Ordering::SeqCst);
    let TransferError::Cancelled { missing } = pending.wait().unwrap_err().error else { panic!() };
    let missing: u64 = missing.iter().map(|segment| segment.bytes).sum();
    assert!((63 * MIB..64 * MIB).contains(&missing), "{missing}");
}

#[test]
fn a_callback_that_panics_stops_its_transfer_only() {
    let rig = Rig::new(2, small().n_workers(1));
    let dst = rig.memory(GPU, MIB);
    let calls = Arc::new(AtomicU64::new(0));
    for panics_at in [64 << 10, MIB] {
        let n = Arc::clone(&calls);
        let tell = Arc::new(move |progress: Progress| {
            n.fetch_add(1, Ordering::SeqCst);
            assert!(progress.done_bytes < panics_at, "a callback that panics");
        });
        let transfer = rig.engine.on(GPU).share_progress(tell);
        let error = transfer.submit_write(dst, Arc::new(vec![1; 1 << 20])).wait().unwrap_err();
        let TransferError::Panicked { missing } = error else { panic!("{error:?}") };
        assert_eq!(missing.is_empty(), panics_at == MIB, "at the end everything has arrived");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1 + 16, "it is not called again");
    rig.engine.on(GPU).submit_write(dst, Arc::new([4; 10])).wait().unwrap();
    assert_eq!(found(&rig, dst, 10), [4; 10]);
    // The lanes have come back: there is one set of them.
    assert_eq!(rig.driver.n_pending(lane(1)).unwrap(), 0);
    assert_eq!(rig.driver.n_pending(lane(9)), Err(DriverError::UnknownStream(lane(9))));
}

/// Bytes that cannot be had in a thread of the engine.
struct Explosive(Thread);

impl AsRef<[u8]> for Explosive {
    fn as_ref(&self) -> &[u8] {
        assert_eq!(thread::current().id(), self.0.id(), "bytes that panic");
        &[1; 10]
    }
}

impl Drop for Explosive {
    fn drop(&mut self) {
        assert_eq!(thread::current().id(), self.0.id(), "a drop that panics");
    }
}

#[test]
fn bytes_that_panic_leave_nobody_waiting() {
    let rig = Rig::new(1, small().n_workers(1));
    let dst = rig.memory(GPU, 10);
    let pending = rig.engine.on(GPU).submit_write(dst, Arc::new(Explosive(thread::current())));
    assert!(matches!(pending.wait(), Err(TransferError::Panicked { missing }) if missing.len() == 1));
    rig.engine.on(GPU).submit_write(dst, Arc::new([4; 10])).wait().unwrap();
}

#[test]
fn a_failed_transfer_gives_the_buffer_back() {
    let rig = Rig::new(1, small());
    let dst = rig.memory(GPU, MIB);
    rig.driver.plan(Fault::nth(0).of(Target::Copies).from_then_on());
    let failed = rig.engine.on(GPU).submit_read(dst, Box::new(vec![7; 1 << 20])).wait().unwrap_err();
    assert_eq!((*failed.buffer).as_ref().len(), 1 << 20);
    assert!(matches!(failed.error, TransferError::NoPath { .. } | TransferError::Driver(_)), "{failed}");
    rig.driver.clear_faults();
    let outside = vec![Segment { host_offset: 5, device: dst, bytes: 6 }];
    let error = rig.engine.on(GPU).submit_write_segments(outside, Arc::new([0; 10])).wait().unwrap_err();
    assert!(matches!(error, TransferError::Segments(_)));
}

#[test]
fn after_means_what_was_enqueued_when_it_was_submitted() {
    use glake_core::driver::DeviceOps;
    let rig = Rig::new(2, small().n_workers(1));
    let dst = rig.memory(GPU, MIB);
    let stream = rig.driver.create_stream(GPU).unwrap();
    let (tell, told, is_open) = gate();
    let busy = rig.engine.on(GPU).share_progress(tell).submit_write(dst, Arc::new([0; 10]));
    told.recv().unwrap();
    rig.driver.delay(stream, 50_000_000).unwrap();
    rig.driver.fill(AddressRange::new(dst, MIB), 1, stream).unwrap();
    let pending = rig.engine.on(GPU).after(stream).submit_write(dst, Arc::new(vec![2; 1 << 19]));
    // What comes behind it is not waited for; the stream need not even be there any more.
    rig.driver.delay(stream, 900_000_000_000).unwrap();
    rig.driver.destroy_stream(stream).unwrap();
    is_open.store(true, Ordering::SeqCst);
    pending.wait().unwrap();
    busy.wait().unwrap();
    assert!((50_000_000..900_000_000_000).contains(&rig.driver.now_ns()), "{}", rig.driver.now_ns());
    let found = found(&rig, dst, MIB);
    assert!(found[..1 << 19].iter().all(|byte| *byte == 2) && found[1 << 19..].iter().all(|byte| *byte == 1));
    let error = rig.engine.on(GPU).after(stream).submit_write(dst, Arc::new([0; 10])).wait().unwrap_err();
    assert!(matches!(error, TransferError::Driver(error) if *error == DriverError::UnknownStream(stream)));
}
