//! How a pool is set up.

use std::sync::Arc;

use glake_core::alloc::AllocError;
use glake_core::driver::Driver;
use glake_core::units::{DeviceId, StreamId};
use glake_vmm::{Config, Mode, SharedPool};

use crate::pool::Pool;
use crate::shared::{PoolStream, Shared};

/// Sets up a [`Pool`]; made by [`Pool::builder`].
#[derive(Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct PoolBuilder {
    driver: Arc<dyn Driver>,
    device: DeviceId,
    stream: Option<StreamId>,
    mode: Mode,
    limit_bytes: u64,
    stitch_above_bytes: u64,
    background: Option<Background>,
}

/// What the thread for background work sees to, beside mappings that are no longer needed.
#[derive(Clone, Copy, Debug, Default)]
struct Background {
    headroom_bytes: u64,
    leave_bytes: u64,
}

impl PoolBuilder {
    pub(crate) fn new(driver: Arc<dyn Driver>, device: DeviceId) -> Self {
        Self {
            driver,
            device,
            stream: None,
            mode: Mode::Default,
            limit_bytes: u64::MAX,
            stitch_above_bytes: 0,
            background: None,
        }
    }

    /// The stream that [`Pool::stream`] names. It has to outlive the pool and its buffers, unless the
    /// pool is told of its end ([`Pool::stream_ends`]). By default the pool makes a stream of its own.
    pub fn stream(self, stream: StreamId) -> Self {
        Self { stream: Some(stream), ..self }
    }

    /// How the pool weighs waste against driver time.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The most physical bytes that the pool may hold. No limit by default.
    pub fn limit_bytes(self, bytes: u64) -> Self {
        Self { limit_bytes: bytes, ..self }
    }

    /// Below this many physical bytes the pool grows rather than stitch: less driver time while
    /// memory is plenty. 0, the default, stitches always.
    pub fn stitch_above_bytes(self, bytes: u64) -> Self {
        Self { stitch_above_bytes: bytes, ..self }
    }

    /// Gives the pool a thread that does in the background what requests would have to do otherwise:
    /// remove mappings that are no longer needed. What it does when is up to the clock, so addresses may
    /// differ from run to run. Without it, the same requests get the same addresses.
    pub fn background(self) -> Self {
        Self { background: Some(self.background.unwrap_or_default()), ..self }
    }

    /// How many free bytes the background thread keeps ready, so that a request seldom waits for the
    /// driver to create memory: as much may be held without being used. 0 by default.
    pub fn headroom_bytes(self, bytes: u64) -> Self {
        let background = Background { headroom_bytes: bytes, ..self.background.unwrap_or_default() };
        Self { background: Some(background), ..self }
    }

    /// How many free bytes the background thread leaves to others on the device, by giving back what is
    /// free in the pool. 0 by default.
    pub fn leave_bytes(self, bytes: u64) -> Self {
        let background = Background { leave_bytes: bytes, ..self.background.unwrap_or_default() };
        Self { background: Some(background), ..self }
    }

    /// Makes the pool. It reserves addresses and takes memory only as needed.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if the device does not exist or has no addresses left, or the system no
    /// thread for the background. Nothing is kept then.
    pub fn build(self) -> Result<Pool, AllocError> {
        let Self { driver, device, stream, mode, limit_bytes, stitch_above_bytes, background } = self;
        let stream = match stream {
            Some(stream) => PoolStream::given(stream),
            None => PoolStream::own(driver.create_stream(device)?, &driver),
        };
        let Background { headroom_bytes, leave_bytes } = background.unwrap_or_default();
        let config = Config::new(device)
            .mode(mode)
            .limit_bytes(limit_bytes)
            .stitch_above_bytes(stitch_above_bytes)
            .headroom_bytes(headroom_bytes)
            .leave_bytes(leave_bytes);
        let pool = SharedPool::new(Arc::clone(&driver), config)?;
        let shared = Arc::new(Shared::new(pool, driver, stream));
        if background.is_some() {
            shared.start_worker()?;
        }
        Ok(Pool::new(shared, device))
    }
}
