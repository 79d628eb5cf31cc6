//! Random programs of allocator operations, and a run of them beside a model.

use std::sync::Arc;

use glake_core::adapt::Limited;
use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::stats::Stats;
use glake_core::units::{DevicePtr, PAGE_BYTES, StreamId};
use proptest::prelude::*;

use crate::oracle::{Findings, Oracle};
use crate::rng::Rng;
use crate::spy::Spy;

pub mod streams;

/// The largest request of a program.
pub const MAX_BYTES: u64 = 64 << 30;

/// One operation of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocate.
    Allocate {
        /// Size, zero included.
        bytes: u64,
        /// Alignment, a power of two.
        align_bytes: u64,
    },
    /// Free one of the live allocations.
    Free {
        /// Which one, modulo their number.
        pick: u64,
    },
    /// Give memory back.
    Trim {
        /// How much to keep.
        keep_bytes: u64,
    },
    /// Set the quota of requested bytes.
    Limit {
        /// To this.
        quota_bytes: u64,
    },
}

/// A program of `n` operations, the same for the same seed: fast, for long histories.
#[must_use]
pub fn seeded(seed: u64, n: usize) -> Vec<Action> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| action(rng.next(), rng.next(), rng.next())).collect()
}

/// Programs of up to `max` operations, which proptest shrinks.
pub fn programs(max: usize) -> impl Strategy<Value = Vec<Action>> {
    let action = any::<(u64, u64, u64)>().prop_map(|(kind, size, detail)| action(kind, size, detail));
    proptest::collection::vec(action, 0..max)
}

/// The operation that three random numbers stand for.
fn action(kind: u64, size: u64, detail: u64) -> Action {
    let mut rng = Rng::new(size);
    match kind % 100 {
        0 => Action::Trim { keep_bytes: rng.log_between(0, MAX_BYTES) },
        1 => Action::Trim { keep_bytes: 0 },
        2 => Action::Limit { quota_bytes: rng.log_between(1 << 30, 4 * MAX_BYTES) },
        3..50 => Action::Free { pick: detail },
        _ => Action::Allocate { bytes: bytes(&mut rng), align_bytes: align_bytes(detail) },
    }
}

/// Sizes as programs have them: many small ones, round ones, the edges, now and then a huge one.
fn bytes(rng: &mut Rng) -> u64 {
    match rng.below(48) {
        0..3 => [0, 1, 511, 512, 513, 1 << 20, (1 << 20) + 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1]
            [rng.below(10) as usize],
        3 => rng.log_between(1 << 30, MAX_BYTES),
        4..16 => rng.log_between(1, 1 << 20),
        16..25 => PAGE_BYTES * rng.between(1, 64),
        _ => rng.log_between(1 << 20, 1 << 30),
    }
}

fn align_bytes(detail: u64) -> u64 {
    if detail.is_multiple_of(8) { 1 << ((detail >> 8) % 22) } else { Request::MIN_ALIGN_BYTES }
}

/// An allocator under test.
#[derive(Debug)]
pub struct Subject {
    /// The allocator; it serves `stream`.
    pub allocator: Box<dyn Allocator>,
    /// A stream.
    pub stream: StreamId,
    /// Its driver, for an oracle of physical bytes.
    pub spy: Option<Arc<Spy>>,
}

/// What a run did: the outcome of each allocation, in order.
pub type Outcomes = Vec<Result<DevicePtr, AllocError>>;

/// Runs programs on a [`Subject`] beside a model that knows what must come out.
#[derive(Debug)]
pub struct Runner {
    allocator: Limited<Box<dyn Allocator>>,
    stream: StreamId,
    oracle: Oracle,
    live: Vec<Allocation>,
    requested_bytes: u64,
    n_allocations: u64,
    outcomes: Outcomes,
}

impl Runner {
    /// A runner of programs on `subject`.
    #[must_use]
    pub fn new(subject: Subject) -> Self {
        Self {
            allocator: Limited::new(subject.allocator, u64::MAX),
            stream: subject.stream,
            oracle: subject.spy.map_or_else(Oracle::of_addresses, Oracle::over),
            live: Vec::new(),
            requested_bytes: 0,
            n_allocations: 0,
            outcomes: Vec::new(),
        }
    }

    /// Runs `program` and then frees everything.
    ///
    /// # Panics
    /// If the allocator breaks the contract.
    #[allow(clippy::must_use_candidate, reason = "it may be run for its checks alone")]
    pub fn run(mut self, program: &[Action]) -> Outcomes {
        for &action in program {
            self.act(action);
            self.check_stats();
        }
        while let Some(allocation) = self.live.pop() {
            self.free(&allocation);
        }
        self.check_stats();
        assert_eq!(self.oracle.findings(), Findings::default());
        let stats = self.allocator.stats();
        assert_eq!((stats.requested_bytes, stats.allocated_bytes, stats.n_live), (0, 0, 0), "all is free");
        self.outcomes
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Allocate { bytes, align_bytes } => self.allocate(bytes, align_bytes),
            Action::Free { .. } if self.live.is_empty() => {}
            Action::Free { pick } => {
                let index = (pick % self.live.len() as u64) as usize;
                let allocation = self.live.swap_remove(index);
                self.free(&allocation);
            }
            Action::Trim { keep_bytes } => {
                let before = self.allocator.stats().reserved_bytes;
                let returned = self.allocator.trim(keep_bytes).unwrap();
                let after = self.allocator.stats().reserved_bytes;
                assert_eq!(before - after, returned, "trim says what went back");
            }
            Action::Limit { quota_bytes } => self.allocator.set_quota_bytes(quota_bytes),
        }
    }

    fn allocate(&mut self, bytes: u64, align_bytes: u64) {
        let left_bytes = self.allocator.left_bytes();
        let before = self.allocator.stats();
        let request = Request::new(bytes, self.stream).aligned(align_bytes);
        let outcome = self.allocator.allocate(request);
        match &outcome {
            Ok(allocation) => {
                assert!(bytes > 0 && bytes <= left_bytes, "{bytes} of {left_bytes}");
                assert_eq!((allocation.bytes, allocation.stream), (bytes, self.stream));
                assert!(allocation.ptr.is_aligned(align_bytes.max(Request::MIN_ALIGN_BYTES)));
                self.oracle.allocated(allocation);
                assert_eq!(self.oracle.findings(), Findings::default(), "{allocation:?}");
                self.live.push(*allocation);
                self.requested_bytes += bytes;
                self.n_allocations += 1;
            }
            Err(AllocError::OverQuota { .. }) => assert!(bytes > left_bytes),
            Err(AllocError::ZeroBytes) => assert_eq!(bytes, 0),
            Err(AllocError::OutOfMemory(report)) => {
                assert_eq!(report.requested_bytes, bytes);
                assert_eq!(live_part(&before), live_part(&self.allocator.stats()));
            }
            Err(error) => panic!("{request:?}: {error}"),
        }
        self.outcomes.push(outcome.map(|allocation| allocation.ptr));
    }

    fn free(&mut self, allocation: &Allocation) {
        self.oracle.freed(allocation.ptr, self.stream);
        self.allocator.free(allocation.ptr, self.stream).unwrap();
        self.requested_bytes -= allocation.bytes;
    }

    fn check_stats(&self) {
        let stats = self.allocator.stats();
        assert_eq!(stats.requested_bytes, self.requested_bytes);
        assert_eq!(stats.n_live, self.live.len() as u64);
        assert_eq!(stats.n_allocations, self.n_allocations);
        assert_eq!(stats.n_frees, self.n_allocations - stats.n_live);
        check_order(&stats);
    }
}

/// What no failure may change.
#[must_use]
pub const fn live_part(stats: &Stats) -> (u64, u64, u64, u64, u64) {
    (stats.requested_bytes, stats.allocated_bytes, stats.n_live, stats.n_allocations, stats.n_frees)
}

/// Requested ≤ allocated ≤ reserved, now and at peak, and no part larger than the whole.
///
/// # Panics
/// If not.
pub fn check_order(stats: &Stats) {
    assert!(stats.requested_bytes <= stats.allocated_bytes, "{stats:?}");
    assert!(stats.allocated_bytes <= stats.reserved_bytes, "{stats:?}");
    assert!(stats.peak_requested_bytes >= stats.requested_bytes, "{stats:?}");
    assert!(stats.peak_allocated_bytes >= stats.allocated_bytes, "{stats:?}");
    assert!(stats.peak_reserved_bytes >= stats.reserved_bytes, "{stats:?}");
    assert!(stats.stitchable_bytes <= stats.free_bytes(), "{stats:?}");
    assert!(stats.largest_free_bytes <= stats.free_bytes(), "{stats:?}");
}
