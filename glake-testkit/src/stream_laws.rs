//! The laws of allocators that serve several streams, one function each.
//!
//! [`stream_laws!`](macro@crate::stream_laws) binds them to a maker of [`Machine`]s. An allocator that serves
//! a single stream keeps [`allocator_laws!`](macro@crate::allocator_laws) only.

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::driver::StreamOrder as _;
use glake_core::sim::Completion;
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use crate::oracle::{Findings, Oracle};
use crate::program::Outcomes;
use crate::program::streams::{DEVICE, Machine, Runner, programs, seeded};

/// Makes a fresh machine whose work is done in that way.
pub type Make = fn(Completion) -> Machine;

/// Makes a module of tests, one for each law of allocators that serve several streams, of what
/// `$make` makes.
///
/// ```no_run
/// # use glake_core::sim::Completion;
/// # fn make(_: Completion) -> glake_testkit::program::streams::Machine { unimplemented!() }
/// glake_testkit::stream_laws!(my_pool, make);
/// // or some of them:
/// glake_testkit::stream_laws!(on_a_gpu, make; a_trim_waits_for_every_use);
/// ```
#[macro_export]
macro_rules! stream_laws {
    ($name:ident, $make:expr) => {
        $crate::stream_laws! { $name, $make, whenever work is done;
            same_operations_give_same_addresses_on_several_streams
        }
    };
    ($name:ident, $make:expr, whenever work is done; $($law:ident)*) => {
        $crate::stream_laws! { $name, $make; $($law)*
            freed_memory_serves_its_stream_at_once
            another_stream_gets_it_behind_the_free
            a_use_elsewhere_comes_before_the_reuse
            a_free_on_another_stream_counts_there
            what_is_behind_the_free_by_way_of_others_gets_it
            a_use_of_foreign_memory_is_refused
            memory_outlives_its_stream
            a_trim_waits_for_every_use
            short_programs_of_several_streams_keep_the_contract
            long_programs_of_several_streams_keep_the_contract
        }
    };
    ($name:ident, $make:expr; $($law:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "the maker may be a closure or a path")]
            use super::*;
            $(#[test]
            fn $law() {
                $crate::stream_laws::$law($make);
            })*
        }
    };
}

const COMPLETIONS: [Completion; 3] = [Completion::Immediate, Completion::Manual, Completion::Lag(100_000)];
const SIZES: [u64; 4] = [600, 1 << 20, 5 << 20, 40 << 20];

/// A machine whose work is done when it is waited for, two streams, and an oracle.
struct Rig {
    machine: Machine,
    oracle: Oracle,
    a: StreamId,
    b: StreamId,
}

impl Rig {
    fn new(make: Make) -> Self {
        let machine = make(Completion::Manual);
        let [a, b] = [(); 2].map(|()| machine.spy.create_stream(DEVICE).unwrap());
        Self { oracle: Oracle::over(machine.spy.clone()), machine, a, b }
    }

    /// Allocates and keeps the device busy with it.
    fn allocate(&mut self, bytes: u64, stream: StreamId) -> Allocation {
        let allocation = self.machine.allocator.allocate(Request::new(bytes, stream)).unwrap();
        self.oracle.allocated(&allocation);
        assert_eq!(self.oracle.findings(), Findings::default(), "{allocation:?}");
        self.touch(&allocation, stream);
        allocation
    }

    fn touch(&self, allocation: &Allocation, stream: StreamId) {
        let range = AddressRange::new(allocation.ptr, 512);
        self.machine.gpu.fill_pattern(range, 1, stream).unwrap();
    }

    fn free(&mut self, allocation: &Allocation, stream: StreamId) {
        self.oracle.freed(allocation.ptr, stream);
        self.machine.allocator.free(allocation.ptr, stream).unwrap();
    }

    /// Tells that `stream` uses it, behind the work of its own stream.
    fn share(&mut self, allocation: &Allocation, stream: StreamId) {
        self.order(allocation.stream, stream);
        self.touch(allocation, stream);
        self.machine.allocator.record_use(allocation.ptr, stream).unwrap();
        self.oracle.used(allocation.ptr, stream);
    }

    fn order(&self, first: StreamId, then: StreamId) {
        let spy = &self.machine.spy;
        let event = spy.record(first).unwrap();
        spy.wait(then, event).unwrap();
        spy.forget(event);
    }

    fn reserved_bytes(&self) -> u64 {
        self.machine.allocator.stats().reserved_bytes
    }
}

/// Memory freed on a stream serves that stream though the work on it is pending, and nothing waits.
pub fn freed_memory_serves_its_stream_at_once(make: Make) {
    for bytes in SIZES {
        let mut rig = Rig::new(make);
        let (a, b) = (rig.a, rig.b);
        let first = rig.allocate(bytes, a);
        rig.free(&first, a);
        let (reserved_bytes, n_pending) = (rig.reserved_bytes(), rig.machine.control.n_pending(a));
        rig.allocate(bytes, a);
        assert_eq!(rig.reserved_bytes(), reserved_bytes, "{bytes} bytes once more");
        let was_waited_for = n_pending.is_some() && rig.machine.control.n_pending(a) <= n_pending;
        assert!(!was_waited_for, "the device was waited for");
        rig.allocate(bytes, b);
    }
}

/// Another stream gets memory that was freed behind the work on it only, pending or done.
pub fn another_stream_gets_it_behind_the_free(make: Make) {
    for bytes in SIZES {
        let mut rig = Rig::new(make);
        let (a, b) = (rig.a, rig.b);
        // An event from before the free orders nothing.
        rig.order(a, b);
        for round in 0..3 {
            let live: Vec<_> = (0..4).map(|_| rig.allocate(bytes, a)).collect();
            for one in &live {
                rig.free(one, a);
            }
            let live: Vec<_> = (0..4).map(|_| rig.allocate(bytes, b)).collect();
            for one in &live {
                rig.free(one, b);
            }
            if round == 1 {
                rig.machine.control.complete_all();
            }
        }
    }
}

/// Memory that another stream was told to use goes to nobody, not even to its own stream, before the
/// work there.
pub fn a_use_elsewhere_comes_before_the_reuse(make: Make) {
    for bytes in SIZES {
        let mut rig = Rig::new(make);
        let (a, b) = (rig.a, rig.b);
        for round in 0..3 {
            let shared = rig.allocate(bytes, a);
            rig.share(&shared, b);
            rig.share(&shared, b);
            // The use goes on until the free.
            rig.touch(&shared, b);
            rig.free(&shared, a);
            let live = [a, b, a].map(|stream| rig.allocate(bytes, stream));
            for one in &live {
                rig.free(one, one.stream);
            }
            if round == 1 {
                rig.machine.control.complete_all();
            }
        }
    }
}

/// A free on another stream takes effect behind the work of that stream.
pub fn a_free_on_another_stream_counts_there(make: Make) {
    for bytes in SIZES {
        let mut rig = Rig::new(make);
        let (a, b) = (rig.a, rig.b);
        for _ in 0..3 {
            let handed_over = rig.allocate(bytes, a);
            rig.order(a, b);
            rig.touch(&handed_over, b);
            rig.free(&handed_over, b);
            let live = [a, b, a].map(|stream| rig.allocate(bytes, stream));
            for one in &live {
                rig.free(one, one.stream);
            }
        }
        let stats = rig.machine.allocator.stats();
        assert_eq!((stats.n_live, stats.allocated_bytes), (0, 0));
    }
}

/// Streams that wait for one another pass an order on; an order of work from before the free is none.
pub fn what_is_behind_the_free_by_way_of_others_gets_it(make: Make) {
    let mut rig = Rig::new(make);
    let (a, b) = (rig.a, rig.b);
    let c = rig.machine.spy.create_stream(DEVICE).unwrap();
    for bytes in SIZES {
        for (first, then) in [(a, b), (b, c)] {
            let live: Vec<_> = (0..3).map(|_| rig.allocate(bytes, a)).collect();
            // b waits for the first free, c for b, and nobody for the others.
            rig.free(&live[0], a);
            rig.order(first, then);
            rig.free(&live[1], a);
            rig.free(&live[2], a);
            let live: Vec<_> = (0..3).map(|_| rig.allocate(bytes, c)).collect();
            for one in &live {
                rig.free(one, c);
            }
        }
    }
}

/// A use of an address that is not the start of a live allocation is [`AllocError::NotAllocated`].
pub fn a_use_of_foreign_memory_is_refused(make: Make) {
    let mut rig = Rig::new(make);
    let (a, b) = (rig.a, rig.b);
    for bytes in SIZES {
        let one = rig.allocate(bytes, a);
        let mut refused = |ptr| {
            let error = rig.machine.allocator.record_use(ptr, b).unwrap_err();
            assert_eq!(error, AllocError::NotAllocated(ptr));
        };
        refused(DevicePtr(512));
        refused(one.ptr + 512);
        rig.free(&one, a);
        let error = rig.machine.allocator.record_use(one.ptr, a).unwrap_err();
        assert_eq!(error, AllocError::NotAllocated(one.ptr));
    }
}

/// Memory that was freed on a stream, or used there, can be had again when the stream is gone.
pub fn memory_outlives_its_stream(make: Make) {
    for bytes in SIZES {
        let mut rig = Rig::new(make);
        let (a, b) = (rig.a, rig.b);
        let gone = rig.machine.spy.create_stream(DEVICE).unwrap();
        let freed = rig.allocate(bytes, gone);
        let shared = rig.allocate(bytes, a);
        rig.share(&shared, gone);
        rig.free(&freed, gone);
        rig.machine.spy.destroy_stream(gone).unwrap();
        rig.free(&shared, a);
        let live = [a, b, b].map(|stream| rig.allocate(bytes, stream));
        for one in &live {
            rig.free(one, one.stream);
        }
        let reserved_bytes = rig.reserved_bytes();
        assert_eq!(rig.machine.allocator.trim(0), Ok(reserved_bytes));
        rig.machine.control.complete_all();
        rig.machine.gpu.synchronize_all(DEVICE).expect("nothing was unmapped under work");
    }
}

/// A trim takes no memory away under work of any stream.
pub fn a_trim_waits_for_every_use(make: Make) {
    for bytes in SIZES {
        let mut rig = Rig::new(make);
        let (a, b) = (rig.a, rig.b);
        let (shared, handed_over, plain) =
            (rig.allocate(bytes, a), rig.allocate(bytes, a), rig.allocate(bytes, b));
        rig.share(&shared, b);
        rig.order(a, b);
        rig.touch(&handed_over, b);
        rig.free(&shared, a);
        rig.free(&handed_over, b);
        rig.free(&plain, b);
        let reserved_bytes = rig.reserved_bytes();
        assert_eq!(rig.machine.allocator.trim(0), Ok(reserved_bytes));
        assert_eq!(rig.reserved_bytes(), 0);
        rig.machine.control.complete_all();
        rig.machine.gpu.synchronize_all(DEVICE).expect("nothing was unmapped under work");
    }
}

/// Random programs of several streams, beside a model, the oracle and real bytes.
pub fn short_programs_of_several_streams_keep_the_contract(make: Make) {
    for completion in COMPLETIONS {
        let config =
            proptest::test_runner::Config { cases: 24, failure_persistence: None, ..Default::default() };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let run = |program: Vec<_>| {
            Runner::new(make(completion)).run(&program);
            Ok(())
        };
        runner.run(&programs(120), run).unwrap();
    }
}

/// Long random programs of several streams, beside a model, the oracle and real bytes.
pub fn long_programs_of_several_streams_keep_the_contract(make: Make) {
    for completion in COMPLETIONS {
        for seed in 0..2 {
            Runner::new(make(completion)).run(&seeded(seed, 1500));
        }
    }
}

/// The same operations give the same addresses, by their distance from the first, and the same errors.
pub fn same_operations_give_same_addresses_on_several_streams(make: Make) {
    let program = seeded(17, 1500);
    for completion in COMPLETIONS {
        let [first, second] = [(); 2].map(|()| relative(Runner::new(make(completion)).run(&program)));
        for (nth, (first, second)) in first.iter().zip(&second).enumerate() {
            assert_eq!(first, second, "request {nth}, {completion:?}");
        }
        assert_eq!(first.len(), second.len());
    }
}

/// Outcomes without what is not the allocator's: where its addresses begin, what others leave free.
fn relative(outcomes: Outcomes) -> Vec<Result<i64, AllocError>> {
    let first = outcomes.iter().find_map(|outcome| outcome.as_ref().ok()).map_or(0, |ptr| ptr.0);
    let relative = outcomes.into_iter().map(|outcome| match outcome {
        Ok(ptr) => Ok(ptr.0.wrapping_sub(first).cast_signed()),
        Err(AllocError::OutOfMemory(mut report)) => {
            report.device_free_bytes = 0;
            Err(AllocError::OutOfMemory(report))
        }
        Err(error) => Err(error),
    });
    relative.collect()
}
