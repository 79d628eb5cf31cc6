//! What lies at which address, and which device may do what there.

use std::collections::BTreeMap;

use super::physical::PhysicalId;

/// What work does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Read,
    Write,
}

/// Who touches memory: copy engines reach the plain memory of every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Copy,
    Kernel {
        /// The devices whose plain memory the kernel may touch, a bit each.
        peers: u64,
    },
}

/// What lies in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A physical handle, with the devices that may read and write, a bit each.
    Mapped { physical: PhysicalId, handle: u64, readers: u64, writers: u64 },
    /// Plain memory of a device, of a pool or not.
    Allocated { device: usize, context: u64, pool: Option<u64> },
    /// Host memory that every device reaches at its own address: made here, or only registered.
    Pinned { is_ours: bool },
}

/// A range of addresses that has memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
}

/// All addresses that were handed out.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) regions: BTreeMap<u64, Region>,
}

/// The bit of a device.
pub(crate) const fn bit(device: usize) -> u64 {
    1 << device
}

impl Region {
    fn allows(&self, device: usize, need: Need, engine: Engine) -> bool {
        match (self.kind, need, engine) {
            (Kind::Mapped { readers, .. }, Need::Read, _) => readers & bit(device) != 0,
            (Kind::Mapped { writers, .. }, Need::Write, _) => writers & bit(device) != 0,
            (Kind::Allocated { device: owner, .. }, _, Engine::Kernel { peers }) => {
                (peers | bit(device)) & bit(owner) != 0
            }
            (Kind::Allocated { .. }, _, Engine::Copy) | (Kind::Pinned { .. }, _, _) => true,
        }
    }
}

impl Space {
    /// The region that holds `address`, and its start.
    pub(crate) fn at(&self, address: u64) -> Option<(u64, &Region)> {
        let (start, region) = self.regions.range(..=address).next_back()?;
        (address - start < region.bytes).then_some((*start, region))
    }

    /// Whether all of a range has memory that `device` may touch so.
    pub(crate) fn may(&self, device: usize, start: u64, bytes: u64, need: Need, engine: Engine) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let mut at = start;
        while at < end {
            match self.at(at) {
                Some((first, region)) if region.allows(device, need, engine) => at = first + region.bytes,
                _ => return false,
            }
        }
        true
    }

    /// Whether a range is pinned host memory throughout.
    pub(crate) fn is_pinned(&self, start: u64, bytes: u64) -> bool {
        let pinned = |(first, region): (u64, &Region)| {
            matches!(region.kind, Kind::Pinned { .. }) && bytes <= region.bytes - (start - first)
        };
        self.at(start).is_some_and(pinned)
    }

    /// Whether a range lies free inside one reservation.
    pub(crate) fn is_free(&self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let reserved = self.reservations.range(..=start).next_back();
        let inside = reserved.is_some_and(|(first, n)| end <= first + n);
        let last = self.regions.range(..end).next_back();
        inside && last.is_none_or(|(first, region)| first + region.bytes <= start)
    }

    /// The starts of the mappings that a range consists of: whole ones, one behind the other.
    pub(crate) fn mappings(&self, start: u64, bytes: u64) -> Option<Vec<u64>> {
        let end = start.checked_add(bytes).filter(|end| *end > start)?;
        let mut at = start;
        let mut starts = Vec::new();
        while at < end {
            let region = self.regions.get(&at)?;
            matches!(region.kind, Kind::Mapped { .. }).then_some(())?;
            starts.push(at);
            at += region.bytes;
        }
        (at == end).then_some(starts)
    }

    /// The plain memory of a context.
    pub(crate) fn allocated_in(&self, context: u64) -> Vec<u64> {
        let is_there =
            |region: &Region| matches!(region.kind, Kind::Allocated { context: of, .. } if of == context);
        self.regions.iter().filter(|(_, region)| is_there(region)).map(|(start, _)| *start).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(readers: u64, writers: u64) -> Region {
        Region { bytes: 100, kind: Kind::Mapped { physical: PhysicalId(0), handle: 0, readers, writers } }
    }

    fn space() -> Space {
        let regions = [(1000, mapped(3, 3)), (1100, mapped(3, 1)), (1300, mapped(0, 0))];
        Space { reservations: [(900, 600)].into(), regions: regions.into() }
    }

    #[test]
    fn rights_hold_for_every_byte() {
        let space = space();
        let may = |device, start, bytes, need| space.may(device, start, bytes, need, Engine::Copy);
        assert!(may(0, 1000, 200, Need::Write) && may(1, 1000, 200, Need::Read));
        assert!(may(1, 1000, 100, Need::Write) && !may(1, 1000, 101, Need::Write));
        assert!(!may(0, 1000, 201, Need::Read), "the byte behind it has no memory");
        assert!(!may(0, 1300, 1, Need::Read) && !may(0, 999, 2, Need::Read));
        assert!(may(0, 5, 0, Need::Read) && !may(0, u64::MAX, 2, Need::Read));
    }

    #[test]
    fn mappings_are_whole_and_free_addresses_lie_in_a_reservation() {
        let space = space();
        assert_eq!(space.mappings(1000, 200), Some(vec![1000, 1100]));
        for (start, bytes) in [(1000, 150), (1050, 50), (1000, 400), (1000, 0)] {
            assert_eq!(space.mappings(start, bytes), None, "{start} + {bytes}");
        }
        assert!(space.is_free(1200, 100) && space.is_free(900, 100) && space.is_free(1400, 100));
        for (start, bytes) in [(1200, 101), (1199, 1), (1400, 101), (800, 100)] {
            assert!(!space.is_free(start, bytes), "{start} + {bytes}");
        }
    }
}
