//! The copy engine of the simulated driver.
//!
//! A copy runs on the device of its stream, which needs access to both sides.

use super::SimDriver;
use super::fault::Target;
use super::links::Traffic;
use super::space::Touch;
use super::state::State;
use super::work::{Read, Work};
use crate::driver::{Copies, DriverError, Piece, ReadId, Result, SharedBytes};
use crate::units::{AddressRange, DevicePtr, StreamId};

impl SimDriver {
    /// Enqueues work of `target` after `check` has passed for the stream's device.
    pub(super) fn submit(
        &self,
        target: Target,
        stream: StreamId,
        check: impl FnOnce(&State, usize) -> Result<()>,
        work: impl FnOnce() -> Work,
    ) -> Result<()> {
        self.lock().call(target, |state| {
            let stream = state.on_stream(stream)?;
            check(state, state.streams.device(stream))?;
            state.enqueue(stream, work())?;
            Ok(((), 0))
        })
    }
}

impl Copies for SimDriver {
    fn write(&self, dst: DevicePtr, src: &[u8], stream: StreamId) -> Result<()> {
        self.lock().call(Target::Copies, |state| {
            let stream = state.on_uncaptured(stream)?;
            let device = state.streams.device(stream);
            state.check(device, dst, src.len() as u64, Touch::Write)?;
            state.drain_and_move(stream, Traffic::ToDevice(AddressRange::new(dst, src.len() as u64)))?;
            state.store(device, dst, src)?;
            Ok(((), 0))
        })
    }

    fn read(&self, src: DevicePtr, dst: &mut [u8], stream: StreamId) -> Result<()> {
        self.lock().call(Target::Copies, |state| {
            let stream = state.on_uncaptured(stream)?;
            let device = state.streams.device(stream);
            state.check(device, src, dst.len() as u64, Touch::Read)?;
            state.drain_and_move(stream, Traffic::ToHost(AddressRange::new(src, dst.len() as u64)))?;
            state.load(device, src, dst)?;
            Ok(((), 0))
        })
    }

    fn write_async(&self, dst: DevicePtr, src: SharedBytes, stream: StreamId) -> Result<()> {
        let bytes = (*src).as_ref().len() as u64;
        self.lock().call(Target::Copies, |state| {
            let stream = state.on_uncaptured(stream)?;
            state.check(state.streams.device(stream), dst, bytes, Touch::Write)?;
            state.enqueue(stream, Work::Write { dst, src })?;
            Ok(((), 0))
        })
    }

    fn read_async(&self, src: DevicePtr, dst: Box<[u8]>, stream: StreamId) -> Result<ReadId> {
        self.lock().call(Target::Copies, |state| {
            let stream = state.on_uncaptured(stream)?;
            state.check(state.streams.device(stream), src, dst.len() as u64, Touch::Read)?;
            let read = state.streams.reads.insert(Read { stream, buffer: dst, done: false });
            state.enqueue(stream, Work::Read { src, read })?;
            Ok((ReadId(read), 0))
        })
    }

    fn take_read(&self, read: ReadId) -> Result<Option<Box<[u8]>>> {
        self.lock().call(Target::Copies, |state| {
            let pending = state.streams.reads.get(read.0).ok_or(DriverError::UnknownRead)?;
            let (stream, done) = (pending.stream, pending.done);
            state.on(state.streams.device(stream))?;
            // Asking costs as much as for an event, so that who asks in a loop moves the clock on.
            let ns = state.config.costs.query_ns;
            Ok((if done { state.streams.reads.remove(read.0).map(|read| read.buffer) } else { None }, ns))
        })
    }

    fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()> {
        let piece = Piece { dst, src, bytes };
        self.submit(
            Target::Copies,
            stream,
            |state, device| state.check_copy(device, piece),
            || Work::Copy(piece),
        )
    }

    fn fill(&self, range: AddressRange, value: u8, stream: StreamId) -> Result<()> {
        self.submit(
            Target::Copies,
            stream,
            |state, device| state.check(device, range.start, range.bytes, Touch::Write),
            || Work::Fill { range, value },
        )
    }
}
