//! What keys and values depend on besides tokens.

/// The salt of a sequence: everything besides its tokens that its keys and values depend on, and who may share them.
///
/// ```
/// use glake_kvcache::Salt;
/// let salt = Salt::new().adapter(b"sql-lora-2").tenant(b"acme");
/// assert_ne!(salt.as_bytes(), Salt::new().adapter(b"acme").tenant(b"sql-lora-2").as_bytes());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[must_use]
pub struct Salt(Vec<u8>);

impl Salt {
    /// None.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The adapter (`LoRA`) that the model runs with.
    pub fn adapter(self, name: &[u8]) -> Self {
        self.part(b'a', name)
    }

    /// An image or other input whose placeholders are among the tokens: its content hash, in order of appearance.
    pub fn image(self, content_hash: &[u8]) -> Self {
        self.part(b'i', content_hash)
    }

    /// Who may share it. Tenants that share none cannot find out by timing what others asked.
    pub fn tenant(self, name: &[u8]) -> Self {
        self.part(b't', name)
    }

    /// As [`Request::salt`](crate::Request::salt) takes it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Kind, length and bytes, so that no two lists of parts make the same salt.
    fn part(mut self, kind: u8, bytes: &[u8]) -> Self {
        self.0.push(kind);
        self.0.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.extend_from_slice(bytes);
        self
    }
}
