//! Laws of copies and fills.

use std::sync::Arc;

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{AddressRange, DevicePtr, PAGE_BYTES};

use super::rig::{Rig, page, part};

const DELAY_NS: u64 = 3_000_000;

/// `n` bytes, each unlike its neighbours.
fn sample(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from(i * 31 % 251).unwrap()).collect()
}

/// Bytes written over the border of two handles come back, and their neighbours stay.
pub fn bytes_come_back_over_mapping_borders(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(3);
    driver.fill(range, 0xaa, rig.stream).unwrap();
    let data = sample((PAGE_BYTES + 200).try_into().unwrap());
    let at = page(range, 1) - range.start - 100;
    driver.write(range.start + at, &data, rig.stream).unwrap();
    assert!(rig.bytes(range.start + at, data.len()) == data);
    let around = [rig.get(range.start + (at - 1)), rig.get(range.start + (at + data.len() as u64))];
    assert_eq!(around, [0xaa; 2]);
    rig.close();
}

/// A blocking copy comes behind the work that is pending on its stream.
pub fn blocking_copies_wait_for_their_stream(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    driver.delay(rig.stream, DELAY_NS).unwrap();
    driver.fill(range, 1, rig.stream).unwrap();
    rig.put(range.start + 1, 2);
    driver.delay(rig.stream, DELAY_NS).unwrap();
    driver.fill(AddressRange::new(range.start + 2, 1), 3, rig.stream).unwrap();
    assert_eq!(rig.bytes(range.start, 4), [1, 2, 3, 1]);
    rig.close();
}

/// The source of an asynchronous write may go out of the caller's hands at once.
pub fn an_asynchronous_write_owns_its_bytes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    driver.delay(rig.stream, DELAY_NS).unwrap();
    for n in 0..16u64 {
        let data = vec![u8::try_from(n).unwrap(); 4096];
        driver.write_async(range.start + n * 4096, Arc::new(data), rig.stream).unwrap();
    }
    for n in 0..16u8 {
        assert_eq!(rig.bytes(range.start + u64::from(n) * 4096, 4096), [n; 4096], "write {n}");
    }
    rig.close();
}

/// An asynchronous read returns the bytes of its place in the stream's order, once.
pub fn an_asynchronous_read_is_taken_once(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    let read_behind_fill = |value| {
        driver.fill(range, value, rig.stream).unwrap();
        driver.read_async(range.start, vec![0; 100].into(), rig.stream).unwrap()
    };
    driver.delay(rig.stream, DELAY_NS).unwrap();
    let reads = [1, 2].map(read_behind_fill);
    driver.fill(range, 3, rig.stream).unwrap();
    rig.finish();
    for (read, value) in reads.into_iter().zip([1, 2]) {
        let taken = loop {
            if let Some(taken) = driver.take_read(read).unwrap() {
                break taken;
            }
        };
        assert_eq!(*taken, [value; 100]);
        assert_eq!(driver.take_read(read), Err(DriverError::UnknownRead));
    }
    rig.close();
}

/// A copy on the device moves its bytes, no more and no less, over handle borders.
pub fn a_copy_moves_exactly_its_bytes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (src, dst) = (rig.pages(2), rig.pages(2));
    let data = sample(5000);
    let at = PAGE_BYTES - 1234;
    driver.write(src.start + at, &data, rig.stream).unwrap();
    driver.fill(dst, 0xbb, rig.stream).unwrap();
    driver.copy(dst.start + (at + 1), src.start + at, 5000, rig.stream).unwrap();
    let mut expected = vec![0xbb];
    expected.extend(&data);
    expected.push(0xbb);
    assert_eq!(rig.bytes(dst.start + at, 5002), expected);
    rig.close();
}

/// A fill touches its range and nothing else.
pub fn a_fill_touches_exactly_its_range(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(2);
    driver.fill(range, 1, rig.stream).unwrap();
    let inner = AddressRange::new(range.start + 3, 2 * PAGE_BYTES - 8);
    driver.fill(inner, 2, rig.stream).unwrap();
    assert_eq!(rig.bytes(range.start, 5), [1, 1, 1, 2, 2]);
    assert_eq!(rig.bytes(DevicePtr(inner.end().0 - 2), 7), [2, 2, 1, 1, 1, 1, 1]);
    assert_eq!(rig.bytes(page(range, 1), 1), [2]);
    rig.close();
}

/// Copies and fills of nothing do nothing.
pub fn nothing_is_copied_by_empty_copies(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    rig.put(range.start, 4);
    driver.write(range.start, &[], rig.stream).unwrap();
    driver.read(range.start, &mut [], rig.stream).unwrap();
    driver.copy(range.start, range.start + 64, 0, rig.stream).unwrap();
    driver.fill(AddressRange::new(range.start, 0), 9, rig.stream).unwrap();
    driver.gather(&[], rig.stream).unwrap();
    assert_eq!(driver.compare(range.start, range.start + 1, 0, rig.stream), Ok(true));
    assert_eq!(rig.get(part(range, 0, 1).start), 4);
    rig.close();
}
