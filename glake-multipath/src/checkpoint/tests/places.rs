//! Where tensors go: pure.

use proptest::prelude::*;

use super::super::{EXTENT_BYTES, Place, Placement, Tensor};
use super::{Dtype, PAGE_BYTES};

/// Tensors of these shards and lengths, one behind the other.
fn tensors(of: &[(usize, u64)]) -> Vec<Tensor> {
    let mut at = 0;
    let tensor = |(n, (shard, bytes)): (usize, &(usize, u64))| {
        at += bytes;
        let (shard, bytes) = (*shard, *bytes);
        let name = format!("t{n}").into();
        Tensor { name, dtype: Dtype::U8, shape: [bytes].into(), bytes, shard, offset_bytes: at - bytes }
    };
    of.iter().enumerate().map(tensor).collect()
}

#[test]
fn small_tensors_are_packed_behind_the_pages_of_large_ones() {
    let of = [(0, 100), (0, PAGE_BYTES + 1), (0, 300), (0, 0), (0, PAGE_BYTES), (0, 1), (0, PAGE_BYTES - 1)];
    let placement = Placement::new(&tensors(&of), EXTENT_BYTES);
    let small = 3 * PAGE_BYTES;
    let expected = [small, 0, small + 256, u64::MAX, 2 * PAGE_BYTES, small + 768, small + 1024]
        .map(|offset_bytes| (offset_bytes < u64::MAX).then_some(Place { extent: 0, offset_bytes }));
    assert_eq!(placement.places(), expected);
    let extents: Vec<_> = placement.extents().iter().map(|e| (e.shard, e.bytes, e.align_bytes)).collect();
    assert_eq!(extents, [(0, small + 1024 + PAGE_BYTES - 1, PAGE_BYTES)]);
    assert_eq!(placement.padding_bytes(), (PAGE_BYTES - 1) + 156 + 212 + 255);
}

#[test]
fn an_extent_ends_with_its_shard_or_when_it_is_full() {
    let of = [(0, 10), (1, PAGE_BYTES), (1, PAGE_BYTES), (1, 5 * PAGE_BYTES), (1, 20), (3, 30), (3, 0)];
    let placement = Placement::new(&tensors(&of), 2 * PAGE_BYTES);
    let extents: Vec<_> = placement.extents().iter().map(|e| (e.shard, e.bytes, e.align_bytes)).collect();
    let page = PAGE_BYTES;
    assert_eq!(extents, [(0, 10, 512), (1, 2 * page, page), (1, 5 * page, page), (1, 20, 512), (3, 30, 512)]);
    assert_eq!(placement.bytes(), 7 * page + 60);
    assert_eq!(placement.padding_bytes(), 0);
}

#[test]
fn nothing_takes_no_extent() {
    assert_eq!(Placement::new(&[], EXTENT_BYTES), Placement::default());
    let placement = Placement::new(&tensors(&[(0, 0), (1, 0)]), EXTENT_BYTES);
    assert_eq!((placement.extents(), placement.places()), (&[][..], &[None, None][..]));
}

#[test]
fn lengths_that_nothing_can_hold_do_not_overflow() {
    let placement = Placement::new(&tensors(&[(0, u64::MAX - 3)]), EXTENT_BYTES);
    assert_eq!(placement.bytes(), u64::MAX);
    let mut two = tensors(&[(0, 1 << 63), (0, 5)]);
    two.push(two[0].clone());
    assert_eq!(Placement::new(&two, u64::MAX).extents().len(), 1);
}

proptest! {
    #[test]
    fn no_byte_belongs_to_two(
        of in prop::collection::vec((0..2_usize, prop_oneof![0..2000_u64, PAGE_BYTES - 2..PAGE_BYTES + 2, 0..4 * PAGE_BYTES]), 0..40),
        extent_bytes in prop_oneof![Just(0), Just(EXTENT_BYTES), 0..8 * PAGE_BYTES],
    ) {
        let mut shard = 0;
        let of: Vec<_> = of.into_iter().map(|(step, bytes)| { shard += step; (shard, bytes) }).collect();
        let tensors = tensors(&of);
        let placement = Placement::new(&tensors, extent_bytes);
        assert_eq!(placement.places().len(), tensors.len());
        let mut taken = Vec::new();
        for (tensor, place) in tensors.iter().zip(placement.places()) {
            assert_eq!(place.is_some(), tensor.bytes > 0);
            let Some(place) = place else { continue };
            let extent = placement.extents()[place.extent];
            assert_eq!(extent.shard, tensor.shard);
            let is_large = tensor.bytes >= PAGE_BYTES;
            let step_bytes = if is_large { PAGE_BYTES } else { 256 };
            assert!(place.offset_bytes.is_multiple_of(step_bytes));
            assert!(extent.align_bytes.is_multiple_of(step_bytes));
            assert!(place.offset_bytes + tensor.bytes <= extent.bytes);
            // The pages of a large one are its own, to their ends.
            let end = place.offset_bytes + tensor.bytes;
            let end = if is_large { end.next_multiple_of(PAGE_BYTES) } else { end };
            taken.push((place.extent, place.offset_bytes, end));
        }
        assert!(taken.is_sorted_by_key(|(extent, ..)| extent));
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].2 <= pair[1].1), "{taken:?}");
        for (at, extent) in placement.extents().iter().enumerate() {
            let n = taken.iter().filter(|(of, ..)| *of == at).count();
            assert!(extent.bytes <= extent_bytes || n == 1, "{extent:?} of {n}");
        }
        let used: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
        assert_eq!(placement.bytes(), used + placement.padding_bytes());
    }
}
