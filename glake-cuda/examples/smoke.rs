//! A first look at a machine: opens the driver, stitches two handles, runs every kind of call once
//! and prints what the driver cost.
//!
//! `cargo run -p glake-cuda --example smoke`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::error::Error;

use glake_core::driver::{
    Access, Call, Copies, DeviceOps, Driver, Piece, Sharing, StreamOrder, VirtualMemory,
};
use glake_core::units::{AddressRange, DeviceId, PAGE_BYTES};

fn main() -> Result<(), Box<dyn Error>> {
    let driver = match glake_cuda::open() {
        Ok(driver) => driver,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    let device = DeviceId(0);
    let page = driver.granularity(device)?;
    println!("{} devices, granularity {page}, {:?}", driver.n_devices(), driver.memory_info(device)?);
    assert_eq!(page, PAGE_BYTES);
    let stream = driver.create_stream(device)?;

    let range = driver.reserve(4 * page, page)?;
    let [a, b] = [driver.create(device, page)?, driver.create(device, page)?];
    let at = |n: u64| range.start + n * page;
    driver.map(at(0), a)?;
    driver.map(at(1), b)?;
    driver.map(at(2), b)?;
    driver.map(at(3), a)?;
    driver.set_access(range, &[device], Access::ReadWrite)?;
    println!("mapped two handles at four addresses: {range}");

    let (low, high) = (AddressRange::new(at(0), 2 * page), AddressRange::new(at(2), 2 * page));
    driver.fill_pattern(low, 7, stream)?;
    driver.check_pattern(low, 7, stream)?;
    assert_eq!(driver.mismatches(stream)?, 0, "the pattern reads back");
    driver.check_pattern(high, 7, stream)?;
    println!("crossed aliases: {} of {} words differ", driver.mismatches(stream)?, 2 * page / 8);
    driver.fill(AddressRange::new(at(0), 100), 0xab, stream)?;
    let mut bytes = [0; 100];
    driver.read(at(3), &mut bytes, stream)?;
    assert_eq!(bytes, [0xab; 100], "a fill shows through the alias");
    driver.write(at(1), b"glake", stream)?;
    driver.copy_by_kernel(at(0) + 3, at(2), 5, stream)?;
    driver.gather(&[Piece { dst: at(0) + 64, src: at(3), bytes: 16 }], stream)?;
    assert!(driver.compare(at(0) + 3, at(1), 5, stream)?, "an odd copy");
    assert!(driver.compare(at(0), at(3), page, stream)?, "aliases are equal");
    assert!(!driver.compare(at(0), at(1), page, stream)?, "different pages differ");

    driver.delay(stream, 20_000_000)?;
    let event = driver.record(stream)?;
    println!("behind a delay of 20 ms: passed {}", driver.query(event)?);
    driver.synchronize(event)?;
    assert!(driver.query(event)?, "passed");
    driver.forget(event);

    let fd = driver.export(a)?;
    let again = driver.import(device, fd, page)?;
    println!("exported and imported {again:?}");
    for handle in [a, b, again] {
        driver.release(handle)?;
    }
    driver.unmap(range)?;
    driver.unreserve(range)?;
    let ledger = driver.ledger(device)?;
    for call in Call::ALL {
        println!("{call:?}: {}", ledger.n(call));
    }
    println!("{ledger:?}");
    driver.destroy_stream(stream)?;
    driver.close()?;
    println!("closed");
    Ok(())
}
