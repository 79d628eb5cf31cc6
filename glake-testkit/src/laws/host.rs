//! Laws of host memory under asynchronous copies.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use glake_core::driver::{Driver, DriverError, Held, HostBuffer, Lent};
use glake_core::units::{DeviceId, HostId, PAGE_BYTES, StreamId};

use super::rig::Rig;

const DELAY_NS: u64 = 3_000_000;

/// Pinned memory of a page, filled with `value`.
fn pinned(driver: &dyn Driver, value: u8) -> HostBuffer {
    let mut buffer = driver.pin(PAGE_BYTES, DeviceId(0)).unwrap();
    assert!((*buffer).as_ref().iter().all(|byte| *byte == 0), "pinned memory is zero at first");
    (*buffer).as_mut().fill(value);
    buffer
}

/// The buffer behind `host`, once the work of the streams is done.
fn back(driver: &dyn Driver, host: HostId, streams: &[StreamId]) -> HostBuffer {
    for stream in streams {
        let event = driver.record(*stream).unwrap();
        driver.synchronize(event).unwrap();
        driver.forget(event);
    }
    loop {
        if let Some(buffer) = driver.take_back(host).unwrap() {
            return buffer;
        }
    }
}

/// A copy from a held buffer sees what an earlier copy on its stream has put there.
pub fn held_memory_is_read_when_the_copy_runs(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(2);
    driver.fill(range, 7, rig.stream).unwrap();
    let host = driver.hold(Held::Owned(pinned(driver, 1)));
    driver.delay(rig.stream, DELAY_NS).unwrap();
    driver.read_into(range.start, host, 100..300, rig.stream).unwrap();
    driver.write_from(range.start + PAGE_BYTES, host, 0..400, rig.stream).unwrap();
    let mut expected = [1; 400];
    expected[100..300].fill(7);
    assert_eq!(rig.bytes(range.start + PAGE_BYTES, 400), expected);
    back(driver, host, &[rig.stream]);
    rig.close();
}

/// A buffer comes back once, with what devices wrote, when all copies on all streams are done.
pub fn a_buffer_comes_back_when_its_copies_are_done(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let other = driver.create_stream(rig.device).unwrap();
    let range = rig.pages(1);
    driver.fill(range, 5, rig.stream).unwrap();
    rig.finish();
    let host = driver.hold(Held::Owned(pinned(driver, 1)));
    driver.delay(other, DELAY_NS).unwrap();
    driver.read_into(range.start, host, 0..1, other).unwrap();
    driver.read_into(range.start, host, 2..3, rig.stream).unwrap();
    let buffer = back(driver, host, &[rig.stream, other]);
    assert_eq!((*buffer).as_ref()[..4], [5, 1, 5, 1]);
    assert_eq!(driver.take_back(host).unwrap_err(), DriverError::UnknownHost(host));
    let again = driver.hold(Held::Owned(buffer));
    assert_ne!(again, host);
    assert_eq!((*back(driver, again, &[])).as_ref()[..4], [5, 1, 5, 1]);
    driver.destroy_stream(other).unwrap();
    rig.close();
}

/// Memory that was let go is known no more, and copies that were enqueued are made from it.
pub fn memory_that_was_let_go_is_kept_until_its_copies_are_done(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let held = [Held::Owned(pinned(driver, 3)), Held::Shared(Arc::new(vec![4; 4096]))];
    driver.delay(rig.stream, DELAY_NS).unwrap();
    for (n, memory) in (0..).zip(held) {
        let host = driver.hold(memory);
        driver.write_from(range.start + n * 4096, host, 0..4096, rig.stream).unwrap();
        driver.let_go(host);
        driver.let_go(host);
        assert_eq!(driver.take_back(host).unwrap_err(), DriverError::UnknownHost(host));
        let refused = driver.write_from(range.start, host, 0..1, rig.stream);
        assert_eq!(refused, Err(DriverError::UnknownHost(host)));
    }
    assert_eq!(rig.bytes(range.start, 4096), [3; 4096]);
    assert_eq!(rig.bytes(range.start + 4096, 4096), [4; 4096]);
    rig.close();
}

/// Lent memory is copied from and to while it is lent, pinned or not.
pub fn lent_memory_comes_back_when_its_copies_are_done(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let (source, mut sink) = (vec![9; 5000], [pinned(driver, 2), Box::new(vec![2; 5000])]);
    driver.delay(rig.stream, DELAY_NS).unwrap();
    let write = &mut |host| driver.write_from(range.start, host, 1..5000, rig.stream);
    driver.lend(Lent::Source(&source), write).unwrap();
    for sink in &mut sink {
        let sink = &mut (**sink).as_mut()[..5000];
        driver.delay(rig.stream, DELAY_NS).unwrap();
        let mut seen = None;
        let lent = driver.lend(Lent::Sink(sink), &mut |host| {
            seen = Some(host);
            driver.read_into(range.start, host, 10..20, rig.stream)
        });
        lent.unwrap();
        assert_eq!(sink[8..22], [2, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 2, 2]);
        let late = driver.read_into(range.start, seen.unwrap(), 0..1, rig.stream);
        assert_eq!(late, Err(DriverError::UnknownHost(seen.unwrap())));
    }
    rig.close();
}

/// Lent memory is waited for where the borrower fails, and where it panics.
pub fn lent_memory_comes_back_after_a_failure_too(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    driver.fill(range, 6, rig.stream).unwrap();
    let mut sink = vec![0; 8];
    driver.delay(rig.stream, DELAY_NS).unwrap();
    let failed = driver.lend(Lent::Sink(&mut sink), &mut |host| {
        driver.read_into(range.start, host, 0..8, rig.stream)?;
        Err(DriverError::Planned)
    });
    assert_eq!(failed, Err(DriverError::Planned));
    assert_eq!(sink, [6; 8]);
    driver.delay(rig.stream, DELAY_NS).unwrap();
    let source = vec![8; 8];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        driver.lend(Lent::Source(&source), &mut |host| {
            driver.write_from(range.start, host, 0..8, rig.stream).unwrap();
            panic!("planned");
        })
    }));
    assert!(panicked.is_err());
    drop(source);
    assert_eq!(rig.bytes(range.start, 9), [8, 8, 8, 8, 8, 8, 8, 8, 6]);
    rig.close();
}

/// A loan ends at its end only, whatever is said of its id meanwhile.
pub fn lent_memory_is_not_let_go_nor_taken_back(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    driver.fill(range, 6, rig.stream).unwrap();
    let mut sink = vec![0; 8];
    driver.delay(rig.stream, DELAY_NS).unwrap();
    let lent = driver.lend(Lent::Sink(&mut sink), &mut |host| {
        driver.read_into(range.start, host, 0..4, rig.stream)?;
        driver.let_go(host);
        assert_eq!(driver.take_back(host).unwrap_err(), DriverError::UnknownHost(host));
        driver.read_into(range.start, host, 4..8, rig.stream)
    });
    lent.unwrap();
    assert_eq!(sink, [6; 8]);
    rig.close();
}

/// Ranges outside the host memory or the device's are refused; empty ones do nothing.
pub fn only_parts_of_held_memory_are_copied(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    rig.put(range.start, 1);
    let host = driver.hold(Held::Owned(Box::new(vec![2; 100])));
    #[allow(clippy::reversed_empty_ranges, reason = "the range is to be refused")]
    for outside in [0..101, 101..102, 50..40, 0..u64::MAX, u64::MAX - 1..u64::MAX] {
        let write = driver.write_from(range.start, host, outside.clone(), rig.stream);
        assert!(matches!(write, Err(DriverError::InvalidValue(_))), "{outside:?}: {write:?}");
        let read = driver.read_into(range.start, host, outside.clone(), rig.stream);
        assert!(matches!(read, Err(DriverError::InvalidValue(_))), "{outside:?}: {read:?}");
    }
    let behind = range.end();
    let unknown = Err(DriverError::UnknownAddress(behind));
    assert_eq!(driver.write_from(behind, host, 0..1, rig.stream), unknown);
    assert_eq!(driver.read_into(range.start + (PAGE_BYTES - 1), host, 0..2, rig.stream), unknown);
    driver.write_from(range.start, host, 100..100, rig.stream).unwrap();
    driver.read_into(range.start, host, 3..3, rig.stream).unwrap();
    assert_eq!(rig.get(range.start), 1);
    assert_eq!((*back(driver, host, &[rig.stream])).as_ref(), [2; 100]);
    rig.close();
}

/// Shared and borrowed bytes are not written.
pub fn read_only_memory_is_not_written(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let host = driver.hold(Held::Shared(Arc::new(vec![1; 8])));
    let refused = driver.read_into(range.start, host, 0..8, rig.stream);
    assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{refused:?}");
    assert_eq!(driver.take_back(host).unwrap_err(), DriverError::UnknownHost(host), "nobody's to have");
    driver.let_go(host);
    let lent = driver.lend(Lent::Source(&[1; 8]), &mut |host| {
        let refused = driver.read_into(range.start, host, 0..8, rig.stream);
        assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{refused:?}");
        Ok(())
    });
    lent.unwrap();
    rig.close();
}

/// Pinned memory is known as such in all its parts, other memory is not.
pub fn pinned_memory_is_told_apart(driver: &dyn Driver) {
    let buffer = pinned(driver, 0);
    let bytes = (*buffer).as_ref();
    assert!(driver.is_pinned(bytes));
    assert!(driver.is_pinned(&bytes[1000..2000]));
    assert!(driver.is_pinned(&bytes[bytes.len() - 1..]));
    assert!(!driver.is_pinned(&[0; 100]));
    assert!(!driver.is_pinned(&vec![0; 1 << 20]));
}
