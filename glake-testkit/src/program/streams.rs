//! Random programs of several streams.

use std::fmt::Debug;
use std::sync::Arc;

use glake_core::alloc::Allocator;
use glake_core::driver::Driver;
use glake_core::sim::{Completion, Fault, SimConfig, SimDriver};
use glake_core::units::{DeviceId, StreamId};
use proptest::prelude::*;

use crate::rng::Rng;
use crate::spy::Spy;

mod run;

pub use run::Runner;

/// The device of every [`Machine`].
pub const DEVICE: DeviceId = DeviceId(0);
/// Memory of the device: little, so that programs are often at exhaustion.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// One operation of a program. Picks choose one of what there is, modulo their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocate, and fill.
    Allocate {
        /// On this one of the streams.
        on: u64,
        /// Size.
        bytes: u64,
    },
    /// Read one of the live allocations on another stream, which waits for it first, and tell the
    /// allocator.
    Use {
        /// Which allocation.
        pick: u64,
        /// On this one of the streams.
        on: u64,
    },
    /// Free one of the live allocations on its own stream.
    Free {
        /// Which one.
        pick: u64,
    },
    /// Free one of the live allocations on another stream, which waits for it first.
    FreeElsewhere {
        /// Which one.
        pick: u64,
        /// On this one of the streams.
        on: u64,
    },
    /// Destroy a stream and make another, which waits for the work of the first and takes its
    /// allocations over.
    Replace {
        /// Which one of those that can be destroyed.
        pick: u64,
    },
    /// Give memory back.
    Trim {
        /// How much to keep.
        keep_bytes: u64,
    },
    /// The device gets on: by some pieces of work of a stream, or for a time.
    Complete {
        /// Which stream.
        on: u64,
        /// How many pieces.
        n: u64,
    },
    /// A driver call of the next operation of the allocator fails.
    Fail {
        /// The call after so many others.
        after: u64,
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
    let action = any::<(u64, u64, u64)>().prop_map(|(kind, pick, detail)| action(kind, pick, detail));
    proptest::collection::vec(action, 0..max)
}

/// The operation that three random numbers stand for.
fn action(kind: u64, pick: u64, on: u64) -> Action {
    match kind % 100 {
        0 => Action::Trim { keep_bytes: pick % MEMORY_BYTES },
        1 => Action::Trim { keep_bytes: 0 },
        2..5 => Action::Replace { pick },
        5..8 => Action::Fail { after: pick % 6 },
        8..28 => Action::Complete { on, n: pick % 12 },
        28..38 => Action::Use { pick, on },
        38..58 => Action::Free { pick },
        58..68 => Action::FreeElsewhere { pick, on },
        _ => Action::Allocate { on, bytes: bytes(&mut Rng::new(pick)) },
    }
}

/// Mostly a few sizes, so that memory is reused; small ones, and large ones now and then.
fn bytes(rng: &mut Rng) -> u64 {
    match rng.below(16) {
        0..4 => rng.log_between(1, 64 << 10),
        4..10 => (1 << 20) << rng.below(4),
        10..15 => rng.log_between(1 << 20, 24 << 20),
        _ => rng.log_between(24 << 20, MEMORY_BYTES),
    }
}

/// How a test makes a GPU get on and fail, as far as it can: by itself it does nothing, and the GPU
/// takes its time.
pub trait Control: Debug {
    /// Runs at most `n` pieces of work of `stream`, as far as they wait for nothing.
    fn complete(&self, _stream: StreamId, _n: usize) {}

    /// Runs everything that was enqueued.
    fn complete_all(&self) {}

    /// Lets time go by.
    fn advance(&self, _ns: u64) {}

    /// How many pieces of work of `stream` are pending, where that can be told.
    fn n_pending(&self, _stream: StreamId) -> Option<usize> {
        None
    }

    /// Makes a call of the driver fail.
    fn plan(&self, _fault: Fault) {}

    /// Forgets the failures that did not come.
    fn clear_faults(&self) {}

    /// How many calls failed as planned.
    fn n_faults(&self) -> u64 {
        0
    }

    /// What becomes of the names of destroyed streams.
    fn stream_names(&self) -> StreamNames {
        StreamNames::Unique
    }
}

/// What becomes of the names of destroyed streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamNames {
    /// No other stream ever gets them.
    Unique,
    /// Other streams get them, so that an allocator has to be told of an end. Programs destroy none.
    Reused,
}

impl Control for Arc<SimDriver> {
    fn complete(&self, stream: StreamId, n: usize) {
        SimDriver::complete(self, stream, n).unwrap();
    }

    fn complete_all(&self) {
        SimDriver::complete_all(self);
    }

    fn advance(&self, ns: u64) {
        SimDriver::advance(self, ns);
    }

    fn n_pending(&self, stream: StreamId) -> Option<usize> {
        Some(SimDriver::n_pending(self, stream).unwrap())
    }

    fn plan(&self, fault: Fault) {
        SimDriver::plan(self, fault);
    }

    fn clear_faults(&self) {
        SimDriver::clear_faults(self);
    }

    fn n_faults(&self) -> u64 {
        SimDriver::n_faults(self)
    }
}

/// An allocator that serves several streams, over a GPU.
#[derive(Debug)]
pub struct Machine {
    /// The GPU.
    pub gpu: Arc<dyn Driver>,
    /// What makes it get on.
    pub control: Box<dyn Control>,
    /// What looks on between it and the allocator.
    pub spy: Arc<Spy>,
    /// The allocator.
    pub allocator: Box<dyn Allocator>,
}

impl Machine {
    /// A simulated GPU of [`MEMORY_BYTES`] whose work is done as `completion` says, under what `make`
    /// makes of it.
    pub fn new(completion: Completion, make: impl FnOnce(Arc<Spy>) -> Box<dyn Allocator>) -> Self {
        let sim = SimConfig::h200(1).memory_bytes(MEMORY_BYTES).completion(completion).build();
        let sim = Arc::new(sim);
        Self::over(Arc::clone(&sim) as Arc<dyn Driver>, Box::new(sim), make)
    }

    /// A GPU under what `make` makes of it, which should take no more than [`MEMORY_BYTES`].
    pub fn over(
        gpu: Arc<dyn Driver>,
        control: Box<dyn Control>,
        make: impl FnOnce(Arc<Spy>) -> Box<dyn Allocator>,
    ) -> Self {
        let spy = Spy::new(Arc::clone(&gpu));
        let allocator = make(Arc::clone(&spy));
        Self { gpu, control, spy, allocator }
    }
}
