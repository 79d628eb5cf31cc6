//! Where a layer's keys and values are in a block's pages, and the strides by which kernels read them.

use super::{Arrangement, Layout};
use crate::error::LayoutError;
use crate::layout::Heads;

/// Where the first token's vectors of a layer begin: the number of the page among the block's, and the bytes from its
/// beginning. Scales of keys are followed by those of values where both lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Keys, or the latent vector.
    pub key: (u32, u64),
    /// Values; as `key` for a latent vector.
    pub value: (u32, u64),
    /// Scales of the keys.
    pub key_scale: (u32, u64),
    /// Scales of the values; as `key_scale` for a latent vector.
    pub value_scale: (u32, u64),
}

/// Strides of a view `[batch, tokens, heads, dim]` of one layer, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Strides {
    /// From one sequence's slot to the next.
    pub batch: u64,
    /// From one token to the next.
    pub token: u64,
    /// From one head to the next.
    pub head: u64,
}

impl Strides {
    /// The same as 32-bit numbers, batch, token and head, for kernels that take such.
    ///
    /// # Errors
    /// A stride that would wrap.
    pub fn to_u32(self) -> Result<[u32; 3], LayoutError> {
        let short = |stride: u64| u32::try_from(stride).map_err(|_| LayoutError::StrideWraps { stride });
        Ok([short(self.batch)?, short(self.token)?, short(self.head)?])
    }
}

impl Layout {
    /// Where a layer's vectors begin; `None` if the model has no such layer.
    #[must_use]
    pub fn place(&self, layer: u32) -> Option<Place> {
        if layer >= self.shape.n_layers {
            return None;
        }
        let (group, within) = (layer / self.layers_per_page, layer % self.layers_per_page);
        let vector = self.shape.vector_bytes()?;
        let scales = self.shape.scales_bytes();
        let start = self.shape.part_bytes(self.arrangement)? * u64::from(within);
        let page = group * self.parts();
        let is_grouped = matches!(self.shape.heads, Heads::Grouped { .. });
        Some(match (self.arrangement, is_grouped) {
            (Arrangement::Together, true) => Place {
                key: (page, start),
                value: (page, start + vector),
                key_scale: (page, start + 2 * vector),
                value_scale: (page, start + 2 * vector + scales),
            },
            (Arrangement::Apart, true) => Place {
                key: (page, start),
                value: (page + 1, start),
                key_scale: (page, start + vector),
                value_scale: (page + 1, start + vector),
            },
            (_, false) => Place {
                key: (page, start),
                value: (page, start),
                key_scale: (page, start + vector),
                value_scale: (page, start + vector),
            },
        })
    }

    /// Strides of a layer where each sequence has a slot of addresses for `slot_tokens` tokens, rounded up to whole
    /// pages.
    ///
    /// # Errors
    /// No tokens, or a slot that 64 bits cannot address.
    pub fn strides(&self, slot_tokens: u32) -> Result<Strides, LayoutError> {
        if slot_tokens == 0 {
            return Err(LayoutError::Empty);
        }
        let pages = u64::from(slot_tokens.div_ceil(self.block_tokens));
        let slot_bytes = self.page_bytes.checked_mul(pages).ok_or(LayoutError::TooLarge)?;
        let element = self.shape.element.bytes();
        let head = match self.shape.heads {
            Heads::Grouped { head_dim, .. } => u64::from(head_dim),
            Heads::Latent { latent_dim, rope_dim } => u64::from(latent_dim) + u64::from(rope_dim),
        };
        Ok(Strides { batch: slot_bytes / element, token: self.token_bytes / element, head })
    }

    /// Strides where sequences go by block tables: `batch` is from one block to the next.
    #[must_use]
    pub fn block_strides(&self) -> Strides {
        let element = self.shape.element.bytes();
        let head = self.strides(1).map_or(0, |strides| strides.head);
        Strides { batch: self.page_bytes / element, token: self.token_bytes / element, head }
    }
}
