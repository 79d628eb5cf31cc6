//! What a model keeps of each token.

use super::{ALIGN_BYTES, Arrangement};
use crate::error::LayoutError;

/// What keys and values are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Element {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit floating point, with an f32 scale for each head of keys and of values.
    Fp8,
    /// 8-bit integers, with an f32 scale for each head of keys and of values.
    Int8,
}

impl Element {
    /// Size of an element in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8 | Self::Int8 => 1,
        }
    }

    /// Size of the scale of each vector in bytes.
    pub(crate) const fn scale_bytes(self) -> u64 {
        match self {
            Self::Fp8 | Self::Int8 => 4,
            Self::F32 | Self::F16 | Self::Bf16 => 0,
        }
    }
}

/// What a layer keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Heads {
    /// A key and a value for each head: multi-head, grouped-query and multi-query attention.
    Grouped {
        /// Heads of keys, and of values.
        n_kv_heads: u32,
        /// Dimensions of a head.
        head_dim: u32,
    },
    /// One latent vector for all heads, and the part of the key that is rotated (multi-head latent attention).
    Latent {
        /// Dimensions of the latent vector.
        latent_dim: u32,
        /// Dimensions of the rotated part.
        rope_dim: u32,
    },
}

/// What a model keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelShape {
    pub(crate) n_layers: u32,
    pub(crate) heads: Heads,
    pub(crate) element: Element,
    pub(crate) window_tokens: Option<u32>,
}

impl ModelShape {
    /// A model with `n_kv_heads` heads of keys and values.
    #[must_use]
    pub const fn grouped(n_layers: u32, n_kv_heads: u32, head_dim: u32, element: Element) -> Self {
        Self { n_layers, heads: Heads::Grouped { n_kv_heads, head_dim }, element, window_tokens: None }
    }

    /// A model with multi-head latent attention.
    #[must_use]
    pub const fn latent(n_layers: u32, latent_dim: u32, rope_dim: u32, element: Element) -> Self {
        Self { n_layers, heads: Heads::Latent { latent_dim, rope_dim }, element, window_tokens: None }
    }

    /// Has each token see the last `tokens` tokens only, itself included.
    #[must_use]
    pub const fn window(self, tokens: u32) -> Self {
        Self { window_tokens: Some(tokens), ..self }
    }

    /// Bytes of a token in all layers, without padding between tokens; `None` if they cannot be counted.
    #[must_use]
    pub fn token_bytes(&self) -> Option<u64> {
        self.part_bytes(Arrangement::Together)?.checked_mul(u64::from(self.n_layers))
    }

    /// Bytes of the vectors of one kind, keys or values or latent, of a token in a layer.
    pub(crate) fn vector_bytes(&self) -> Option<u64> {
        let elements = match self.heads {
            Heads::Grouped { n_kv_heads, head_dim } => u64::from(n_kv_heads) * u64::from(head_dim),
            Heads::Latent { latent_dim, rope_dim } => u64::from(latent_dim) + u64::from(rope_dim),
        };
        elements.checked_mul(self.element.bytes())?.checked_next_multiple_of(ALIGN_BYTES)
    }

    /// Bytes of the scales of one kind of a token in a layer.
    pub(crate) fn scales_bytes(&self) -> u64 {
        let n_vectors = match self.heads {
            Heads::Grouped { n_kv_heads, .. } => u64::from(n_kv_heads),
            Heads::Latent { .. } => 1,
        };
        (n_vectors * self.element.scale_bytes()).next_multiple_of(ALIGN_BYTES)
    }

    /// Bytes of a token in a layer that lie in one page: keys and values, or either.
    pub(crate) fn part_bytes(&self, arrangement: Arrangement) -> Option<u64> {
        let kind = self.vector_bytes()?.checked_add(self.scales_bytes())?;
        match (arrangement, self.heads) {
            (Arrangement::Together, Heads::Grouped { .. }) => kind.checked_mul(2),
            _ => Some(kind),
        }
    }

    pub(crate) const fn check(&self) -> Result<(), LayoutError> {
        let has_dimensions = match self.heads {
            Heads::Grouped { n_kv_heads, head_dim } => n_kv_heads > 0 && head_dim > 0,
            Heads::Latent { latent_dim, .. } => latent_dim > 0,
        };
        if self.n_layers == 0 || !has_dimensions || matches!(self.window_tokens, Some(0)) {
            return Err(LayoutError::Empty);
        }
        Ok(())
    }
}
