//! Fault sweep: every call of every needed function fails once, over the stand-in.

#![allow(clippy::panic, clippy::unwrap_used, reason = "tests panic to fail")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use cudarc::driver::CudaContext;
use glake_core::driver::{
    Access, Copies, DeviceOps, DriverError, Held, HostMemory, Lent, Piece, Result, Sharing, StreamOrder,
    VirtualMemory,
};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES, StreamId};
use glake_cuda::{CudaDriver, DeviceBuffer, OpenError, open};
use glake_standin::StandIn;

const DEVICE: DeviceId = DeviceId(0);
/// `CUDA_ERROR_UNKNOWN`.
const CODE: u32 = 999;

/// The functions that the driver needs: the list that it looks for when it is opened.
fn needed() -> Vec<&'static str> {
    let source = include_str!("../src/probe.rs");
    let list = source.split_once("NEEDED: &[&str] = &[").unwrap().1.split_once("];").unwrap().0;
    list.lines().map(|line| line.trim().trim_matches(['"', ','])).filter(|name| !name.is_empty()).collect()
}

/// Calls every function that the driver needs.
fn work(driver: &CudaDriver) -> Result<()> {
    let stream = driver.create_stream(DEVICE)?;
    let range = driver.reserve(PAGE_BYTES, PAGE_BYTES)?;
    let handle = driver.create(DEVICE, PAGE_BYTES)?;
    driver.map(range.start, handle)?;
    driver.set_access(range, &[DEVICE], Access::ReadWrite)?;
    let (at, to) = (range.start, range.start + 4096);
    driver.fill(range, 1, stream)?;
    driver.write(at, &[2; 64], stream)?;
    driver.read(at, &mut [0; 64], stream)?;
    driver.write_async(at, Arc::new([3; 64]), stream)?;
    let read = driver.read_async(at, Box::new([0; 64]), stream)?;
    while driver.take_read(read)?.is_none() {}
    host_memory(driver, at, stream)?;
    driver.copy(to, at, 64, stream)?;
    driver.copy_by_kernel(to, at, 64, stream)?;
    driver.gather(&[Piece { dst: to, src: at, bytes: 64 }], stream)?;
    driver.compare(to, at, 64, stream)?;
    driver.fill_pattern(range, 1, stream)?;
    driver.check_pattern(range, 1, stream)?;
    driver.mismatches(stream)?;
    driver.delay(stream, 1)?;
    driver.forget(driver.record(StreamId::LEGACY)?);
    let event = driver.record(stream)?;
    driver.wait(stream, event)?;
    driver.query(event)?;
    driver.synchronize(event)?;
    driver.forget(event);
    let imported = driver.import(DEVICE, driver.export(handle)?, PAGE_BYTES)?;
    driver.release(imported)?;
    drop(DeviceBuffer::<u64>::new(driver, DEVICE, 100)?);
    drop(driver.pinned(100)?);
    driver.memory_info(DEVICE)?;
    driver.unmap(range)?;
    driver.release(handle)?;
    driver.unreserve(range)?;
    driver.destroy_stream(stream)
}

/// Host memory of each kind, each of which is as said whatever failed.
fn host_memory(driver: &CudaDriver, at: DevicePtr, stream: StreamId) -> Result<()> {
    driver.fill(AddressRange::new(at, 64), 3, stream)?;
    let host = driver.hold(Held::Owned(driver.pin(64, DEVICE)?));
    driver.read_into(at, host, 0..64, stream)?;
    driver.write_from(at, host, 0..64, stream)?;
    let buffer = loop {
        if let Some(buffer) = driver.take_back(host)? {
            break buffer;
        }
    };
    assert_eq!((*buffer).as_ref(), [3; 64]);
    driver.is_pinned((*buffer).as_ref());
    driver.is_pinned(&[0; 64]);
    let mut sink = [1; 64];
    let lent = driver.lend(Lent::Sink(&mut sink), &mut |host| driver.read_into(at, host, 0..64, stream));
    let expected = if lent.is_ok() { [[3; 64]; 2] } else { [[1; 64], [3; 64]] };
    assert!(expected.contains(&sink));
    lent?;
    let host = driver.hold(Held::Shared(Arc::new([4; 64])));
    let written = driver.write_from(at, host, 0..64, stream);
    driver.let_go(host);
    written
}

/// What a program comes to: its own result, and that of closing the driver behind it.
type Outcome = std::result::Result<(Result<()>, Result<()>), OpenError>;

/// Runs a program in a thread of its own, because the current context, here another device's, and the
/// mode of captures are the thread's. `plan` runs before anything of the driver's.
fn program(current: &CudaContext, plan: impl FnOnce() + Send) -> Outcome {
    let run = || {
        current.bind_to_thread().unwrap();
        plan();
        let driver = open()?;
        let worked = work(&driver);
        Ok((worked, driver.close()))
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap()
}

/// What is free on the device.
fn free_bytes() -> u64 {
    thread::scope(|scope| {
        let look = || {
            let driver = open().unwrap();
            let free_bytes = driver.memory_info(DEVICE).unwrap().free_bytes;
            driver.close().unwrap();
            free_bytes
        };
        scope.spawn(look).join().unwrap()
    })
}

/// Some failures of these do not reach the caller: the call was the driver's own, for the reaper or on
/// the way out, and comes again or costs no more than memory; or there is another way; or no answer is one.
const SWALLOWED: [&str; 15] = [
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuEventCreate",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemMap",
    "cuMemRelease",
    "cuMemUnmap",
    "cuPointerGetAttribute",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
];
/// Where an import fails so, the descriptor is not what it should be, for all that CUDA says.
const IMPORT: [&str; 2] = ["cuMemImportFromShareableHandle", "cuMemMap"];

fn sweep(stand_in: StandIn) {
    let needed = needed();
    let current = CudaContext::new(1).unwrap();
    let calls = || needed.iter().map(|name| stand_in.n_calls(name)).collect::<Vec<_>>();
    let mut before = Vec::new();
    assert_eq!(program(&current, || before = calls()), Ok((Ok(()), Ok(()))));
    let n_calls: Vec<u64> = calls().iter().zip(before).map(|(after, before)| after - before).collect();
    let mut swallowed = BTreeSet::new();
    for (&name, n) in needed.iter().zip(n_calls) {
        assert!(n > 0, "the program does not call {name}");
        for nth in 1..=n {
            let free = free_bytes();
            let outcome = program(&current, || stand_in.fail(name, nth, CODE));
            assert_eq!(stand_in.forget_failures(), 0, "call {nth} of {name} did not come");
            let native = DriverError::Native { call: name, code: CODE };
            match outcome {
                Ok((Ok(()), Ok(()))) => drop(swallowed.insert(name)),
                Ok((Ok(()), Err(error)) | (Err(error), _)) | Err(OpenError::Driver(error)) => {
                    let is_import = IMPORT.contains(&name) && matches!(error, DriverError::InvalidValue(_));
                    assert!(error == native || is_import, "call {nth} of {name}: {error:?}");
                }
                Err(error) => panic!("call {nth} of {name}: {error}"),
            }
            // What could not be unmapped may stay.
            if matches!(outcome, Ok((_, Ok(())))) && name != "cuMemUnmap" {
                assert_eq!(free_bytes(), free, "call {nth} of {name} leaves memory behind");
            }
        }
    }
    assert_eq!(swallowed, SWALLOWED.into());
}

#[test]
fn every_call_fails_once_with_a_typed_error() {
    glake_standin::alone("every_call_fails_once_with_a_typed_error", &[], sweep);
}
