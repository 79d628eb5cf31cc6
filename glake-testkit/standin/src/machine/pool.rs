//! Plain memory, and the pools that count it.

use super::Machine;
use super::space::{Kind, Region};
use crate::code::{Code, Result};
use crate::raw;

/// What the host maps at least.
const HOST_PAGE_BYTES: u64 = 4096;

/// A pool: the stand-in keeps nothing, so that what is used is what is reserved.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    used_bytes: u64,
    used_high_bytes: u64,
    /// Attributes that are only remembered, by number.
    remembered: [u64; 5],
}

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, the last attribute that is only remembered.
const RELEASE_THRESHOLD: usize = 4;

impl Pool {
    pub(crate) fn on(device: usize) -> Self {
        Self { device, used_bytes: 0, used_high_bytes: 0, remembered: [0, 1, 1, 1, 0] }
    }

    /// Whether an attribute has four bytes instead of eight.
    pub(crate) const fn is_short(attribute: usize) -> bool {
        attribute < RELEASE_THRESHOLD
    }

    pub(crate) fn attribute(&self, attribute: usize) -> Result<u64> {
        match attribute {
            1..=RELEASE_THRESHOLD => Ok(self.remembered[attribute]),
            5 | 7 => Ok(self.used_bytes),
            6 | 8 => Ok(self.used_high_bytes),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Sets an attribute; the highest marks only to 0, which makes them what is used now.
    pub(crate) fn set_attribute(&mut self, attribute: usize, value: u64) -> Result {
        match (attribute, value) {
            (1..=RELEASE_THRESHOLD, value) => self.remembered[attribute] = value,
            (6 | 8, 0) => self.used_high_bytes = self.used_bytes,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used_bytes == 0
    }
}

impl Machine {
    /// Plain memory of a context's device, of a pool or not.
    pub(crate) fn allocate(&mut self, context: u64, n_bytes: u64, pool: Option<u64>) -> Result<u64> {
        let device = match pool {
            Some(pool) => self.pools.get(&pool).ok_or(Code::INVALID_VALUE)?.device,
            None => self.device_of(context),
        };
        let bytes = n_bytes.checked_next_multiple_of(HOST_PAGE_BYTES).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(Code::INVALID_VALUE)?;
        self.memory.take(device, bytes)?;
        let Some(start) = raw::allocate(bytes) else {
            self.memory.give(device, bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.used_bytes += bytes;
            pool.used_high_bytes = pool.used_high_bytes.max(pool.used_bytes);
        }
        let kind = Kind::Allocated { device, context, pool };
        self.space.regions.insert(start, Region { bytes, kind });
        Ok(start)
    }

    /// Memory of a region went back: the accounts say so.
    pub(crate) fn freed(&mut self, region: &Region) {
        let Kind::Allocated { device, pool, .. } = region.kind else { return };
        self.memory.give(device, region.bytes);
        if let Some(pool) = pool.and_then(|pool| self.pools.get_mut(&pool)) {
            pool.used_bytes -= region.bytes;
        }
    }

    /// Plain memory that begins at an address.
    pub(crate) fn allocated(&self, start: u64) -> Result<Region> {
        match self.space.regions.get(&start) {
            Some(region) if matches!(region.kind, Kind::Allocated { .. }) => Ok(*region),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
