//! The cryptographic hash: keyed BLAKE3, where the key is the seed and the parent's hash.
//!
//! A block of 16 tokens is one compression this way, and a chain is a cascade of keyed hashes.

use crate::ids::{BlockHash, Token};

#[derive(Clone, Copy, Debug)]
pub(super) struct Crypto {
    seed: [u8; 16],
}

/// Tokens that are copied to bytes at a time: what BLAKE3 compresses at once.
const PIECE: usize = 16;

impl Crypto {
    pub(super) fn new([low, high]: [u64; 2]) -> Self {
        Self { seed: (u128::from(low) | u128::from(high) << 64).to_le_bytes() }
    }

    /// Under a key that no block has: its second half is the seed once more, inverted.
    pub(super) fn root(&self, salt: &[u8]) -> BlockHash {
        short(blake3::keyed_hash(&self.key(!u128::from_le_bytes(self.seed)), salt))
    }

    pub(super) fn block(&self, parent: BlockHash, tokens: &[Token]) -> BlockHash {
        let key = self.key(parent.0);
        let mut bytes = [0; 4 * PIECE];
        if tokens.len() <= PIECE {
            return short(blake3::keyed_hash(&key, le_bytes(tokens, &mut bytes)));
        }
        let mut hasher = blake3::Hasher::new_keyed(&key);
        for piece in tokens.chunks(PIECE) {
            hasher.update(le_bytes(piece, &mut bytes));
        }
        short(hasher.finalize())
    }

    fn key(&self, parent: u128) -> [u8; 32] {
        let mut key = [0; 32];
        key[..16].copy_from_slice(&self.seed);
        key[16..].copy_from_slice(&parent.to_le_bytes());
        key
    }
}

fn le_bytes<'a>(tokens: &[Token], bytes: &'a mut [u8; 4 * PIECE]) -> &'a [u8] {
    for (place, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
        *place = token.to_le_bytes();
    }
    &bytes[..4 * tokens.len().min(PIECE)]
}

fn short(hash: blake3::Hash) -> BlockHash {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    BlockHash(u128::from_le_bytes(bytes))
}
