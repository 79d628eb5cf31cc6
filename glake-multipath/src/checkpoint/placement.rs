//! Where tensors go on a device.
//!
//! A tensor of a page or more starts on a page and has its pages to itself: two processes, or two models,
//! with the same tensor have the same pages, however different what lies around it is. The smaller ones are packed behind the
//! large ones, where a page each would be a waste: a model has a norm of a few KiB for each matrix.

use glake_core::alloc::Request;
use glake_core::units::PAGE_BYTES;

use super::Tensor;

/// The largest extent of more than one tensor, if not said otherwise: 1 GiB.
///
/// Long enough that calls to the allocator do not count (a few dozen for the largest models that one device
/// holds), short enough that memory in which much is free takes one, and that parts of a model can be given back.
pub const EXTENT_BYTES: u64 = 1 << 30;

/// What small tensors are aligned to: a transaction of the device's memory, and more than any type needs.
const ALIGN_BYTES: u64 = 256;

/// One allocation, for tensors of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The shard.
    pub shard: usize,
    /// Its length in bytes.
    pub bytes: u64,
    /// What its address has to be a multiple of, in bytes: a page if it has a tensor of that size.
    pub align_bytes: u64,
}

/// Where a tensor goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which extent.
    pub extent: usize,
    /// Where in it, in bytes from its start.
    pub offset_bytes: u64,
}

/// Where each tensor of a checkpoint goes.
///
/// Tensors that follow each other in a shard share an extent until it is full, so that the file is read from its
/// beginning to its end. The same tensors have the same places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    extents: Vec<Extent>,
    places: Vec<Option<Place>>,
    padding_bytes: u64,
}

/// What the tensors of one extent take.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    /// Whole pages of large tensors.
    large_bytes: u64,
    /// Small tensors, behind them.
    small_bytes: u64,
    /// All tensors, without what lies between.
    used_bytes: u64,
}

impl Taken {
    fn bytes(self) -> u64 {
        self.large_bytes.saturating_add(self.small_bytes)
    }

    /// One tensor more, and where it goes, from the start of the large ones or of the small ones.
    fn with(self, bytes: u64) -> (Self, u64) {
        if bytes == 0 {
            return (self, 0);
        }
        let used_bytes = self.used_bytes.saturating_add(bytes);
        if bytes >= PAGE_BYTES {
            let large_bytes = self.large_bytes.saturating_add(round_up(bytes, PAGE_BYTES));
            return (Self { large_bytes, used_bytes, ..self }, self.large_bytes);
        }
        let at = round_up(self.small_bytes, ALIGN_BYTES);
        (Self { small_bytes: at.saturating_add(bytes), used_bytes, ..self }, at)
    }
}

/// More than can be addressed is refused by whoever is asked for it.
fn round_up(bytes: u64, step_bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(step_bytes).unwrap_or(u64::MAX)
}

impl Placement {
    /// Places for `tensors`, which are in the order of shards and of offsets there, in extents of at most
    /// `extent_bytes`; a tensor that is longer has one of its own.
    #[must_use]
    pub fn new(tensors: &[Tensor], extent_bytes: u64) -> Self {
        let mut placement = Self::default();
        let mut rest = tensors;
        while let Some(first) = rest.first() {
            let mut taken = Taken::default();
            let mut n = 0;
            for tensor in rest.iter().take_while(|tensor| tensor.shard == first.shard) {
                let (next, _) = taken.with(tensor.bytes);
                if next.bytes() > extent_bytes && taken.bytes() > 0 {
                    break;
                }
                (taken, n) = (next, n + 1);
            }
            let (now, later) = rest.split_at(n);
            placement.add(first.shard, now, taken);
            rest = later;
        }
        placement
    }

    /// Adds an extent for `tensors`, which take `taken`.
    fn add(&mut self, shard: usize, tensors: &[Tensor], taken: Taken) {
        let extent = self.extents.len();
        let mut so_far = Taken::default();
        for tensor in tensors {
            let (next, at) = so_far.with(tensor.bytes);
            so_far = next;
            let start = if tensor.bytes >= PAGE_BYTES { 0 } else { taken.large_bytes };
            let place = Place { extent, offset_bytes: start.saturating_add(at) };
            self.places.push((tensor.bytes > 0).then_some(place));
        }
        if taken.bytes() > 0 {
            let align_bytes = if taken.large_bytes > 0 { PAGE_BYTES } else { Request::MIN_ALIGN_BYTES };
            self.extents.push(Extent { shard, bytes: taken.bytes(), align_bytes });
            let padding_bytes = taken.bytes() - taken.used_bytes;
            self.padding_bytes = self.padding_bytes.saturating_add(padding_bytes);
        }
    }

    /// The extents, in the order of the shards.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Where each tensor goes, in the order of the tensors; nowhere, if it has no bytes.
    #[must_use]
    pub fn places(&self) -> &[Option<Place>] {
        &self.places
    }

    /// The bytes of the extents that belong to no tensor.
    #[must_use]
    pub fn padding_bytes(&self) -> u64 {
        self.padding_bytes
    }

    /// The bytes of all extents.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.bytes))
    }
}
