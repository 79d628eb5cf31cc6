//! The host as a taker of memory: of bytes that the device is done with.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::StreamId;

use super::{Epoch, Key, Order, State, StreamIndex, Tag};
use crate::thread::ThreadToken;

/// No stream's name: stands for the host.
const HOST: StreamId = StreamId(u64::MAX - 1);

impl Order {
    /// What stands for the host: bytes that are ready for it are ready for everybody. `None` if there
    /// are too many streams.
    ///
    /// It is not counted as a stream, and no event is ever recorded there.
    pub(crate) fn host(&mut self) -> Option<StreamIndex> {
        if self.host.is_none() {
            let index = self.add(Key { stream: HOST, thread: ThreadToken::ANY }, State::Host)?;
            // Whatever bears its tag has been waited for.
            self.streams[index.index()].done_below = Epoch(u64::MAX);
            self.host = Some(index);
        }
        self.host
    }

    /// Whether that is what stands for the host.
    #[inline]
    pub(crate) fn is_host(&self, stream: StreamIndex) -> bool {
        self.host == Some(stream)
    }

    /// Blocks until the device is done with `tag`, behind which there is an event.
    pub(super) fn wait_on_host(&mut self, tag: Tag, driver: &dyn Driver) -> Result<(), DriverError> {
        let Some(closed) = self.streams[tag.stream.index()].covering(tag.epoch) else { return Ok(()) };
        let epoch = closed.epoch;
        driver.synchronize(closed.event)?;
        while self.streams[tag.stream.index()].events.front().is_some_and(|oldest| oldest.epoch <= epoch) {
            self.pass_oldest(tag.stream, driver);
        }
        Ok(())
    }
}
