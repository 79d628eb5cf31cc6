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

    /// Makes the pool. It reserves addresses and takes memory only as needed.
    ///
    /// # Errors
    /// [`AllocError::Driver`] if the device does not exist or has no addresses left. Nothing is
    /// kept then.
    pub fn build(self) -> Result<Pool, AllocError> {
        let Self { driver, device, stream, mode, limit_bytes, stitch_above_bytes } = self;
        let stream = match stream {
            Some(stream) => PoolStream::given(stream),
            None => PoolStream::own(driver.create_stream(device)?, &driver),
        };
        let config =
            Config::new(device).mode(mode).limit_bytes(limit_bytes).stitch_above_bytes(stitch_above_bytes);
        let pool = SharedPool::new(Arc::clone(&driver), config)?;
        Ok(Pool::new(Shared::new(pool, driver, stream), device))
    }
}
