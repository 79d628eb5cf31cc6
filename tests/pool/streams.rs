//! One pool, several streams.

use std::sync::Arc;

use glake::sim::{Completion, SimConfig, SimDriver};
use glake::{AllocError, Buffer, Driver, DriverError, Pool, StreamId};

use super::{DEVICE, MIB};

/// A driver whose work is done when the test says so, a pool over it, and two streams of others.
fn late() -> (Arc<SimDriver>, Pool, [StreamId; 2]) {
    let driver = Arc::new(SimConfig::h200(1).completion(Completion::Manual).build());
    let streams = [(); 2].map(|()| {
        let driver: &dyn Driver = &*driver;
        driver.create_stream(DEVICE).unwrap()
    });
    let pool = Pool::builder(Arc::clone(&driver), DEVICE).limit_bytes(16 * MIB).build().unwrap();
    (driver, pool, streams)
}

fn bytes(pool: &Pool, mib: u64, stream: StreamId) -> Result<Buffer<u8>, AllocError> {
    pool.alloc(usize::try_from(mib * MIB).unwrap(), stream)
}

/// Enqueues work on `stream` that uses the buffer.
fn use_on(driver: &SimDriver, buffer: &Buffer<u8>, stream: StreamId) {
    let driver: &dyn Driver = driver;
    driver.fill_pattern(buffer.range(), 1, stream).unwrap();
}

/// Whether work enqueued on `to` now waits for what is enqueued on `from`.
fn waits(driver: &SimDriver, to: StreamId, from: StreamId) -> bool {
    let driver_ref: &dyn Driver = driver;
    let event = driver_ref.record(to).unwrap();
    driver.complete(to, usize::MAX).unwrap();
    let is_held_up = !driver_ref.query(event).unwrap();
    driver.complete(from, usize::MAX).unwrap();
    driver.complete(to, usize::MAX).unwrap();
    assert!(driver_ref.query(event).unwrap());
    driver_ref.forget(event);
    is_held_up
}

#[test]
fn memory_goes_from_stream_to_stream() {
    let (driver, pool, [first, second]) = late();
    let a = bytes(&pool, 16, first).unwrap();
    assert_eq!(a.stream(), first);
    use_on(&driver, &a, first);
    let at = a.ptr();
    drop(a);
    let b = bytes(&pool, 16, second).unwrap();
    assert_eq!((b.ptr(), b.stream(), pool.stats().reserved_bytes), (at, second, 16 * MIB));
    assert!(waits(&driver, second, first), "work on the second stream runs behind that on the first");
    drop(b);
    drop(bytes(&pool, 16, pool.stream()).unwrap());
    pool.close().unwrap();
}

#[test]
fn a_buffer_is_freed_behind_the_streams_that_used_it() {
    let (driver, pool, [first, second]) = late();
    let a = bytes(&pool, 16, first).unwrap();
    a.record_use(second).unwrap();
    use_on(&driver, &a, second);
    let at = a.ptr();
    drop(a);
    assert_eq!(pool.stats().n_live, 0);
    let b = bytes(&pool, 16, first).unwrap();
    assert_eq!(b.ptr(), at);
    assert_eq!(driver.complete(second, usize::MAX), Ok(0), "the host has waited, for want of other memory");
}

#[test]
fn a_buffer_may_be_freed_on_another_stream() {
    let (driver, pool, [first, second]) = late();
    let a = bytes(&pool, 16, first).unwrap();
    let at = a.ptr();
    use_on(&driver, &a, second);
    a.free_on(second);
    assert_eq!(pool.stats().n_live, 0);
    let b = bytes(&pool, 16, first).unwrap();
    assert_eq!(b.ptr(), at);
    assert!(waits(&driver, first, second));
}

#[test]
fn small_buffers_dropped_in_other_threads_are_freed_on_their_stream() {
    let (_, pool, [first, second]) = late();
    let buffers: Vec<Buffer<u8>> =
        (0..100).map(|i| pool.alloc(1000, if i % 2 == 0 { first } else { second }).unwrap()).collect();
    std::thread::scope(|scope| scope.spawn(|| drop(buffers)).join().unwrap());
    let stats = pool.stats();
    assert_eq!((stats.n_live, stats.allocated_bytes), (0, 0));
    pool.trim(0).unwrap();
    assert_eq!(pool.stats().reserved_bytes, 0);
}

#[test]
fn a_stream_may_end_before_the_pool() {
    let (driver, pool, [first, second]) = late();
    drop(bytes(&pool, 16, first).unwrap());
    pool.stream_ends(first).unwrap();
    let driver_ref: &dyn Driver = &*driver;
    driver_ref.destroy_stream(first).unwrap();
    assert_eq!(driver_ref.record(first), Err(DriverError::UnknownStream(first)));
    drop(bytes(&pool, 16, second).unwrap());
    pool.close().unwrap();
    assert_eq!(driver_ref.ledger(DEVICE).unwrap().physical_bytes, 0);
}

#[test]
fn a_graph_keeps_the_memory_of_its_capture() {
    let (driver, pool, [first, second]) = late();
    let mut capture = pool.capture(first).unwrap();
    capture.join(second).unwrap();
    drop(bytes(&pool, 4, first).unwrap());
    drop(pool.alloc::<u8>(1000, second).unwrap());
    let memory = capture.end();
    let a = bytes(&pool, 10, first).unwrap();
    driver.complete_all();
    assert!(bytes(&pool, 4, first).is_err(), "6 MiB are the graph's");
    memory.finished();
    let b = bytes(&pool, 6, first).unwrap();
    drop((a, b));
    pool.close().unwrap();
}

#[test]
fn a_capture_that_is_dropped_gives_its_memory_back() {
    let (driver, pool, [first, _]) = late();
    let capture = pool.capture(first).unwrap();
    drop(bytes(&pool, 16, first).unwrap());
    drop(capture);
    driver.complete_all();
    drop(bytes(&pool, 16, first).unwrap());
}

/// More than a pool can tell apart, one behind the other.
const MANY: usize = 5000;

#[test]
fn streams_that_vanish_unsaid_make_room_for_others() {
    let driver: Arc<dyn Driver> = Arc::new(SimDriver::h200(1));
    let pool = Pool::builder(Arc::clone(&driver), DEVICE).build().unwrap();
    for _ in 0..MANY {
        let stream = driver.create_stream(DEVICE).unwrap();
        drop(pool.alloc::<u8>(1000, stream).unwrap());
        driver.destroy_stream(stream).unwrap();
    }
    pool.close().unwrap();
}

#[test]
fn threads_that_ended_make_room_for_others() {
    let pool = Pool::builder(SimDriver::h200(1), DEVICE).build().unwrap();
    for _ in 0..MANY {
        std::thread::scope(|scope| {
            scope.spawn(|| drop(pool.alloc::<u8>(1000, StreamId::PER_THREAD).unwrap()));
        });
    }
    pool.close().unwrap();
}
