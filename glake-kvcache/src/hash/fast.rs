//! The keyed multiply hash: NH (Black et al., UMAC, 1999) over the tokens of a block, mixed into the chain.
//!
//! NH multiplies pairs of words, each with a key of its own added, and adds up the products: they do not wait for each
//! other, so that a block takes as long as its multiplications. It is almost universal: two different blocks have the
//! same sum with a chance of 2⁻⁶⁴ over the keys. The sum and the parent's hash are mixed by two
//! multiplications.

use crate::ids::{BlockHash, Token};

#[derive(Clone, Debug)]
pub(super) struct Fast {
    /// Two for each four tokens.
    keys: Box<[[u64; 2]]>,
    mix: [u64; 4],
}

impl Fast {
    pub(super) fn new(seed: [u64; 2], block_tokens: u32) -> Self {
        let mut keys = Keys(seed);
        let mix = [keys.next(), keys.next(), keys.next(), keys.next()];
        let keys = (0..block_tokens.div_ceil(4)).map(|_| [keys.next(), keys.next()]).collect();
        Self { keys, mix }
    }

    pub(super) fn root(&self, salt: &[u8]) -> BlockHash {
        let mut hash = BlockHash(salt.len() as u128);
        for piece in salt.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            hash = self.chain(hash, u128::from(u64::from_le_bytes(word)));
        }
        self.chain(hash, 0)
    }

    #[inline]
    pub(super) fn block(&self, parent: BlockHash, tokens: &[Token]) -> BlockHash {
        let (fours, rest) = tokens.as_chunks::<4>();
        let mut sum = 0;
        for (four, keys) in fours.iter().zip(&self.keys) {
            sum = product(sum, *four, *keys);
        }
        if let (&[first, ref rest @ ..], Some(keys)) = (rest, self.keys.get(fours.len())) {
            let [second, third] = [0, 1].map(|at| rest.get(at).copied().unwrap_or(0));
            sum = product(sum, [first, second, third, 0], *keys);
        }
        self.chain(parent, sum)
    }

    #[inline]
    fn chain(&self, parent: BlockHash, sum: u128) -> BlockHash {
        let [low, high] = halves(sum);
        let [a, b] = halves(wide(low ^ self.mix[0], high ^ self.mix[1]));
        // Only this multiplication waits for the parent.
        let [parent_low, parent_high] = halves(parent.0);
        let [c, d] = halves(wide(a ^ parent_low ^ self.mix[2], b ^ parent_high ^ self.mix[3]));
        BlockHash(u128::from(c ^ d) | u128::from(d.rotate_left(32) ^ c) << 64)
    }
}

#[inline]
fn product(sum: u128, [a, b, c, d]: [Token; 4], [low, high]: [u64; 2]) -> u128 {
    let word = |first: Token, second: Token| u64::from(first) | u64::from(second) << 32;
    sum.wrapping_add(wide(word(a, b).wrapping_add(low), word(c, d).wrapping_add(high)))
}

#[inline]
fn wide(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

/// Key material from a seed: `SplitMix64` over each half, the one feeding the other.
struct Keys([u64; 2]);

impl Keys {
    const fn next(&mut self) -> u64 {
        self.0[0] = self.0[0].wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0[0] ^ self.0[1];
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0[1] = self.0[1].rotate_left(23).wrapping_add(x);
        x ^ (x >> 31)
    }
}
