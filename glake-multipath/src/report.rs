//! What a transfer did.

use glake_core::driver::DriverError;

use crate::lane::Path;

/// What one lane did in a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneReport {
    /// Its path.
    pub path: Path,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Chunks that it moved.
    pub n_chunks: u64,
    /// Why it failed, if it did. The other lanes moved what it had not.
    pub error: Option<DriverError>,
}

impl LaneReport {
    pub(crate) fn new(path: Path) -> Self {
        Self { path, bytes: 0, n_chunks: 0, error: None }
    }

    pub(crate) fn count(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.n_chunks += 1;
    }
}

/// What a transfer did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Bytes moved.
    pub bytes: u64,
    /// Time from the first call to the last, in nanoseconds of the driver's clock.
    pub ns: u64,
    /// What each lane did, the direct one first.
    pub lanes: Vec<LaneReport>,
}

impl Report {
    /// The rate in bytes per second; 0 where no time passed.
    #[must_use]
    pub fn bytes_per_s(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.ns.max(1));
        if self.ns == 0 { 0 } else { u64::try_from(rate).unwrap_or(u64::MAX) }
    }
}
