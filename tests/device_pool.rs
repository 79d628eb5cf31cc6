//! The pool on a GPU: the laws of allocators, real bytes through gathers under pending work, and
//! the addresses that the simulator says. Fails where there is no GPU.
#![cfg(feature = "gpu")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::{Arc, OnceLock};

use glake_core::alloc::Allocator;
use glake_core::driver::{Driver, StreamOrder};
use glake_core::sim::{Completion, SimConfig, SimDriver};
use glake_core::units::{DeviceId, StreamId};
use glake_cuda::CudaDriver;
use glake_testkit::allocator_laws;
use glake_testkit::program::Subject;
use glake_testkit::replay::{Both, Bytes, Observed, Plan, Pools, Watch, run};
use glake_testkit::spy::Spy;
use glake_testkit::synthetic::{self, CHURN_BYTES};
use glake_vmm::{Config, Mode, StitchPool};

const DEVICE: DeviceId = DeviceId(0);
/// The laws ask for up to 64 GiB; with less, their programs run out of memory sooner.
const LAWS_BYTES: u64 = 3 << 30;
/// Little more than [`CHURN_BYTES`].
const CHURN_LIMIT_BYTES: u64 = CHURN_BYTES + CHURN_BYTES / 16;

/// One driver for all tests: what a dropped pool had mapped goes back at later calls.
fn driver() -> Arc<CudaDriver> {
    static DRIVER: OnceLock<Arc<CudaDriver>> = OnceLock::new();
    let open = || Arc::new(glake_cuda::open().expect("the feature `gpu` needs a GPU"));
    Arc::clone(DRIVER.get_or_init(open))
}

fn subject(mode: Mode) -> Subject {
    let spy = Spy::new(driver());
    let stream = spy.create_stream(DEVICE).unwrap();
    let config = Config::new(DEVICE).mode(mode).limit_bytes(LAWS_BYTES);
    let pool = StitchPool::new(spy.clone(), config).unwrap();
    Subject { allocator: Box::new(pool), stream, spy: Some(spy) }
}

fn in_default_mode() -> Subject {
    subject(Mode::Default)
}

fn in_compact_mode() -> Subject {
    subject(Mode::Compact)
}

allocator_laws!(default_mode, in_default_mode);
allocator_laws!(compact_mode, in_compact_mode);

fn churn(n: usize) -> Plan {
    Plan::from_events(synthetic::churn(n).into_iter().map(Ok)).unwrap()
}

fn pools(driver: &Arc<dyn Driver>, mode: Mode, stream: StreamId) -> Pools {
    Pools::each(vec![stream], |_| {
        let config = Config::new(DEVICE).mode(mode).limit_bytes(CHURN_LIMIT_BYTES);
        Ok(Box::new(StitchPool::new(Arc::clone(driver), config)?) as Box<dyn Allocator>)
    })
    .unwrap()
}

/// Every allocation holds its pattern until it is freed, while handles move under kernels that
/// still use their old addresses.
fn no_word_is_lost(mode: Mode) {
    let driver: Arc<dyn Driver> = driver();
    let stream = driver.create_stream(DEVICE).unwrap();
    let mut pools = pools(&driver, mode, stream);
    let wrong = driver.mismatches(stream).unwrap();
    let mut bytes = Bytes::new(Arc::clone(&driver), 1_000_000);
    let outcome = run(&churn(9000), &mut pools, &mut bytes);
    assert_eq!((outcome.n_refused, outcome.n_failed_frees), (0, 0));
    assert_eq!(bytes.corrupted_words(&[stream]), Ok(wrong));
    let n = bytes.n_pending_gathers();
    eprintln!("{mode:?}: {n} gathers under pending work, {}", pools.allocators()[0].stats());
    assert!(n >= 1000, "{n} gathers under pending work");
}

#[test]
fn no_word_is_lost_in_gathers_under_pending_work() {
    no_word_is_lost(Mode::Default);
}

#[test]
fn no_word_is_lost_in_gathers_of_small_handles_under_pending_work() {
    no_word_is_lost(Mode::Compact);
}

/// Waits for the device before every operation.
struct Settle(Arc<dyn Driver>, StreamId);

impl Watch for Settle {
    fn see(&mut self, _: usize, _: &Pools, observed: Observed<'_>) {
        if let Observed::Allocating(_) | Observed::Freeing(_) = observed {
            let event = self.0.record(self.1).unwrap();
            self.0.synchronize(event).unwrap();
            self.0.forget(event);
        }
    }
}

/// Addresses of the allocations, as distances from the first one.
#[derive(Default)]
struct Offsets(Vec<u64>);

impl Watch for Offsets {
    fn see(&mut self, _: usize, _: &Pools, observed: Observed<'_>) {
        match observed {
            Observed::Allocated(allocation) => self.0.push(allocation.ptr.0),
            Observed::Refused(_) => self.0.push(u64::MAX),
            _ => {}
        }
    }
}

impl Offsets {
    fn relative(self) -> Vec<i64> {
        let first = self.0.first().copied().unwrap_or_default();
        self.0.into_iter().map(|at| at.wrapping_sub(first).cast_signed()).collect()
    }
}

/// Work that is done before the next operation.
fn offsets_when_work_is_done_at_once(driver: &Arc<dyn Driver>, mode: Mode) -> Vec<i64> {
    let stream = driver.create_stream(DEVICE).unwrap();
    let mut watch = Both(Settle(Arc::clone(driver), stream), Offsets::default());
    run(&churn(3000), &mut pools(driver, mode, stream), &mut watch);
    watch.1.relative()
}

/// Work of which nothing is done before the end.
fn offsets_when_no_work_is_done(driver: &Arc<dyn Driver>, mode: Mode) -> Vec<i64> {
    let stream = driver.create_stream(DEVICE).unwrap();
    let mut pools = pools(driver, mode, stream);
    driver.delay(stream, 6_000_000_000).unwrap();
    let busy = driver.record(stream).unwrap();
    let mut offsets = Offsets::default();
    run(&churn(900), &mut pools, &mut offsets);
    assert_eq!(driver.query(busy), Ok(false), "the delay was too short to tell");
    driver.synchronize(busy).unwrap();
    assert!(pools.allocators()[0].stats().n_stitches > 0);
    offsets.relative()
}

#[test]
fn addresses_are_those_of_the_simulator() {
    for mode in [Mode::Default, Mode::Compact] {
        let sim: Arc<dyn Driver> = Arc::new(SimDriver::h200(1));
        let gpu: Arc<dyn Driver> = driver();
        let [simulated, real] = [sim, gpu].map(|driver| offsets_when_work_is_done_at_once(&driver, mode));
        assert!(simulated.iter().all(|offset| offset.unsigned_abs().is_multiple_of(512)));
        assert_eq!(simulated.len(), 3000);
        assert!(simulated == real, "{mode:?}: work done at once");
        let sim: Arc<dyn Driver> = Arc::new(SimConfig::h200(1).completion(Completion::Manual).build());
        let gpu: Arc<dyn Driver> = driver();
        // The first delay loads the kernels.
        let stream = gpu.create_stream(DEVICE).unwrap();
        gpu.delay(stream, 1).unwrap();
        let [simulated, real] = [sim, gpu].map(|driver| offsets_when_no_work_is_done(&driver, mode));
        assert!(simulated == real, "{mode:?}: no work done");
    }
}
