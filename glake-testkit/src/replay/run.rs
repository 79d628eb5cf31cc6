//! The loop.

use glake_core::alloc::{AllocError, Allocation, Allocator, Request};
use glake_core::units::StreamId;

use super::{Plan, Step};

/// The allocators that serve the streams of a trace, one for all or one for each.
#[derive(Debug)]
pub struct Pools {
    streams: Vec<StreamId>,
    allocators: Vec<Box<dyn Allocator>>,
}

impl Pools {
    /// One allocator for all `streams`.
    #[must_use]
    pub fn shared(streams: Vec<StreamId>, allocator: Box<dyn Allocator>) -> Self {
        Self { streams, allocators: vec![allocator] }
    }

    /// An allocator for each of `streams`, made by `make`.
    ///
    /// # Errors
    /// The first error of `make`.
    pub fn each(
        streams: Vec<StreamId>,
        mut make: impl FnMut(StreamId) -> Result<Box<dyn Allocator>, AllocError>,
    ) -> Result<Self, AllocError> {
        let allocators = streams.iter().map(|&stream| make(stream)).collect::<Result<_, _>>()?;
        Ok(Self { streams, allocators })
    }

    /// The driver's stream for a stream of the trace.
    #[must_use]
    pub fn stream(&self, stream: u32) -> StreamId {
        self.streams[stream as usize]
    }

    /// The allocators.
    #[must_use]
    pub fn allocators(&self) -> &[Box<dyn Allocator>] {
        &self.allocators
    }

    fn of(&mut self, stream: u32) -> &mut dyn Allocator {
        let shared = self.allocators.len() == 1;
        &mut *self.allocators[if shared { 0 } else { stream as usize }]
    }
}

/// What a [`Watch`] is shown.
#[derive(Clone, Copy, Debug)]
pub enum Observed<'a> {
    /// An allocation is about to be asked for.
    Allocating(Request),
    /// It was served.
    Allocated(&'a Allocation),
    /// It was refused.
    Refused(&'a AllocError),
    /// A free is about to be asked for.
    Freeing(&'a Allocation),
    /// It is done.
    Freed(&'a Allocation),
}

/// Looks on while a plan runs.
pub trait Watch {
    /// Called before and after each operation; `step` is its index.
    fn see(&mut self, step: usize, pools: &Pools, observed: Observed<'_>);
}

/// Watches nothing: the loop is as fast as the pools.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Watch for Silent {
    #[inline]
    fn see(&mut self, _: usize, _: &Pools, _: Observed<'_>) {}
}

/// Two watches, the second nearer to the pools: `0` begins first and ends last.
#[derive(Debug)]
pub struct Both<A, B>(pub A, pub B);

impl<A: Watch, B: Watch> Watch for Both<A, B> {
    fn see(&mut self, step: usize, pools: &Pools, observed: Observed<'_>) {
        match observed {
            Observed::Allocating(_) | Observed::Freeing(_) => {
                self.0.see(step, pools, observed);
                self.1.see(step, pools, observed);
            }
            Observed::Allocated(_) | Observed::Refused(_) | Observed::Freed(_) => {
                self.1.see(step, pools, observed);
                self.0.see(step, pools, observed);
            }
        }
    }
}

/// Nothing, or a watch.
impl<A: Watch> Watch for Option<A> {
    fn see(&mut self, step: usize, pools: &Pools, observed: Observed<'_>) {
        if let Some(watch) = self {
            watch.see(step, pools, observed);
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Allocations that were refused; their frees were skipped.
    pub n_refused: u64,
    /// The first reason.
    pub first_refusal: Option<AllocError>,
    /// Frees that failed. A pool that refuses a valid free is broken.
    pub n_failed_frees: u64,
}

/// Runs `plan` through `pools`. An allocation that fails is counted, its free skipped, and the run
/// goes on. Objects without a free live on when it returns.
pub fn run(plan: &Plan, pools: &mut Pools, watch: &mut impl Watch) -> Outcome {
    let mut outcome = Outcome::default();
    let mut slots: Vec<Option<(Allocation, u32)>> = vec![None; plan.n_slots];
    for (index, step) in plan.steps.iter().enumerate() {
        match *step {
            Step::Allocate { slot, stream, bytes } => {
                let request = Request::new(bytes, pools.streams[stream as usize]);
                watch.see(index, pools, Observed::Allocating(request));
                match pools.of(stream).allocate(request) {
                    Ok(allocation) => {
                        slots[slot as usize] = Some((allocation, stream));
                        watch.see(index, pools, Observed::Allocated(&allocation));
                    }
                    Err(error) => {
                        watch.see(index, pools, Observed::Refused(&error));
                        outcome.n_refused += 1;
                        outcome.first_refusal.get_or_insert(error);
                    }
                }
            }
            Step::Free { slot } => {
                let Some((allocation, stream)) = slots[slot as usize].take() else { continue };
                watch.see(index, pools, Observed::Freeing(&allocation));
                outcome.n_failed_frees +=
                    u64::from(pools.of(stream).free(allocation.ptr, allocation.stream).is_err());
                watch.see(index, pools, Observed::Freed(&allocation));
            }
        }
    }
    outcome
}
