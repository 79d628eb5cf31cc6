//! Host memory that the CUDA driver holds, over the stand-in.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests panic to fail")]

use glake_core::driver::{Access, Copies, DriverError, Held, HostMemory, Lent, StreamOrder, VirtualMemory};
use glake_core::units::{AddressRange, DeviceId, PAGE_BYTES};
use glake_cuda::CudaDriver;
use glake_standin::Completion;

#[path = "shared/host.rs"]
mod shared;

const DEVICE: DeviceId = DeviceId(0);
const CODE: u32 = 999;

fn driver() -> CudaDriver {
    let _entered = glake_standin::enter();
    glake_cuda::open().expect("the stand-in is there")
}

/// Work of the calling thread's streams completes late from now on.
fn work_late() {
    glake_standin::enter().complete(Completion::Lag(20));
}

/// A page filled with 7.
fn filled(driver: &CudaDriver) -> AddressRange {
    let range = driver.reserve(PAGE_BYTES, PAGE_BYTES).unwrap();
    driver.map(range.start, driver.create(DEVICE, PAGE_BYTES).unwrap()).unwrap();
    driver.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    let stream = driver.create_stream(DEVICE).unwrap();
    driver.fill(range, 7, stream).unwrap();
    driver.synchronize(driver.record(stream).unwrap()).unwrap();
    range
}

/// Where no event can be recorded behind a copy, it is waited for.
#[test]
fn a_copy_without_an_event_is_waited_for() {
    glake_standin::alone("a_copy_without_an_event_is_waited_for", &[], |stand_in| {
        stand_in.complete(Completion::Manual);
        let driver = driver();
        let range = filled(&driver);
        let stream = driver.create_stream(DEVICE).unwrap();
        let host = driver.hold(Held::Owned(driver.pin(8, DEVICE).unwrap()));
        // The second copy records the event of the first again.
        for n in 0..2 {
            stand_in.fail("cuEventRecord", 1, CODE);
            driver.read_into(range.start, host, 4 * n..4 * n + 4, stream).unwrap();
            assert_eq!((stand_in.forget_failures(), stand_in.n_pending(stream.0)), (0, 0));
            driver.read_into(range.start, host, 0..1, stream).unwrap();
            assert_eq!(stand_in.n_pending(stream.0), 2);
        }
        assert!(driver.take_back(host).unwrap().is_none());
        driver.synchronize(driver.record(stream).unwrap()).unwrap();
        assert_eq!((*driver.take_back(host).unwrap().unwrap()).as_ref(), [7; 8]);
    });
}

/// Where it cannot be waited for either, held memory is kept for good, and a loan ends behind all work.
#[test]
fn a_copy_that_nobody_can_wait_for_keeps_its_memory() {
    glake_standin::alone("a_copy_that_nobody_can_wait_for_keeps_its_memory", &[], |stand_in| {
        stand_in.complete(Completion::Manual);
        let driver = driver();
        let range = filled(&driver);
        let stream = driver.create_stream(DEVICE).unwrap();
        let fail = || {
            ["cuEventRecord", "cuStreamSynchronize", "cuCtxSynchronize"]
                .map(|name| stand_in.fail(name, 1, CODE))
        };
        let native = Err(DriverError::Native { call: "cuStreamSynchronize", code: CODE });
        let host = driver.hold(Held::Owned(driver.pin(8, DEVICE).unwrap()));
        let pool = format!("{driver:?}");
        fail();
        assert_eq!(driver.read_into(range.start, host, 0..8, stream), native);
        assert_eq!((stand_in.forget_failures(), stand_in.n_pending(stream.0)), (0, 1));
        for _ in 0..2 {
            assert_eq!(driver.take_back(host).unwrap_err(), DriverError::DeviceLost);
        }
        driver.let_go(host);
        driver.synchronize(driver.record(stream).unwrap()).unwrap();
        driver.memory_info(DEVICE).unwrap();
        assert_eq!(
            format!("{driver:?}").split("PinnedPool").nth(1),
            pool.split("PinnedPool").nth(1),
            "it is not idle"
        );
        let mut sink = driver.pinned(8).unwrap();
        let lent = driver.lend(Lent::Sink(&mut sink), &mut |host| {
            fail();
            driver.read_into(range.start, host, 0..8, stream)
        });
        assert_eq!((lent, &sink[..]), (native, &[7; 8][..]));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            driver.lend(Lent::Sink(&mut sink[..4]), &mut |host| {
                driver.write_from(range.start, host, 0..4, stream).unwrap();
                driver.fill(AddressRange::new(range.start, 4), 9, stream).unwrap();
                // The end of the loan waits for its event, or else for all work.
                stand_in.fail("cuEventSynchronize", 1, CODE);
                driver.read_into(range.start, host, 0..4, stream).unwrap();
                panic!("planned");
            })
        }));
        assert!(panicked.is_err());
        assert_eq!((stand_in.forget_failures(), &sink[..]), (0, &[9, 9, 9, 9, 7, 7, 7, 7][..]));
    });
}

/// Streams come and go under memory that is held for long.
#[test]
fn events_behind_streams_that_are_gone_are_used_again() {
    glake_standin::alone("events_behind_streams_that_are_gone_are_used_again", &[], |stand_in| {
        stand_in.complete(Completion::Immediate);
        let driver = driver();
        let range = filled(&driver);
        let host = driver.hold(Held::Owned(driver.pin(8, DEVICE).unwrap()));
        let before = stand_in.n_calls("cuEventCreate");
        for _ in 0..1000 {
            let stream = driver.create_stream(DEVICE).unwrap();
            driver.write_from(range.start, host, 0..8, stream).unwrap();
            driver.read_into(range.start, host, 0..8, stream).unwrap();
            driver.destroy_stream(stream).unwrap();
        }
        let n_made = stand_in.n_calls("cuEventCreate") - before;
        assert!(n_made <= 16, "{n_made} events");
        assert!(driver.take_back(host).unwrap().is_some());
    });
}
