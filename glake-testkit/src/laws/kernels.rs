//! Laws of kernels.

use glake_core::driver::{Driver, DriverError, Piece, pattern_word};
use glake_core::units::{AddressRange, PAGE_BYTES};

use super::rig::{Rig, page};

/// The pattern is the finaliser of `SplitMix64` over seed and word, little-endian, over handle
/// borders.
pub fn a_pattern_is_what_it_says(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(2);
    driver.fill(range, 0, rig.stream).unwrap();
    let inner = AddressRange::new(range.start + 8, 2 * PAGE_BYTES - 16);
    driver.fill_pattern(inner, 42, rig.stream).unwrap();
    let n_words = inner.bytes / 8;
    for index in [0, 1, PAGE_BYTES / 8 - 2, PAGE_BYTES / 8 - 1, n_words - 1] {
        let word = rig.bytes(inner.start + index * 8, 8);
        assert_eq!(word, pattern_word(42, index).to_le_bytes(), "word {index}");
    }
    assert_eq!((rig.bytes(range.start, 8), rig.bytes(inner.end(), 8)), (vec![0; 8], vec![0; 8]));
    rig.close();
}

/// A check counts the words that differ: none, exactly the three that were changed, or, with
/// another seed, all.
pub fn a_check_counts_each_wrong_word(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(2);
    let count = |seed| {
        let before = driver.mismatches(rig.stream).unwrap();
        driver.check_pattern(range, seed, rig.stream).unwrap();
        driver.mismatches(rig.stream).unwrap() - before
    };
    driver.fill_pattern(range, 7, rig.stream).unwrap();
    assert_eq!(count(7), 0);
    for word in [0, PAGE_BYTES / 8, 2 * PAGE_BYTES / 8 - 1] {
        let at = range.start + (word * 8 + 7);
        let byte = rig.get(at);
        rig.put(at, !byte);
    }
    assert_eq!(count(7), 3);
    assert_eq!(count(8), 2 * PAGE_BYTES / 8);
    rig.close();
}

/// Patterns of parts of words, and at addresses between words, are refused.
pub fn patterns_are_made_of_whole_words(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let range = rig.pages(1);
    for (offset, bytes) in [(4, 8), (0, 12), (1, 7)] {
        let odd = AddressRange::new(range.start + offset, bytes);
        for refused in [driver.fill_pattern(odd, 1, rig.stream), driver.check_pattern(odd, 1, rig.stream)] {
            assert!(matches!(refused, Err(DriverError::InvalidValue(_))), "{odd}: {refused:?}");
        }
    }
    rig.close();
}

/// A gather brings pieces of several sizes, aligned or not, each to its place.
pub fn a_gather_moves_every_piece(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (src, dst) = (rig.pages(4), rig.pages(1));
    driver.fill(dst, 0xff, rig.stream).unwrap();
    let sizes: [u64; 6] = [1, 17, 4096, 512, 65_536, 3];
    let (mut pieces, mut to) = (Vec::new(), 5);
    for (n, bytes) in (0u64..).zip(sizes) {
        let from = page(src, 3 - n % 4) + n * 100_003;
        let value = u8::try_from(n + 1).unwrap();
        driver.fill(AddressRange::new(from, bytes), value, rig.stream).unwrap();
        pieces.push(Piece { dst: dst.start + to, src: from, bytes });
        to += bytes + 1;
    }
    driver.gather(&pieces, rig.stream).unwrap();
    assert_eq!(rig.bytes(dst.start, 5), [0xff; 5]);
    for (n, piece) in pieces.iter().enumerate() {
        let bytes = usize::try_from(piece.bytes).unwrap();
        let mut expected = vec![u8::try_from(n + 1).unwrap(); bytes];
        expected.push(0xff);
        assert_eq!(rig.bytes(piece.dst, bytes + 1), expected, "piece {n}");
    }
    rig.close();
}

/// One bad piece refuses the whole gather.
pub fn a_refused_gather_moves_nothing(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (range, hole) = (rig.pages(2), rig.reserve(1));
    driver.fill(range, 1, rig.stream).unwrap();
    rig.put(page(range, 1), 2);
    let good = Piece { dst: range.start, src: page(range, 1), bytes: 1 };
    let bad = Piece { src: hole.start, ..good };
    let refused = driver.gather(&[good, bad], rig.stream);
    assert!(matches!(refused, Err(DriverError::NotMapped(_))), "{refused:?}");
    assert_eq!(rig.get(range.start), 1);
    rig.close();
}

/// A copy by kernel moves its bytes, no more and no less, at odd addresses and over borders.
pub fn a_kernel_copies_exactly_its_bytes(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (src, dst) = (rig.pages(2), rig.pages(2));
    driver.fill_pattern(src, 3, rig.stream).unwrap();
    for (n, (from, to, bytes)) in
        [(0, 0, 1), (3, 5, 1), (PAGE_BYTES - 7, PAGE_BYTES - 9, 33), (1, 2, PAGE_BYTES)]
            .into_iter()
            .enumerate()
    {
        driver.fill(dst, 0x11, rig.stream).unwrap();
        driver.copy_by_kernel(dst.start + to, src.start + from, bytes, rig.stream).unwrap();
        let equal = driver.compare(dst.start + to, src.start + from, bytes, rig.stream);
        assert_eq!(equal, Ok(true), "copy {n}");
        assert_eq!(rig.get(dst.start + (to + bytes)), 0x11, "copy {n}: the byte behind it");
        if to > 0 {
            assert_eq!(rig.get(dst.start + (to - 1)), 0x11, "copy {n}: the byte before it");
        }
    }
    rig.close();
}

/// A comparison sees one differing byte wherever it is, and nothing outside its range.
pub fn a_comparison_sees_the_last_byte(driver: &dyn Driver) {
    let rig = Rig::new(driver);
    let (a, b) = (rig.pages(2), rig.pages(2));
    for range in [a, b] {
        driver.fill_pattern(range, 5, rig.stream).unwrap();
    }
    let equal = |bytes| driver.compare(a.start, b.start, bytes, rig.stream).unwrap();
    assert!(equal(2 * PAGE_BYTES));
    for offset in [0, 1001, PAGE_BYTES, 2 * PAGE_BYTES - 1] {
        let byte = rig.get(a.start + offset);
        rig.put(b.start + offset, !byte);
        assert!(equal(offset) && !equal(offset + 1), "offset {offset}");
        rig.put(b.start + offset, byte);
    }
    assert_eq!(driver.compare(a.start + 8, b.start, 64, rig.stream), Ok(false));
    rig.close();
}
