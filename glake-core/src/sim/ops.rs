//! Kernels of the simulated driver.
//!
//! What is wrong already when a kernel is enqueued is refused and harms nothing. What has become
//! wrong until it runs, as its memory was unmapped or made read-only meanwhile, is a fault and
//! takes the device with it.

use super::SimDriver;
use super::fault::Target;
use super::links::Traffic;
use super::space::Touch;
use super::work::Work;
use crate::driver::{DeviceOps, DriverError, Piece, Result};
use crate::units::{AddressRange, DevicePtr, StreamId};

fn whole_words(range: AddressRange) -> Result<()> {
    if range.start.is_aligned(8) && range.bytes.is_multiple_of(8) {
        Ok(())
    } else {
        Err(DriverError::InvalidValue("a pattern is made of aligned 8-byte words"))
    }
}

impl DeviceOps for SimDriver {
    fn copy_by_kernel(&self, dst: DevicePtr, src: DevicePtr, bytes: u64, stream: StreamId) -> Result<()> {
        let piece = Piece { dst, src, bytes };
        self.submit(
            Target::Kernels,
            stream,
            |state, device| state.check_copy(device, piece),
            || Work::Copy(piece),
        )
    }

    fn gather(&self, pieces: &[Piece], stream: StreamId) -> Result<()> {
        self.lock().call(Target::Kernels, |state| {
            let stream = state.on_uncaptured(stream)?;
            let device = state.streams.device(stream);
            pieces.iter().try_for_each(|&piece| state.check_copy(device, piece))?;
            state.enqueue(stream, Work::Gather(pieces.into()))?;
            Ok(((), 0))
        })
    }

    fn compare(&self, a: DevicePtr, b: DevicePtr, bytes: u64, stream: StreamId) -> Result<bool> {
        self.lock().call(Target::Kernels, |state| {
            let stream = state.on_uncaptured(stream)?;
            let device = state.streams.device(stream);
            state.check(device, a, bytes, Touch::Read)?;
            state.check(device, b, bytes, Touch::Read)?;
            let [left, right] = [a, b].map(|start| AddressRange::new(start, bytes));
            state.drain_and_move(stream, Traffic::Compares(left, right))?;
            Ok((state.compare(device, a, b, bytes)?, 0))
        })
    }

    fn fill_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()> {
        self.submit(
            Target::Kernels,
            stream,
            |state, device| {
                whole_words(range)?;
                state.check(device, range.start, range.bytes, Touch::Write)
            },
            || Work::FillPattern { range, seed },
        )
    }

    fn check_pattern(&self, range: AddressRange, seed: u64, stream: StreamId) -> Result<()> {
        self.submit(
            Target::Kernels,
            stream,
            |state, device| {
                whole_words(range)?;
                state.check(device, range.start, range.bytes, Touch::Read)
            },
            || Work::CheckPattern { range, seed },
        )
    }

    fn mismatches(&self, stream: StreamId) -> Result<u64> {
        self.lock().call(Target::Kernels, |state| {
            let stream = state.on_uncaptured(stream)?;
            state.drain(stream)?;
            Ok((state.devices[state.streams.device(stream)].n_mismatches, 0))
        })
    }

    fn delay(&self, stream: StreamId, ns: u64) -> Result<()> {
        self.submit(Target::Kernels, stream, |_, _| Ok(()), || Work::Delay(ns))
    }
}
