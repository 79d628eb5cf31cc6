//! The copies of one chunk: between the host, or another device, and a device, and between a slot and the places on
//! the device.

use glake_core::driver::{Driver, Piece, Result};
use glake_core::units::{DevicePtr, StreamId};

use super::{Direction, HostSide, Relay};
use crate::chunk::{Chunk, runs};

impl Relay {
    /// Enqueues the two stages of a chunk to or from the device of `stream`; returns the stream of the second.
    pub(super) fn copy(
        &mut self,
        driver: &dyn Driver,
        direction: Direction,
        host: HostSide,
        chunk: &Chunk,
        stream: StreamId,
    ) -> Result<StreamId> {
        let (first, second) = match direction {
            Direction::ToDevice => (self.stream, stream),
            Direction::ToHost => (stream, self.stream),
        };
        let slot = self.ring.enter(first)?;
        match direction {
            Direction::ToDevice => enqueue_host(driver, direction, host, chunk, first, Some(slot))?,
            Direction::ToHost => enqueue_peer(driver, direction, chunk, slot, first)?,
        }
        let half = driver.record(first)?;
        if let Some(before) = self.half.replace(half) {
            driver.forget(before);
        }
        driver.wait(second, half)?;
        match direction {
            Direction::ToDevice => enqueue_peer(driver, direction, chunk, slot, second)?,
            Direction::ToHost => enqueue_host(driver, direction, host, chunk, second, Some(slot))?,
        }
        self.ring.leave(second)?;
        Ok(second)
    }
}

/// Enqueues the copies between the host and the chunk's places on the device, or their places in a
/// slot, one behind the other.
pub(super) fn enqueue_host(
    driver: &dyn Driver,
    direction: Direction,
    side: HostSide,
    chunk: &Chunk,
    stream: StreamId,
    slot: Option<DevicePtr>,
) -> Result<()> {
    let copy = |device, host, from: u64, bytes: u64| match direction {
        Direction::ToDevice => driver.write_from(device, host, from..from + bytes, stream),
        Direction::ToHost => driver.read_into(device, host, from..from + bytes, stream),
    };
    let mut at = 0;
    match (slot, side) {
        (_, HostSide::Device(start)) => {
            let places = chunk.pieces.iter().map(|piece| {
                at += piece.bytes;
                let device = slot.map_or(piece.device, |slot| slot + (at - piece.bytes));
                (device, start + piece.host_offset, piece.bytes)
            });
            enqueue_pieces(driver, direction, places, stream)
        }
        (None, HostSide::Whole(host)) => {
            chunk.pieces.iter().try_for_each(|piece| copy(piece.device, host, piece.host_offset, piece.bytes))
        }
        (None, HostSide::Packed(host)) => chunk.pieces.iter().try_for_each(|piece| {
            at += piece.bytes;
            copy(piece.device, host, at - piece.bytes, piece.bytes)
        }),
        (Some(slot), HostSide::Packed(host)) => copy(slot, host, 0, chunk.bytes),
        (Some(slot), HostSide::Whole(host)) => runs(&chunk.pieces).try_for_each(|(from, bytes)| {
            at += bytes;
            copy(slot + (at - bytes), host, from, bytes)
        }),
    }
}

/// From this many pieces on, one kernel copies them faster than as many copies.
const GATHER_FROM: usize = 4;

/// Enqueues the copies between a slot and the chunk's places on the device.
fn enqueue_peer(
    driver: &dyn Driver,
    direction: Direction,
    chunk: &Chunk,
    slot: DevicePtr,
    stream: StreamId,
) -> Result<()> {
    let mut at = 0;
    let places = chunk.pieces.iter().map(|piece| {
        at += piece.bytes;
        (piece.device, slot + (at - piece.bytes), piece.bytes)
    });
    enqueue_pieces(driver, direction, places, stream)
}

/// Enqueues the copies between places on the device and others that its stream can reach, of so many bytes each.
fn enqueue_pieces(
    driver: &dyn Driver,
    direction: Direction,
    places: impl ExactSizeIterator<Item = (DevicePtr, DevicePtr, u64)>,
    stream: StreamId,
) -> Result<()> {
    let mut pieces = places.map(|(device, other, bytes)| {
        let (dst, src) = match direction {
            Direction::ToDevice => (device, other),
            Direction::ToHost => (other, device),
        };
        Piece { dst, src, bytes }
    });
    if pieces.len() < GATHER_FROM {
        return pieces.try_for_each(|piece| driver.copy(piece.dst, piece.src, piece.bytes, stream));
    }
    driver.gather(&pieces.collect::<Vec<_>>(), stream)
}
