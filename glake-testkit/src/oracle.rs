//! A shadow oracle: who owns which byte, and which stream may touch it.

use std::collections::BTreeMap;
use std::sync::Arc;

use glake_core::alloc::Allocation;
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use crate::spy::{Extent, Moment, Spy};

mod owners;
#[cfg(test)]
mod tests;

use owners::{Owner, Owners};

/// What an [`Oracle`] found wrong. All zero is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Allocations that share an address or a physical byte with a live one.
    pub n_overlaps: u64,
    /// Allocations with a byte whose last owner's work is not known to be done first.
    pub n_out_of_order_reuses: u64,
    /// Allocations that were not mapped throughout when they were handed out.
    pub n_unmapped: u64,
    /// Allocations whose memory was exchanged or unmapped while they lived.
    pub n_moved: u64,
}

/// Owns its own map of bytes, independent of the allocator that it watches.
///
/// Over a [`Spy`] the bytes are physical, so that a byte with two addresses is one byte; without
/// one, they are addresses, and only reuse on the same stream counts as ordered.
#[derive(Debug)]
pub struct Oracle {
    spy: Option<Arc<Spy>>,
    /// Live allocations by address.
    live: BTreeMap<DevicePtr, Live>,
    owners: Owners,
    findings: Findings,
}

#[derive(Debug)]
struct Live {
    bytes: u64,
    extents: Vec<Extent>,
}

impl Oracle {
    /// An oracle of physical bytes.
    #[must_use]
    pub fn over(spy: Arc<Spy>) -> Self {
        Self { spy: Some(spy), ..Self::of_addresses() }
    }

    /// An oracle of addresses.
    #[must_use]
    pub const fn of_addresses() -> Self {
        let findings = Findings { n_overlaps: 0, n_out_of_order_reuses: 0, n_unmapped: 0, n_moved: 0 };
        Self { spy: None, live: BTreeMap::new(), owners: Owners::new(), findings }
    }

    /// What was wrong so far.
    #[must_use]
    pub const fn findings(&self) -> Findings {
        self.findings
    }

    /// Live allocations.
    #[must_use]
    pub fn n_live(&self) -> usize {
        self.live.len()
    }

    /// An allocator handed out `allocation`.
    pub fn allocated(&mut self, allocation: &Allocation) {
        let range = AddressRange::new(allocation.ptr, allocation.bytes);
        let extents = self.resolve(range);
        self.findings.n_unmapped += u64::from(extents.is_none());
        let extents = extents.unwrap_or_default();
        let mut overlaps = self.address_overlaps(range);
        let mut out_of_order = false;
        for &extent in &extents {
            for owner in self.owners.replace(extent, Owner::Live) {
                match owner {
                    Owner::Live => overlaps = true,
                    Owner::Freed(moment) => out_of_order |= !self.is_behind(allocation.stream, moment),
                }
            }
        }
        self.findings.n_overlaps += u64::from(overlaps);
        self.findings.n_out_of_order_reuses += u64::from(out_of_order);
        self.live.insert(allocation.ptr, Live { bytes: allocation.bytes, extents });
    }

    /// The allocation at `ptr`, whose last use was enqueued on `stream`, is freed. Must be told
    /// before the allocator acts on it.
    pub fn freed(&mut self, ptr: DevicePtr, stream: StreamId) {
        let Some(Live { bytes, extents }) = self.live.remove(&ptr) else { return };
        let now = self.resolve(AddressRange::new(ptr, bytes)).unwrap_or_default();
        self.findings.n_moved += u64::from(now != extents);
        let moment = self.spy.as_ref().map_or_else(|| Moment::before_all(stream), |spy| spy.moment(stream));
        for extent in extents {
            self.owners.replace(extent, Owner::Freed(moment));
        }
    }

    fn resolve(&self, range: AddressRange) -> Option<Vec<Extent>> {
        match &self.spy {
            Some(spy) => spy.resolve(range),
            None => Some(vec![Extent { serial: 0, offset_bytes: range.start.0, bytes: range.bytes }]),
        }
    }

    fn is_behind(&self, stream: StreamId, moment: Moment) -> bool {
        self.spy.as_ref().map_or(stream == moment.stream, |spy| spy.is_behind(stream, moment))
    }

    fn address_overlaps(&self, range: AddressRange) -> bool {
        let below = self.live.range(..range.end()).next_back();
        below.is_some_and(|(&start, live)| AddressRange::new(start, live.bytes).end() > range.start)
    }
}
