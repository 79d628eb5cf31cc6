//! Planted bugs: the oracle and the runner of programs find each of them.
#![allow(clippy::unwrap_used, reason = "tests panic to fail")]

use std::sync::Arc;

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::driver::{Access, StreamOrder, VirtualMemory};
use glake_core::sim::SimDriver;
use glake_core::stats::Stats;
use glake_core::trace::{Event, Op};
use glake_core::units::{AddressRange, DeviceId, DevicePtr, PAGE_BYTES, StreamId};
use glake_testkit::caching::Caching;
use glake_testkit::oracle::{Findings, Oracle};
use glake_testkit::program::{Runner, Subject, seeded};
use glake_testkit::replay::{self, Bytes, Plan, Pools};
use glake_testkit::spy::Spy;

const DEVICE: DeviceId = DeviceId(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Every 50th allocation gets the address of the one before.
    SameAddress,
    /// Every 50th allocation is not aligned.
    Misaligned,
    /// Figures forget the rounding.
    Allocated,
    /// Every 50th free is forgotten.
    Leak,
    /// Every 50th free is refused.
    RefusedFree,
    /// A trim takes more than it says.
    Trim,
}

#[derive(Debug)]
struct Buggy {
    inner: Caching,
    bug: Bug,
    n: u64,
    last: DevicePtr,
}

impl Buggy {
    fn strikes(&mut self, bug: Bug) -> bool {
        self.n += u64::from(self.bug == bug);
        self.bug == bug && self.n.is_multiple_of(50)
    }
}

impl Allocator for Buggy {
    fn allocate(&mut self, request: Request) -> Result<Allocation, AllocError> {
        let mut allocation = self.inner.allocate(request)?;
        if self.strikes(Bug::SameAddress) {
            allocation.ptr = self.last;
        }
        if self.strikes(Bug::Misaligned) {
            allocation.ptr.0 += 64;
        }
        self.last = allocation.ptr;
        Ok(allocation)
    }

    fn free(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        if self.strikes(Bug::Leak) {
            return Ok(());
        }
        if self.strikes(Bug::RefusedFree) {
            return Err(AllocError::NotAllocated(ptr));
        }
        self.inner.free(ptr, stream)
    }

    fn record_use(&mut self, ptr: DevicePtr, stream: StreamId) -> Result<(), AllocError> {
        self.inner.record_use(ptr, stream)
    }

    fn trim(&mut self, keep_bytes: u64) -> Result<u64, AllocError> {
        let returned = self.inner.trim(keep_bytes)?;
        Ok(if self.bug == Bug::Trim { returned / 2 } else { returned })
    }

    fn stats(&self) -> Stats {
        let stats = self.inner.stats();
        let allocated_bytes =
            if self.bug == Bug::Allocated { stats.reserved_bytes + 1 } else { stats.allocated_bytes };
        Stats { allocated_bytes, ..stats }
    }
}

fn run(bug: Bug) {
    let spy = Spy::new(Arc::new(SimDriver::h200(1)));
    let stream = spy.create_stream(DEVICE).unwrap();
    let inner = Caching::new(spy.clone(), DEVICE, u64::MAX);
    let allocator = Box::new(Buggy { inner, bug, n: 0, last: DevicePtr(512) });
    Runner::new(Subject { allocator, stream, spy: Some(spy) }).run(&seeded(1, 2000));
}

macro_rules! found {
    ($($name:ident $bug:ident $message:literal)*) => {$(
        #[test]
        #[should_panic(expected = $message)]
        fn $name() {
            run(Bug::$bug);
        }
    )*};
}

found! {
    one_address_for_two_is_found SameAddress "n_overlaps: 1"
    a_wrong_alignment_is_found Misaligned "is_aligned"
    wrong_figures_are_found Allocated "Stats {"
    a_forgotten_free_is_found Leak "left == right"
    a_refused_free_is_found RefusedFree "NotAllocated"
    a_wrong_trim_is_found Trim "trim says what went back"
}

/// A driver with one handle mapped at two addresses, and two streams.
fn aliased() -> (Arc<Spy>, [DevicePtr; 2], [StreamId; 2]) {
    let spy = Spy::new(Arc::new(SimDriver::h200(1)));
    let handle = spy.create(DEVICE, PAGE_BYTES).unwrap();
    let range = spy.reserve(2 * PAGE_BYTES, PAGE_BYTES).unwrap();
    let addresses = [range.start, range.start + PAGE_BYTES];
    for at in addresses {
        spy.map(at, handle).unwrap();
    }
    spy.set_access(range, &[DEVICE], Access::ReadWrite).unwrap();
    let streams = [(); 2].map(|()| spy.create_stream(DEVICE).unwrap());
    (spy, addresses, streams)
}

#[test]
fn one_byte_at_two_addresses_is_one_byte() {
    let (spy, [a, b], [stream, _]) = aliased();
    let mut oracle = Oracle::over(spy);
    oracle.allocated(&Allocation { ptr: a + 512, bytes: 1024, stream });
    oracle.allocated(&Allocation { ptr: b + 1536, bytes: 512, stream });
    assert_eq!(oracle.findings(), Findings::default());
    oracle.allocated(&Allocation { ptr: b + 1024, bytes: 1, stream });
    assert_eq!(oracle.findings(), Findings { n_overlaps: 1, ..Findings::default() });
}

#[test]
fn reuse_through_another_address_needs_an_order_too() {
    for ordered in [None, Some(())] {
        let (spy, [a, b], [first, second]) = aliased();
        let mut oracle = Oracle::over(spy.clone());
        oracle.allocated(&Allocation { ptr: a, bytes: 4096, stream: first });
        oracle.freed(a, first);
        if ordered.is_some() {
            let event = spy.record(first).unwrap();
            spy.wait(second, event).unwrap();
        }
        oracle.allocated(&Allocation { ptr: b, bytes: 4096, stream: second });
        assert_eq!(oracle.findings().n_out_of_order_reuses, u64::from(ordered.is_none()));
    }
}

#[test]
fn memory_that_is_exchanged_or_missing_is_found() {
    let (spy, [a, b], [stream, _]) = aliased();
    let mut oracle = Oracle::over(spy.clone());
    oracle.allocated(&Allocation { ptr: a, bytes: 4096, stream });
    spy.unmap(AddressRange::new(a, PAGE_BYTES)).unwrap();
    let other = spy.create(DEVICE, PAGE_BYTES).unwrap();
    spy.map(a, other).unwrap();
    oracle.freed(a, stream);
    oracle.allocated(&Allocation { ptr: b + (PAGE_BYTES - 512), bytes: 1024, stream });
    assert_eq!(oracle.findings(), Findings { n_moved: 1, n_unmapped: 1, ..Findings::default() });
}

/// Two allocations at one address: the second pattern overwrites the first.
#[test]
fn overwritten_bytes_are_found() {
    let event = |op, id| Event { op, id, at_us: 0 };
    let allocate = Op::Allocate { bytes: 4096, stream: 0 };
    let mut events: Vec<_> = (0..50).map(|id| event(allocate, id)).collect();
    events.extend((0..48).map(|id| event(Op::Free, id)));
    for (bug, expected) in [(Bug::Trim, 0), (Bug::SameAddress, 4096 / 8)] {
        let plan = Plan::from_events(events.iter().copied().chain([event(Op::Free, 48)]).map(Ok)).unwrap();
        let driver = Arc::new(SimDriver::h200(1));
        let stream = driver.create_stream(DEVICE).unwrap();
        let inner = Caching::new(driver.clone(), DEVICE, u64::MAX);
        let buggy = Buggy { inner, bug, n: 0, last: DevicePtr(512) };
        let mut pools = Pools::shared(vec![stream], Box::new(buggy));
        let mut bytes = Bytes::new(driver, 0);
        replay::run(&plan, &mut pools, &mut bytes);
        assert_eq!(bytes.corrupted_words(&[stream]).unwrap(), expected, "{bug:?}");
    }
}
