//! The thread for background work.

use std::sync::Arc;

use glake::Pool;
use glake::sim::SimDriver;

use super::{DEVICE, MIB};

/// Lets other threads run until `done`, or too long.
fn comes_true(done: impl Fn() -> bool) -> bool {
    let rest = || std::thread::park_timeout(std::time::Duration::from_millis(1));
    (0..10_000).any(|_| {
        done() || {
            rest();
            false
        }
    })
}

#[test]
fn headroom_is_there_without_a_request() {
    let pool = Pool::builder(SimDriver::h200(1), DEVICE).headroom_bytes(64 * MIB).build().unwrap();
    assert!(comes_true(|| pool.stats().reserved_bytes >= 64 * MIB));
    let calls = pool.stats().n_misses;
    let buffer = pool.alloc::<u8>(60 << 20, pool.stream()).unwrap();
    assert_eq!(pool.stats().n_misses, calls, "no driver call was needed");
    drop(buffer);
    pool.close().unwrap();
}

#[test]
fn a_pool_closes_and_drops_with_its_thread() {
    let driver = Arc::new(SimDriver::h200(1));
    for round in 0..50 {
        let pool = Pool::builder(Arc::clone(&driver), DEVICE).background().headroom_bytes(4 * MIB).build();
        let pool = pool.unwrap();
        drop(pool.alloc::<f32>(1000, pool.stream()).unwrap());
        if round % 2 == 0 { pool.close().unwrap() } else { drop(pool) }
    }
    let physical_bytes = || glake::Driver::ledger(&*driver, DEVICE).unwrap().physical_bytes;
    assert!(comes_true(|| physical_bytes() == 0), "the last thread ends");
}

#[test]
fn a_pool_that_is_used_does_not_close() {
    let pool = Pool::builder(SimDriver::h200(1), DEVICE).background().build().unwrap();
    let buffer = pool.alloc::<f32>(1000, pool.stream()).unwrap();
    assert!(pool.close().is_err());
    drop(buffer);
}

#[test]
fn a_pool_that_does_not_close_keeps_its_thread() {
    let pool = Pool::builder(SimDriver::h200(1), DEVICE).headroom_bytes(8 * MIB).build().unwrap();
    assert!(pool.clone().close().is_err());
    pool.trim(0).unwrap();
    assert!(comes_true(|| pool.stats().reserved_bytes >= 8 * MIB), "the thread still works");
    pool.close().unwrap();
}
