#![allow(clippy::cast_possible_truncation, reason = "lists of a few bytes")]

use glake_testkit::rng::Rng;

use super::*;
use crate::order::{Epoch, StreamIndex};

fn tag(stream: usize, epoch: u64) -> Tag {
    Tag { stream: StreamIndex::from_index(stream), epoch: Epoch::from_raw(epoch) }
}

/// A list beside the tags of its bytes, one by one.
struct Model {
    pieces: Pieces,
    rng: Rng,
}

impl Model {
    fn list(&mut self, n: u64) -> (List, Vec<Tag>) {
        let (mut list, mut bytes) = (List::EMPTY, Vec::new());
        for _ in 0..n {
            let (length, tag) = (self.rng.between(1, 5), tag(self.rng.below(3) as usize, self.rng.below(9)));
            let one = self.pieces.one(length, tag);
            (list, bytes) = self.join((list, bytes), (one, vec![tag; length as usize]));
        }
        (list, bytes)
    }

    /// Neighbours of one stream get the newer epoch.
    fn join(&mut self, low: (List, Vec<Tag>), high: (List, Vec<Tag>)) -> (List, Vec<Tag>) {
        let list = self.pieces.join(low.0, high.0, Seam::Merged);
        let (mut bytes, seam) = (low.1, high.1);
        let at = bytes.len();
        bytes.extend(seam);
        if at > 0 && at < bytes.len() && bytes[at - 1].stream == bytes[at].stream {
            let stream = bytes[at].stream;
            let newer = bytes[at - 1].max(bytes[at]);
            let below = bytes[..at].iter().rev().take_while(|tag| tag.stream == stream).count();
            let above = bytes[at..].iter().take_while(|tag| tag.stream == stream).count();
            bytes[at - below..at + above].fill(newer);
        }
        (list, bytes)
    }

    fn check(&self, list: List, bytes: &[Tag]) {
        let flat = |pieces: Vec<(u64, Tag)>| -> Vec<Tag> {
            pieces.into_iter().flat_map(|(n, tag)| vec![tag; n as usize]).collect()
        };
        assert_eq!(flat(self.pieces.iter(list).collect()), bytes);
        let mut back: Vec<_> = self.pieces.iter_back(list).collect();
        back.reverse();
        assert_eq!(flat(back), bytes);
    }
}

#[test]
fn lists_hold_the_tag_of_every_byte() {
    let mut model = Model { pieces: Pieces::default(), rng: Rng::new(7) };
    for _ in 0..3000 {
        let n = model.rng.below(7);
        let (list, bytes) = model.list(n);
        model.check(list, &bytes);
        let at = model.rng.between(0, bytes.len() as u64);
        let (low, high) = model.pieces.split(list, bytes.len() as u64, at);
        let (below, above) = bytes.split_at(at as usize);
        model.check(low, below);
        model.check(high, above);
        let (joined, bytes) = model.join((low, below.to_vec()), (high, above.to_vec()));
        model.check(joined, &bytes);
        model.pieces.drop(joined);
        assert_eq!(model.pieces.n_used(), 0, "pieces leak");
    }
}

#[test]
fn joining_never_lowers_an_epoch() {
    let mut pieces = Pieces::default();
    for (a, b) in [(3, 5), (5, 3)] {
        let (low, high) = (pieces.one(512, tag(1, a)), pieces.one(1024, tag(1, b)));
        let joined = pieces.join(low, high, Seam::Merged);
        assert_eq!(pieces.iter(joined).collect::<Vec<_>>(), [(1536, tag(1, 5))]);
        assert_eq!(pieces.only(joined), Some(tag(1, 5)));
    }
}

#[test]
fn an_exact_seam_keeps_both_epochs() {
    let mut pieces = Pieces::default();
    let (low, high) = (pieces.one(512, tag(1, 3)), pieces.one(1024, tag(1, 5)));
    let joined = pieces.join(low, high, Seam::Exact);
    assert_eq!(pieces.iter(joined).collect::<Vec<_>>(), [(512, tag(1, 3)), (1024, tag(1, 5))]);
    let more = pieces.one(512, tag(1, 5));
    let joined = pieces.join(joined, more, Seam::Exact);
    assert_eq!(pieces.iter(joined).collect::<Vec<_>>(), [(512, tag(1, 3)), (1536, tag(1, 5))]);
}
