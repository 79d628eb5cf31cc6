//! How large copies go over several links: what a program sets.

/// How large copies between the host and the pools are moved, where the hook moves them; see
/// [`Config::multipath`](crate::Config::multipath).
///
/// ```
/// use glake_hook::{Config, Multipath};
/// let config = Config::new().multipath(Multipath::new().n_links(2));
/// # let _ = config;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multipath {
    pub(crate) n_links: usize,
    chunk_bytes: Option<u64>,
    pub(crate) from_bytes: u64,
}

/// The sizes that a chunk may have.
const CHUNKS: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
/// Chunks of a relay that are in its staging memory.
const CHUNKS_PER_RELAY: u64 = 2;

impl Multipath {
    /// Over all links, for copies of at least 16 MiB.
    #[must_use]
    pub const fn new() -> Self {
        Self { n_links: usize::MAX, chunk_bytes: None, from_bytes: 16 << 20 }
    }

    /// Over at most so many links to the host, the device's own among them. Each other one is that of a GPU which
    /// relays, and on which the process has a context then, of some hundred MiB. With 1, and on a machine with one
    /// GPU, memory is still staged by several threads. `GLAKE_MULTIPATH_CHANNELS`: a number, or `direct` for 1.
    #[must_use]
    pub const fn n_links(self, n: usize) -> Self {
        Self { n_links: if n == 0 { 1 } else { n }, ..self }
    }

    /// How many bytes move at a time, from 64 KiB to 64 MiB; what is outside is taken for the nearer end. The
    /// engine's own sizes if not set. `GLAKE_MULTIPATH_CHUNK`.
    #[must_use]
    pub fn chunk_bytes(self, bytes: u64) -> Self {
        Self { chunk_bytes: Some(bytes.clamp(*CHUNKS.start(), *CHUNKS.end())), ..self }
    }

    /// Copies of fewer bytes are the driver's.
    #[must_use]
    pub const fn from_bytes(self, bytes: u64) -> Self {
        Self { from_bytes: bytes, ..self }
    }

    /// What the engine is told.
    pub(crate) fn engine(&self) -> glake_multipath::Config {
        let config = glake_multipath::Config::new();
        let config = config.most_relays(self.n_links - 1).stage_from_bytes(self.from_bytes);
        match self.chunk_bytes {
            Some(bytes) => {
                let staging_bytes = (CHUNKS_PER_RELAY * bytes).max(64 << 20);
                config.chunk_bytes(bytes).slot_bytes(bytes).staging_bytes(staging_bytes)
            }
            None => config,
        }
    }
}

impl Default for Multipath {
    fn default() -> Self {
        Self::new()
    }
}
