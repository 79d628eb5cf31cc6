//! The public pool, on the simulated driver and, with the feature `gpu`, on a GPU.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::Arc;

use glake::driver::pattern_word;
use glake::sim::SimDriver;
use glake::{AllocError, Buffer, DeviceId, Driver, DriverError, Mode, Pool};

mod background;
mod streams;

const DEVICE: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

fn sim() -> Arc<dyn Driver> {
    Arc::new(SimDriver::h200(1))
}

fn pool(driver: &Arc<dyn Driver>) -> Pool {
    Pool::builder(Arc::clone(driver), DEVICE).limit_bytes(192 * MIB).build().unwrap()
}

fn floats(pool: &Pool, mib: u64) -> Buffer<f32> {
    pool.alloc(usize::try_from(mib * MIB / 4).unwrap(), pool.stream()).unwrap()
}

/// What a program sees of a pool, on any driver.
fn buffers_hold_values_through_a_stitch(driver: &Arc<dyn Driver>) {
    let pool = pool(driver);
    let (a, mut b, c) = (floats(&pool, 64), floats(&pool, 64), floats(&pool, 64));
    let ones = vec![1.0; b.len()];
    b.copy_from_slice(&ones).unwrap();
    let at = b.ptr();
    drop((a, c));
    let mut d = floats(&pool, 128);
    let twos = vec![2.0; d.len()];
    d.copy_from_slice(&twos).unwrap();
    assert_eq!(b.ptr(), at);
    assert_eq!(b.to_vec().unwrap(), ones);
    assert_eq!(d.to_vec().unwrap(), twos);
    let stats = pool.stats();
    assert_eq!((stats.requested_bytes, stats.reserved_bytes), (192 * MIB, 192 * MIB));
    assert_eq!(stats.n_stitches, 1);
    drop((b, d));
    assert_eq!(pool.stats().requested_bytes, 0);
    pool.close().unwrap();
}

fn device_work_takes_the_address_of_a_buffer(driver: &Arc<dyn Driver>) {
    let pool = pool(driver);
    let buffer = pool.alloc::<u64>(1000, pool.stream()).unwrap();
    driver.fill_pattern(buffer.range(), 7, buffer.stream()).unwrap();
    assert_eq!(buffer.kernel_arg(), &buffer.ptr().0);
    assert_eq!(buffer.to_vec().unwrap(), (0..1000).map(|i| pattern_word(7, i)).collect::<Vec<_>>());
}

#[test]
fn buffers_hold_values_through_a_stitch_on_the_simulated_driver() {
    buffers_hold_values_through_a_stitch(&sim());
}

#[test]
fn device_work_takes_the_address_of_a_buffer_on_the_simulated_driver() {
    device_work_takes_the_address_of_a_buffer(&sim());
}

#[cfg(feature = "gpu")]
mod on_a_gpu {
    use super::{Arc, Driver};

    fn cuda() -> Arc<dyn Driver> {
        Arc::new(glake::cuda::open().unwrap())
    }

    #[test]
    fn buffers_hold_values_through_a_stitch() {
        super::buffers_hold_values_through_a_stitch(&cuda());
    }

    #[test]
    fn device_work_takes_the_address_of_a_buffer() {
        super::device_work_takes_the_address_of_a_buffer(&cuda());
    }
}

#[test]
fn a_pool_takes_drivers_by_value_and_shared() {
    let shared = Arc::new(SimDriver::h200(1));
    let pools = [
        Pool::builder(SimDriver::h200(1), DEVICE).build().unwrap(),
        Pool::builder(Arc::clone(&shared), DEVICE).build().unwrap(),
        Pool::builder(sim(), DEVICE).mode(Mode::Compact).stitch_above_bytes(1 << 30).build().unwrap(),
    ];
    for pool in &pools {
        assert_eq!(floats(pool, 2).device(), DEVICE);
    }
}

#[test]
fn a_pool_makes_its_own_stream_and_destroys_it() {
    let driver = sim();
    let pool = pool(&driver);
    let stream = pool.stream();
    assert_eq!(pool.alloc::<u8>(1, stream).unwrap().stream(), stream);
    drop(pool);
    assert_eq!(driver.record(stream), Err(DriverError::UnknownStream(stream)));
}

#[test]
fn a_given_stream_stays() {
    let driver = sim();
    let stream = driver.create_stream(DEVICE).unwrap();
    let pool = Pool::builder(Arc::clone(&driver), DEVICE).stream(stream).build().unwrap();
    assert_eq!(pool.stream(), stream);
    pool.close().unwrap();
    assert!(driver.record(stream).is_ok());
}

#[test]
fn buffers_keep_the_pool_alive_and_the_last_gives_all_back() {
    let driver = sim();
    let free_bytes = |driver: &Arc<dyn Driver>| driver.memory_info(DEVICE).unwrap().free_bytes;
    let before = free_bytes(&driver);
    let pool = pool(&driver);
    let mut buffer = floats(&pool, 8);
    drop(pool);
    assert!(free_bytes(&driver) < before);
    let values = vec![3.0; buffer.len()];
    buffer.copy_from_slice(&values).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), values);
    drop(buffer);
    assert_eq!(free_bytes(&driver), before);
}

#[test]
fn a_pool_in_use_is_not_closed() {
    let pool = pool(&sim());
    let buffer = floats(&pool, 2);
    let refused = pool.close();
    assert!(matches!(refused, Err(AllocError::Driver(DriverError::InvalidValue(_)))), "{refused:?}");
    drop(buffer);
}

#[test]
fn threads_share_a_pool() {
    let pool = pool(&sim());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let pool = pool.clone();
            scope.spawn(move || {
                for n in 1..200 {
                    let kept = pool.alloc::<u16>(n * 1000, pool.stream()).unwrap();
                    drop(pool.alloc::<u16>(n, pool.stream()).unwrap());
                    drop(kept);
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.n_allocations, stats.n_live), (4 * 199 * 2, 0));
}

#[test]
fn what_a_thread_dropped_is_free_for_its_next_request_whatever_others_do() {
    const N_THREADS: u64 = 4;
    let pool = Pool::builder(sim(), DEVICE).limit_bytes(N_THREADS * 2 * MIB).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..N_THREADS {
            // One buffer each at any time, and room for as many.
            scope.spawn(|| (0..50_000).for_each(|_| drop(floats(&pool, 2))));
        }
    });
    assert_eq!(pool.stats().n_failures, 0);
}

#[test]
fn dropped_memory_is_free_for_the_next_call() {
    let pool = pool(&sim());
    for _ in 0..10 {
        drop(floats(&pool, 192));
    }
    assert_eq!(pool.stats().reserved_bytes, 192 * MIB);
    assert_eq!(pool.trim(0).unwrap(), 192 * MIB);
}

#[test]
fn refusals_leave_the_pool_as_it_was() {
    let driver = sim();
    let pool = pool(&driver);
    let kept = floats(&pool, 100);
    let stream = pool.stream();
    let before = pool.stats();
    assert_eq!(pool.alloc::<f32>(0, stream).unwrap_err(), AllocError::ZeroBytes);
    assert_eq!(pool.alloc::<()>(9, stream).unwrap_err(), AllocError::ZeroBytes);
    assert!(matches!(pool.alloc::<f32>(usize::MAX, stream), Err(AllocError::TooLarge { .. })));
    assert_eq!(pool.stats(), before);
    let error = pool.alloc::<u8>(100 << 20, stream).unwrap_err();
    assert!(matches!(&error, AllocError::OutOfMemory(_)), "{error}");
    assert_eq!(pool.stats(), glake::Stats { n_failures: 1, ..before });
    drop(kept);
}

#[test]
fn values_of_another_length_are_refused() {
    let pool = pool(&sim());
    let mut buffer = pool.alloc::<f32>(4, pool.stream()).unwrap();
    assert!(matches!(buffer.copy_from_slice(&[0.0; 3]), Err(DriverError::InvalidValue(_))));
}

#[test]
fn a_lower_limit_gives_back_what_is_free() {
    let pool = pool(&sim());
    let kept = floats(&pool, 64);
    drop(floats(&pool, 64));
    assert_eq!(pool.set_limit_bytes(64 * MIB).unwrap(), 64 * MIB);
    assert!(pool.alloc::<f32>(1 << 20, pool.stream()).is_err());
    drop(kept);
}

#[test]
fn defragmenting_joins_what_is_free() {
    let pool = pool(&sim());
    let (a, b, c) = (floats(&pool, 64), floats(&pool, 64), floats(&pool, 64));
    drop((a, c));
    assert_eq!(pool.stats().largest_free_bytes, 64 * MIB);
    assert_eq!(pool.defragment().unwrap().largest_free_bytes, 128 * MIB);
    assert!(pool.fragmentation_ratio().abs() < f64::EPSILON);
    drop(b);
}
