//! The laws of [`Allocator`](glake_core::alloc::Allocator), one function each.
//!
//! [`allocator_laws!`](macro@crate::allocator_laws) binds them to a maker of [`Subject`]s. Call it from
//! a test of `tests/`, not from unit tests of `glake-core`.

use std::mem::Discriminant;

use glake_core::alloc::{AllocError, Allocation, Request};
use glake_core::units::{DevicePtr, PAGE_BYTES};

use crate::program::{Outcomes, Runner, Subject, check_order, live_part, programs, seeded};

/// Makes a fresh subject.
pub type Make = fn() -> Subject;

/// Makes a module of tests, one for each law of allocators, of what `$make` makes.
///
/// ```no_run
/// # fn make() -> glake_testkit::program::Subject { unimplemented!() }
/// glake_testkit::allocator_laws!(my_pool, make);
/// ```
#[macro_export]
macro_rules! allocator_laws {
    ($name:ident, $make:expr) => {
        $crate::allocator_laws! { @laws $name, $make;
            zero_bytes_are_refused
            too_much_is_refused
            bad_alignments_are_refused
            a_second_free_is_refused
            a_foreign_free_is_refused
            a_free_inside_an_allocation_is_refused
            a_use_on_its_own_stream_changes_nothing
            a_use_of_what_is_not_allocated_is_refused
            alignments_are_kept
            exhaustion_is_reported_and_survived
            freed_memory_is_used_again
            trim_gives_back_all_that_is_free
            trim_leaves_live_memory_alone
            short_programs_keep_the_contract
            long_programs_keep_the_contract
            same_operations_give_same_addresses
        }
    };
    (@laws $name:ident, $make:expr; $($law:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "the maker may be a closure or a path")]
            use super::*;
            $(#[test]
            fn $law() {
                $crate::allocator_laws::$law($make);
            })*
        }
    };
}

fn allocate(subject: &mut Subject, bytes: u64) -> Allocation {
    subject.allocator.allocate(Request::new(bytes, subject.stream)).unwrap()
}

/// Expects `request` to fail, with nothing changed.
fn refused(subject: &mut Subject, request: Request) -> AllocError {
    let before = subject.allocator.stats();
    let error = subject.allocator.allocate(request).unwrap_err();
    assert_eq!(subject.allocator.stats(), before, "{request:?} changed the figures");
    error
}

/// Expects a free of `ptr` to fail, with nothing changed.
fn free_refused(subject: &mut Subject, ptr: DevicePtr) {
    let before = subject.allocator.stats();
    let error = subject.allocator.free(ptr, subject.stream).unwrap_err();
    assert_eq!(error, AllocError::NotAllocated(ptr));
    assert_eq!(subject.allocator.stats(), before, "a refused free of {ptr} changed the figures");
}

/// A request for nothing is [`AllocError::ZeroBytes`].
pub fn zero_bytes_are_refused(make: Make) {
    let mut subject = make();
    let request = Request::new(0, subject.stream);
    assert_eq!(refused(&mut subject, request), AllocError::ZeroBytes);
    allocate(&mut subject, 1);
    assert_eq!(refused(&mut subject, request), AllocError::ZeroBytes);
}

/// A request that cannot be addressed is [`AllocError::TooLarge`] or over a quota.
pub fn too_much_is_refused(make: Make) {
    let mut subject = make();
    allocate(&mut subject, 1000);
    for bytes in [u64::MAX, u64::MAX - 511, 1 << 63] {
        for align_bytes in [1, 512, PAGE_BYTES] {
            let request = Request::new(bytes, subject.stream).aligned(align_bytes);
            let error = refused(&mut subject, request);
            let typed = matches!(error, AllocError::TooLarge { .. } | AllocError::OverQuota { .. });
            assert!(typed, "{bytes}: {error}");
        }
    }
}

/// An alignment that is no power of two, or above a page, is [`AllocError::BadAlignment`].
pub fn bad_alignments_are_refused(make: Make) {
    let mut subject = make();
    for align_bytes in [0, 3, 768, PAGE_BYTES - 1, 2 * PAGE_BYTES, u64::MAX] {
        let request = Request::new(512, subject.stream).aligned(align_bytes);
        assert_eq!(refused(&mut subject, request), AllocError::BadAlignment { align_bytes });
    }
}

/// A second free is [`AllocError::NotAllocated`].
pub fn a_second_free_is_refused(make: Make) {
    let mut subject = make();
    let kept = allocate(&mut subject, 100);
    for bytes in [1, 512, 1 << 20, 3 << 20, 100 << 20] {
        let allocation = allocate(&mut subject, bytes);
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
        free_refused(&mut subject, allocation.ptr);
    }
    subject.allocator.free(kept.ptr, subject.stream).unwrap();
    free_refused(&mut subject, kept.ptr);
}

/// A free of an address that was never handed out is [`AllocError::NotAllocated`].
pub fn a_foreign_free_is_refused(make: Make) {
    let mut subject = make();
    for round in 0..2 {
        for ptr in [0, 1, 512, 0x7000_0000_0000, u64::MAX - 511, u64::MAX] {
            free_refused(&mut subject, DevicePtr(ptr));
        }
        if round == 0 {
            allocate(&mut subject, 5 << 20);
        }
    }
}

/// A free of an address inside an allocation, or just behind one, is [`AllocError::NotAllocated`].
pub fn a_free_inside_an_allocation_is_refused(make: Make) {
    let mut subject = make();
    for bytes in [2000, 1 << 20, 5 << 20, 64 << 20] {
        let allocation = allocate(&mut subject, bytes);
        for offset in [1, 511, 512, bytes / 2, bytes - 1] {
            free_refused(&mut subject, allocation.ptr + offset);
        }
        let rounded = bytes.next_multiple_of(512);
        free_refused(&mut subject, allocation.ptr + rounded);
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
    }
}

/// A use on the stream of the allocation is known anyway.
pub fn a_use_on_its_own_stream_changes_nothing(make: Make) {
    let mut subject = make();
    for bytes in [1, 5000, 1 << 20, 7 << 20] {
        let allocation = allocate(&mut subject, bytes);
        let before = subject.allocator.stats();
        subject.allocator.record_use(allocation.ptr, subject.stream).unwrap();
        assert_eq!(subject.allocator.stats(), before);
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
        allocate(&mut subject, bytes);
        assert_eq!(subject.allocator.stats().reserved_bytes, before.reserved_bytes, "{bytes} once more");
    }
}

/// A use of an address that is not the start of a live allocation is [`AllocError::NotAllocated`].
pub fn a_use_of_what_is_not_allocated_is_refused(make: Make) {
    let mut subject = make();
    for bytes in [2000, 1 << 20, 5 << 20, 64 << 20] {
        let allocation = allocate(&mut subject, bytes);
        for ptr in [DevicePtr(0), DevicePtr(512), allocation.ptr + 1, allocation.ptr + 512] {
            let error = subject.allocator.record_use(ptr, subject.stream).unwrap_err();
            assert_eq!(error, AllocError::NotAllocated(ptr));
        }
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
        let error = subject.allocator.record_use(allocation.ptr, subject.stream).unwrap_err();
        assert_eq!(error, AllocError::NotAllocated(allocation.ptr));
    }
}

/// Addresses are multiples of the alignment, of 512 at least.
pub fn alignments_are_kept(make: Make) {
    let mut subject = make();
    for shift in 0..=21 {
        for bytes in [1, 512, 4097, 1 << 20, 5 << 20] {
            let align_bytes = 1 << shift;
            let request = Request::new(bytes, subject.stream).aligned(align_bytes);
            let allocation = subject.allocator.allocate(request).unwrap();
            assert!(allocation.ptr.is_aligned(align_bytes.max(512)), "{request:?} at {}", allocation.ptr);
            check_order(&subject.allocator.stats());
        }
    }
}

/// More than the device has is [`AllocError::OutOfMemory`] with the figures, and everything works
/// on as before.
pub fn exhaustion_is_reported_and_survived(make: Make) {
    let mut subject = make();
    let kept = allocate(&mut subject, 3 << 20);
    let before = subject.allocator.stats();
    for bytes in [(1 << 40) + 1, 200 << 30] {
        let request = Request::new(bytes, subject.stream);
        let error = subject.allocator.allocate(request).unwrap_err();
        let AllocError::OutOfMemory(report) = error else { panic!("{bytes}: {error}") };
        assert_eq!(report.requested_bytes, bytes);
        assert_eq!(live_part(&subject.allocator.stats()), live_part(&before));
        check_order(&subject.allocator.stats());
    }
    let after = allocate(&mut subject, 3 << 20);
    assert_ne!(after.ptr, kept.ptr);
    assert_eq!(subject.allocator.stats().n_failures, before.n_failures + 2);
}

/// Memory that was freed serves the next request of that size.
pub fn freed_memory_is_used_again(make: Make) {
    let mut subject = make();
    for bytes in [100, 5000, 1 << 20, 7 << 20, 300 << 20] {
        let first = allocate(&mut subject, bytes);
        let reserved = subject.allocator.stats().reserved_bytes;
        subject.allocator.free(first.ptr, subject.stream).unwrap();
        allocate(&mut subject, bytes);
        assert_eq!(subject.allocator.stats().reserved_bytes, reserved, "{bytes} bytes once more");
    }
}

/// With nothing live, a trim to zero leaves nothing reserved.
pub fn trim_gives_back_all_that_is_free(make: Make) {
    let mut subject = make();
    assert_eq!(subject.allocator.trim(0).unwrap(), 0);
    let live: Vec<_> = (0..60).map(|i| allocate(&mut subject, 1 << (i % 30))).collect();
    for allocation in live {
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
    }
    let reserved = subject.allocator.stats().reserved_bytes;
    assert_eq!(subject.allocator.trim(reserved).unwrap(), 0, "there is nothing above that");
    assert_eq!(subject.allocator.trim(0).unwrap(), reserved);
    assert_eq!(subject.allocator.stats().reserved_bytes, 0);
    allocate(&mut subject, 1 << 20);
}

/// A trim takes nothing from a live allocation.
pub fn trim_leaves_live_memory_alone(make: Make) {
    let mut subject = make();
    let live: Vec<_> = (0..60).map(|i| allocate(&mut subject, 1 << (i % 30))).collect();
    let extents = |subject: &Subject| -> Option<Vec<_>> {
        let spy = subject.spy.as_ref()?;
        let range = |a: &Allocation| glake_core::units::AddressRange::new(a.ptr, a.bytes);
        Some(live.iter().skip(1).step_by(2).map(|a| spy.resolve(range(a)).unwrap()).collect())
    };
    let before = extents(&subject);
    for allocation in live.iter().step_by(2) {
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
    }
    subject.allocator.trim(0).unwrap();
    assert_eq!(extents(&subject), before);
    check_order(&subject.allocator.stats());
    for allocation in live.iter().skip(1).step_by(2) {
        subject.allocator.free(allocation.ptr, subject.stream).unwrap();
    }
}

/// Random programs, beside a model and a shadow oracle.
pub fn short_programs_keep_the_contract(make: Make) {
    let config = proptest::test_runner::Config { cases: 48, failure_persistence: None, ..Default::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let run = |program: Vec<_>| {
        Runner::new(make()).run(&program);
        Ok(())
    };
    runner.run(&programs(150), run).unwrap();
}

/// Long random programs, beside a model and a shadow oracle.
pub fn long_programs_keep_the_contract(make: Make) {
    for seed in 0..3 {
        Runner::new(make()).run(&seeded(seed, 3000));
    }
}

/// Addresses as distances from the first one, since a driver may place a pool anywhere; errors by
/// their kind.
fn distances(outcomes: &Outcomes) -> Vec<Result<i64, Discriminant<AllocError>>> {
    let first = outcomes.iter().find_map(|outcome| outcome.as_ref().ok()).map_or(0, |ptr| ptr.0);
    let distance = |ptr: &DevicePtr| ptr.0.wrapping_sub(first).cast_signed();
    outcomes.iter().map(|outcome| outcome.as_ref().map(distance).map_err(std::mem::discriminant)).collect()
}

/// The same operations give the same addresses and the same errors.
pub fn same_operations_give_same_addresses(make: Make) {
    let program = seeded(17, 2000);
    let first = Runner::new(make()).run(&program);
    let second = Runner::new(make()).run(&program);
    assert_eq!(distances(&first), distances(&second));
}
