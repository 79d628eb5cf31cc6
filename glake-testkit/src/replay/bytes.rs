//! Real bytes in every allocation.

use std::collections::HashMap;
use std::sync::Arc;

use glake_core::alloc::Allocation;
use glake_core::driver::{Driver, DriverError};
use glake_core::units::{AddressRange, DevicePtr, EventId, StreamId};

use super::{Observed, Pools, Watch};

/// Fills each allocation with a pattern of its own and checks it before the free, both in the
/// order of its stream, behind delays that keep the device busy meanwhile.
#[derive(Debug)]
pub struct Bytes {
    driver: Arc<dyn Driver>,
    delay_ns: u64,
    /// Seeds by address; more than one only where the pool is broken.
    seeds: HashMap<DevicePtr, Vec<u64>>,
    n_seeds: u64,
    marker: Option<EventId>,
    n_stitches: u64,
    n_pending_gathers: u64,
    first_error: Option<DriverError>,
}

/// The unit of patterns.
const WORD_BYTES: u64 = 8;

impl Bytes {
    /// Submits a delay of `delay_ns` ahead of each pattern.
    #[must_use]
    pub fn new(driver: Arc<dyn Driver>, delay_ns: u64) -> Self {
        Self {
            driver,
            delay_ns,
            seeds: HashMap::new(),
            n_seeds: 0,
            marker: None,
            n_stitches: 0,
            n_pending_gathers: 0,
            first_error: None,
        }
    }

    /// Gathers that happened while work submitted before them was pending.
    #[must_use]
    pub const fn n_pending_gathers(&self) -> u64 {
        self.n_pending_gathers
    }

    /// How many words were found wrong, by all checks on the device of each of `streams`, which
    /// must be of one device. Waits for the device.
    ///
    /// # Errors
    /// The first error of the driver in the run or now.
    pub fn corrupted_words(&self, streams: &[StreamId]) -> Result<u64, DriverError> {
        if let Some(error) = self.first_error {
            return Err(error);
        }
        streams.iter().try_fold(0, |most: u64, &stream| Ok(most.max(self.driver.mismatches(stream)?)))
    }

    fn note(&mut self, result: Result<(), DriverError>) {
        if let Err(error) = result {
            self.first_error.get_or_insert(error);
        }
    }

    fn fill(&mut self, allocation: &Allocation) {
        self.n_seeds += 1;
        self.seeds.entry(allocation.ptr).or_default().push(self.n_seeds);
        let Some(range) = words_of(allocation) else { return };
        if self.delay_ns > 0 {
            self.note(self.driver.delay(allocation.stream, self.delay_ns));
        }
        self.note(self.driver.fill_pattern(range, self.n_seeds, allocation.stream));
    }

    fn check(&mut self, allocation: &Allocation) {
        let mut seeds = self.seeds.remove(&allocation.ptr).unwrap_or_default().into_iter();
        let seed = seeds.next();
        if seeds.len() > 0 {
            self.seeds.insert(allocation.ptr, seeds.collect());
        }
        if let (Some(seed), Some(range)) = (seed, words_of(allocation)) {
            self.note(self.driver.check_pattern(range, seed, allocation.stream));
        }
    }

    /// Counts a gather if work from before it is still pending.
    fn allocation_ended(&mut self, pools: &Pools) {
        let Some(marker) = self.marker.take() else { return };
        let n_stitches = pools.allocators().iter().map(|pool| pool.stats().n_stitches).sum();
        if n_stitches > self.n_stitches {
            match self.driver.query(marker) {
                Ok(passed) => self.n_pending_gathers += u64::from(!passed),
                Err(error) => self.note(Err(error)),
            }
        }
        self.n_stitches = n_stitches;
        self.driver.forget(marker);
    }
}

/// The whole words of an allocation.
fn words_of(allocation: &Allocation) -> Option<AddressRange> {
    let bytes = allocation.bytes - allocation.bytes % WORD_BYTES;
    (bytes > 0).then_some(AddressRange::new(allocation.ptr, bytes))
}

impl Watch for Bytes {
    fn see(&mut self, _: usize, pools: &Pools, observed: Observed<'_>) {
        match observed {
            Observed::Allocating(request) => match self.driver.record(request.stream) {
                Ok(event) => self.marker = Some(event),
                Err(error) => self.note(Err(error)),
            },
            Observed::Allocated(allocation) => {
                self.allocation_ended(pools);
                self.fill(allocation);
            }
            Observed::Refused(_) => self.allocation_ended(pools),
            Observed::Freeing(allocation) => self.check(allocation),
            Observed::Freed(_) => {}
        }
    }
}
