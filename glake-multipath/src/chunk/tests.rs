use super::*;
use proptest::prelude::*;

fn segment(host_offset: u64, device: u64, bytes: u64) -> Segment {
    Segment { host_offset, device: DevicePtr(device), bytes }
}

fn drain(chunks: &mut Chunks, most_bytes: u64) -> Vec<Chunk> {
    std::iter::from_fn(|| chunks.next(most_bytes)).collect()
}

#[test]
fn a_long_segment_is_cut_at_whole_steps() {
    let bytes = 3 * CUT_BYTES + 5;
    let mut chunks = Chunks::new(&[segment(7, 1000, bytes)], bytes + 7, Side::Device).unwrap();
    let cut = drain(&mut chunks, CUT_BYTES + 2);
    let pieces: Vec<Segment> = cut.into_iter().flat_map(|chunk| chunk.pieces).collect();
    let at = |n: u64| segment(7 + n * CUT_BYTES, 1000 + n * CUT_BYTES, CUT_BYTES);
    assert_eq!(pieces, [at(0), at(1), at(2), segment(7 + 3 * CUT_BYTES, 1000 + 3 * CUT_BYTES, 5)]);
    assert_eq!(chunks.left_bytes(), 0);
}

#[test]
fn short_segments_share_a_chunk_and_long_ones_have_their_own() {
    let segments = [segment(0, 0, 10), segment(10, 100, 20), segment(30, 200, 100), segment(130, 400, 5)];
    let mut chunks = Chunks::new(&segments, 135, Side::Device).unwrap();
    let cut: Vec<Vec<u64>> =
        drain(&mut chunks, 40).iter().map(|chunk| chunk.pieces.iter().map(|p| p.bytes).collect()).collect();
    assert_eq!(cut, [vec![10, 20], vec![40], vec![40], vec![20, 5]]);
}

#[test]
fn what_comes_back_goes_out_again_first() {
    let mut chunks = Chunks::new(&[segment(0, 0, 30)], 30, Side::Host).unwrap();
    let first = chunks.next(10).unwrap();
    let second = chunks.next(10).unwrap();
    chunks.give_back(first.clone());
    assert_eq!(chunks.left_bytes(), 20);
    assert_eq!(chunks.next(10), Some(first));
    chunks.give_back(second);
    assert_eq!(*chunks.into_left(), [segment(10, 10, 20)], "joined with what was never handed out");
}

#[test]
fn what_comes_back_goes_out_in_parts_where_less_may() {
    let segments = [segment(0, 0, 10), segment(10, 100, 20), segment(30, 200, 5)];
    let mut chunks = Chunks::new(&segments, 35, Side::Device).unwrap();
    let whole = chunks.next(35).unwrap();
    chunks.give_back(whole);
    let parts: Vec<Vec<Segment>> = drain(&mut chunks, 12).iter().map(|chunk| chunk.pieces.to_vec()).collect();
    let second = vec![segment(12, 102, 12)];
    assert_eq!(
        parts,
        [
            vec![segment(0, 0, 10), segment(10, 100, 2)],
            second,
            vec![segment(24, 114, 6), segment(30, 200, 5)]
        ]
    );
    assert_eq!(chunks.left_bytes(), 0);
}

#[test]
fn segments_that_make_no_transfer_are_refused() {
    let new = |segments: &[Segment], written| Chunks::new(segments, 100, written).map(|_| ());
    let outside = segment(91, 0, 10);
    let error = InvalidSegments::OutsideHost { segment: outside, host_bytes: 100 };
    assert_eq!(new(&[segment(0, 0, 1), outside], Side::Device), Err(error));
    assert!(new(&[segment(u64::MAX, 0, 10)], Side::Device).is_err());
    let wraps = segment(0, u64::MAX - 3, 10);
    assert_eq!(new(&[wraps], Side::Device), Err(InvalidSegments::OutsideDevice(wraps)));
    let (a, b) = (segment(50, 0, 10), segment(0, 9, 10));
    assert_eq!(new(&[b, a], Side::Device), Err(InvalidSegments::Overlap(a, b)));
    assert_eq!(new(&[b, a], Side::Host), Ok(()), "the same device bytes twice are only read");
    let (c, d) = (segment(0, 0, 10), segment(9, 100, 10));
    assert_eq!(new(&[c, d], Side::Host), Err(InvalidSegments::Overlap(c, d)));
    assert_eq!(new(&[c, d], Side::Device), Ok(()));
    assert_eq!(new(&[segment(100, 0, 0), segment(200, 0, 0)], Side::Host), Ok(()), "nothing to copy");
}

proptest! {
    #[test]
    fn every_byte_goes_out_once(
        lengths in proptest::collection::vec(0u64..300_000, 0..40),
        most in proptest::collection::vec(1u64..400_000, 1..10),
        returns in proptest::collection::vec(any::<bool>(), 1..10),
    ) {
        let mut at = 0;
        let segments: Vec<Segment> = lengths.iter().map(|bytes| {
            let one = segment(at, at + 17, *bytes);
            at += bytes;
            one
        }).collect();
        let mut chunks = Chunks::new(&segments, at, Side::Device).unwrap();
        let mut seen = Vec::new();
        for (most, comes_back) in most.iter().cycle().zip(returns.iter().cycle().chain([&false])).take(200) {
            let Some(chunk) = chunks.next(*most) else { break };
            prop_assert_eq!(chunk.bytes, chunk.pieces.iter().map(|piece| piece.bytes).sum::<u64>());
            if *comes_back { chunks.give_back(chunk) } else { seen.extend(chunk.pieces) }
        }
        seen.extend(chunks.into_left());
        seen.sort_by_key(|piece| piece.host_offset);
        let mut end = 0;
        for piece in seen {
            prop_assert_eq!(piece.host_offset, end);
            prop_assert_eq!(piece.device.0, end + 17);
            end = piece.host_end();
        }
        prop_assert_eq!(end, at);
    }
}
