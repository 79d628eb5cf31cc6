//! The floor: `offset-allocator`, which keeps books of one range and does nothing else.

use std::sync::{Arc, Mutex};

use offset_allocator::{Allocation, Allocator};

use crate::contest::Pool;

/// What it counts in, as its sizes have 32 bits.
const UNIT_BYTES: u64 = 512;
const UNITS: u32 = u32::MAX;
const MAX_OBJECTS: u32 = 1 << 19;

fn one() -> Allocator {
    Allocator::with_max_allocs(UNITS, MAX_OBJECTS)
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap()
}

/// `n` allocators.
pub(crate) fn own(n: usize) -> Vec<Allocator> {
    (0..n).map(|_| one()).collect()
}

/// `n` handles of one allocator behind a mutex.
pub(crate) fn shared(n: usize) -> Vec<Arc<Mutex<Allocator>>> {
    let allocator = Arc::new(Mutex::new(one()));
    vec![allocator; n]
}

impl Pool for Allocator {
    type Object = Allocation;

    fn allocate(&mut self, bytes: u64) -> Allocation {
        Self::allocate(self, units(bytes)).unwrap()
    }

    fn free(&mut self, object: Allocation) {
        Self::free(self, object);
    }

    fn n_device_calls(&mut self) -> u64 {
        0
    }
}

impl Pool for Arc<Mutex<Allocator>> {
    type Object = Allocation;

    fn allocate(&mut self, bytes: u64) -> Allocation {
        self.lock().unwrap().allocate(units(bytes)).unwrap()
    }

    fn free(&mut self, object: Allocation) {
        self.lock().unwrap().free(object);
    }

    fn n_device_calls(&mut self) -> u64 {
        0
    }
}
