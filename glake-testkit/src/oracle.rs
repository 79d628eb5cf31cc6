//! A shadow oracle: who owns which byte, and which stream may touch it.

use std::collections::BTreeMap;
use std::sync::Arc;

use glake_core::alloc::Allocation;
use glake_core::units::{AddressRange, DevicePtr, StreamId};

use crate::spy::{Extent, Moment, Order, Spy};

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
///
/// A byte may go to a stream that runs behind the free of its last owner: behind the work of the
/// stream that the free named, and of those that were told to use the allocation, up to the free. It does
/// so if it is that stream, waits for an event recorded there since, be it by way of other streams, or
/// if the host has seen such an event pass.
#[derive(Debug)]
pub struct Oracle {
    seen: Seen,
    /// Live allocations by address.
    live: BTreeMap<DevicePtr, Live>,
    owners: Owners,
    findings: Findings,
}

/// Where the order of work is known from.
#[derive(Debug)]
enum Seen {
    By(Arc<Spy>),
    /// No waits are seen: streams are ordered within themselves.
    Nothing(Box<Order>),
}

#[derive(Debug)]
struct Live {
    bytes: u64,
    extents: Vec<Extent>,
    /// When streams were told to use it first, one of each.
    used_on: Vec<Moment>,
}

impl Oracle {
    /// An oracle of physical bytes.
    #[must_use]
    pub fn over(spy: Arc<Spy>) -> Self {
        Self { seen: Seen::By(spy), ..Self::of_addresses() }
    }

    /// An oracle of addresses.
    #[must_use]
    pub fn of_addresses() -> Self {
        let seen = Seen::Nothing(Box::default());
        Self { seen, live: BTreeMap::new(), owners: Owners::new(), findings: Findings::default() }
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
        self.handed_out(allocation, Some(allocation.stream));
    }

    /// An allocator handed out `allocation` for every stream, every thread and the host: whatever used it
    /// before must have been seen done.
    pub fn allocated_for_all(&mut self, allocation: &Allocation) {
        self.handed_out(allocation, None);
    }

    fn handed_out(&mut self, allocation: &Allocation, to: Option<StreamId>) {
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
                    Owner::Freed(moments) => {
                        out_of_order |= !moments.iter().all(|&moment| match to {
                            Some(stream) => self.is_behind(stream, moment),
                            None => self.is_done(moment),
                        });
                    }
                }
            }
        }
        self.findings.n_overlaps += u64::from(overlaps);
        self.findings.n_out_of_order_reuses += u64::from(out_of_order);
        let live = Live { bytes: allocation.bytes, extents, used_on: Vec::new() };
        self.live.insert(allocation.ptr, live);
    }

    /// The allocator was told that work on `stream` uses the allocation at `ptr`.
    pub fn used(&mut self, ptr: DevicePtr, stream: StreamId) {
        let moment = self.moment(stream);
        if let Some(live) = self.live.get_mut(&ptr)
            && !live.used_on.iter().any(|used| used.is_with(moment))
        {
            live.used_on.push(moment);
        }
    }

    /// The allocation at `ptr`, whose last use was enqueued on `stream`, is freed. Must be told
    /// before the allocator acts on it.
    pub fn freed(&mut self, ptr: DevicePtr, stream: StreamId) {
        let Some(Live { bytes, extents, used_on }) = self.live.remove(&ptr) else { return };
        let now = self.resolve(AddressRange::new(ptr, bytes)).unwrap_or_default();
        self.findings.n_moved += u64::from(now != extents);
        let last = self.moment(stream);
        let uses = used_on.into_iter().filter(|used| !used.is_with(last));
        let moments: Arc<[Moment]> = uses.map(|used| self.later(used)).chain([last]).collect();
        for extent in extents {
            self.owners.replace(extent, Owner::Freed(Arc::clone(&moments)));
        }
    }

    fn resolve(&self, range: AddressRange) -> Option<Vec<Extent>> {
        match &self.seen {
            Seen::By(spy) => spy.resolve(range),
            Seen::Nothing(_) => {
                Some(vec![Extent { serial: 0, offset_bytes: range.start.0, bytes: range.bytes }])
            }
        }
    }

    fn moment(&mut self, stream: StreamId) -> Moment {
        match &mut self.seen {
            Seen::By(spy) => spy.moment(stream),
            Seen::Nothing(order) => order.moment(stream),
        }
    }

    fn later(&self, moment: Moment) -> Moment {
        match &self.seen {
            Seen::By(spy) => spy.later(moment),
            Seen::Nothing(_) => moment,
        }
    }

    fn is_behind(&mut self, stream: StreamId, moment: Moment) -> bool {
        match &mut self.seen {
            Seen::By(spy) => spy.is_behind(stream, moment),
            Seen::Nothing(order) => order.is_behind(stream, moment),
        }
    }

    fn is_done(&self, moment: Moment) -> bool {
        match &self.seen {
            Seen::By(spy) => spy.is_done(moment),
            Seen::Nothing(_) => false,
        }
    }

    fn address_overlaps(&self, range: AddressRange) -> bool {
        let below = self.live.range(..range.end()).next_back();
        below.is_some_and(|(&start, live)| AddressRange::new(start, live.bytes).end() > range.start)
    }
}
