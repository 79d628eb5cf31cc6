//! How keys and values of a model lie in pages: pure.
//!
//! A *record* is what one token has in one layer: `[key heads][value heads][scales]`, or one latent vector. Keys and values
//! together, a page holds `[token][layer][record]` of a group of layers; apart, keys have pages of their own. A block's
//! pages are one for each group (and twice that, apart). With all layers of a Llama-3-8B in a group and pages of 2 MiB, a
//! block is 16 tokens; fewer layers in a group have longer blocks, which waste more and read slightly faster.

use crate::error::LayoutError;

mod shape;
mod strides;

pub use shape::{Element, Heads, ModelShape};
pub use strides::{Place, Strides};

/// Whether keys and values of a token lie together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// In one record.
    #[default]
    Together,
    /// Keys in some pages, values in others.
    Apart,
}

/// Everything within a token begins at multiples of so many bytes, as kernels load as much at once.
pub(crate) const ALIGN_BYTES: u64 = 16;

/// How a model's keys and values lie in pages.
///
/// ```
/// use glake_kvcache::layout::{Arrangement, Element, Layout, ModelShape};
/// let llama = ModelShape::grouped(32, 8, 128, Element::Bf16);
/// let layout = Layout::new(&llama, 2 << 20, 32, Arrangement::Together)?;
/// assert_eq!((layout.block_tokens(), layout.pages_per_block()), (16, 1));
/// let layout = Layout::new(&llama, 2 << 20, 4, Arrangement::Together)?;
/// assert_eq!((layout.block_tokens(), layout.pages_per_block()), (128, 8));
/// # Ok::<(), glake_kvcache::LayoutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) shape: ModelShape,
    pub(crate) arrangement: Arrangement,
    pub(crate) page_bytes: u64,
    pub(crate) layers_per_page: u32,
    pub(crate) block_tokens: u32,
    /// From one token to the next in a page.
    pub(crate) token_bytes: u64,
}

impl Layout {
    /// The layout of pages of `page_bytes` that hold `layers_per_page` layers, the last perhaps fewer.
    ///
    /// Tokens fill a page in equal steps, so that a view over consecutive pages has one stride: where their bytes do
    /// not divide the page, the step is longer than they are ([`padding`](Self::padding) says by how much).
    ///
    /// # Errors
    /// A shape without layers, heads, dimensions or a token in its window; a number of layers that the model does not have;
    /// a page that holds less than one token.
    pub fn new(
        shape: &ModelShape,
        page_bytes: u64,
        layers_per_page: u32,
        arrangement: Arrangement,
    ) -> Result<Self, LayoutError> {
        shape.check()?;
        if !(1..=shape.n_layers).contains(&layers_per_page) {
            return Err(LayoutError::Layers { layers_per_page, n_layers: shape.n_layers });
        }
        let needed_bytes = shape
            .part_bytes(arrangement)
            .and_then(|bytes| bytes.checked_mul(u64::from(layers_per_page)))
            .ok_or(LayoutError::TooLarge)?;
        let most = u32::try_from(page_bytes / needed_bytes).map_err(|_| LayoutError::TooLarge)?;
        let steps = |tokens: u64| page_bytes.is_multiple_of(tokens * ALIGN_BYTES);
        let tokens = (1..=u64::from(most)).rev().find(|tokens| steps(*tokens));
        let Some(tokens) = tokens else { return Err(LayoutError::PageTooSmall { needed_bytes, page_bytes }) };
        let block_tokens = u32::try_from(tokens).map_err(|_| LayoutError::TooLarge)?;
        let token_bytes = page_bytes / tokens;
        Ok(Self { shape: *shape, arrangement, page_bytes, layers_per_page, block_tokens, token_bytes })
    }

    /// Tokens in a block, and in each of its pages.
    #[must_use]
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Pages of a block: one for each group of layers, and of keys and values where they lie apart.
    #[must_use]
    pub const fn pages_per_block(&self) -> u32 {
        self.n_groups() * self.parts()
    }

    /// Bytes of a block's pages.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.page_bytes * self.pages_per_block() as u64
    }

    /// The share of a full block that holds neither keys nor values: tokens padded to equal steps, and a last group
    /// with fewer layers.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a share")]
    pub fn padding(&self) -> f64 {
        let used = self.shape.token_bytes().unwrap_or(0) * u64::from(self.block_tokens);
        1.0 - used as f64 / self.block_bytes() as f64
    }

    /// The share of the pages of sequences of `lengths` tokens that holds neither keys nor values: ends of blocks and
    /// padding.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a share")]
    pub fn waste(&self, lengths: impl IntoIterator<Item = u32>) -> f64 {
        let (mut used, mut held) = (0_u128, 0_u128);
        for tokens in lengths {
            used += u128::from(self.shape.token_bytes().unwrap_or(0)) * u128::from(tokens);
            held += u128::from(self.block_bytes()) * u128::from(tokens.div_ceil(self.block_tokens));
        }
        if held == 0 { 0.0 } else { 1.0 - used as f64 / held as f64 }
    }

    /// The first block that a sequence of `n_tokens` tokens still reads, to compute the next one: not 0 where the window has
    /// slid past it.
    #[must_use]
    pub fn first_block_read(&self, n_tokens: u32) -> u32 {
        let before = self.shape.window_tokens.map_or(0, |window| (n_tokens + 1).saturating_sub(window));
        before / self.block_tokens
    }

    const fn n_groups(&self) -> u32 {
        self.shape.n_layers.div_ceil(self.layers_per_page)
    }

    /// One, or two where values have pages of their own.
    const fn parts(&self) -> u32 {
        match (self.arrangement, self.shape.heads) {
            (Arrangement::Apart, Heads::Grouped { .. }) => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests;
