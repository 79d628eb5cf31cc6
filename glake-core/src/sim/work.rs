//! Device work: what it is, and what happens when it runs.

use std::fmt;
use std::ops::Range;

use super::space::{Segment, Touch};
use super::state::State;
use super::stream::Event;
use crate::driver::{Piece, Result, SharedBytes, pattern_word};
use crate::units::{AddressRange, DevicePtr, HostId};

/// Bytes that one step of a copy moves: a multiple of a pattern's word.
const STEP_BYTES: u64 = 1 << 20;

/// One piece of work on a stream. Addresses are translated when it runs.
#[derive(Clone)]
pub(super) enum Work {
    /// Nothing: a point to wait for.
    Marker,
    Wait(Event),
    Delay(u64),
    Write {
        dst: DevicePtr,
        src: SharedBytes,
    },
    Read {
        src: DevicePtr,
        read: u64,
    },
    WriteFrom {
        dst: DevicePtr,
        host: HostId,
        from: Range<usize>,
    },
    ReadInto {
        src: DevicePtr,
        host: HostId,
        into: Range<usize>,
    },
    Copy(Piece),
    Gather(Box<[Piece]>),
    Fill {
        range: AddressRange,
        value: u8,
    },
    FillPattern {
        range: AddressRange,
        seed: u64,
    },
    CheckPattern {
        range: AddressRange,
        seed: u64,
    },
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marker => write!(f, "Marker"),
            Self::Wait(event) => write!(f, "Wait({event:?})"),
            Self::Delay(ns) => write!(f, "Delay({ns} ns)"),
            Self::Write { dst, src } => write!(f, "Write({dst}, {} bytes)", (**src).as_ref().len()),
            Self::Read { src, .. } => write!(f, "Read({src})"),
            Self::WriteFrom { dst, host, from } => write!(f, "WriteFrom({dst}, {host:?}, {from:?})"),
            Self::ReadInto { src, host, into } => write!(f, "ReadInto({src}, {host:?}, {into:?})"),
            Self::Copy(piece) => write!(f, "Copy({piece:?})"),
            Self::Gather(pieces) => write!(f, "Gather({pieces:?})"),
            Self::Fill { range, value } => write!(f, "Fill({range}, {value})"),
            Self::FillPattern { range, seed } => write!(f, "FillPattern({range}, {seed})"),
            Self::CheckPattern { range, seed } => write!(f, "CheckPattern({range}, {seed})"),
        }
    }
}

/// The buffer of an asynchronous read.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) stream: usize,
    pub(super) buffer: Box<[u8]>,
    pub(super) done: bool,
}

/// `range` in steps: the offset of each, and its part of the range.
fn steps(range: AddressRange) -> impl Iterator<Item = (u64, AddressRange)> {
    (0..range.bytes.div_ceil(STEP_BYTES)).map(move |step| {
        let offset = step * STEP_BYTES;
        (offset, AddressRange::new(range.start + offset, STEP_BYTES.min(range.bytes - offset)))
    })
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A buffer for one step of work on `bytes` bytes.
fn step_buffer(bytes: u64) -> Vec<u8> {
    vec![0; length(bytes.min(STEP_BYTES))]
}

/// The pattern of `seed` from byte `offset` of a range on.
fn write_pattern(out: &mut [u8], seed: u64, offset: u64) {
    for (word, index) in out.chunks_exact_mut(8).zip(offset / 8..) {
        word.copy_from_slice(&pattern_word(seed, index).to_le_bytes());
    }
}

impl State {
    /// Runs one piece of work on `device`. Work that touches what it may not is a fault: the
    /// device is lost, and nothing runs there any more.
    pub(super) fn execute(&mut self, device: usize, work: Work) {
        let host = match &work {
            Work::WriteFrom { host, .. } | Work::ReadInto { host, .. } => Some(*host),
            _ => None,
        };
        if !self.devices[device].lost && self.perform(device, work).is_err() {
            self.lose(device);
        }
        if let Some(host) = host {
            self.host_copy_ends(host);
        }
    }

    fn perform(&mut self, device: usize, work: Work) -> Result<()> {
        match work {
            Work::Marker | Work::Wait(_) | Work::Delay(_) => Ok(()),
            Work::Write { dst, src } => self.store(device, dst, (*src).as_ref()),
            Work::Read { src, read } => self.finish_read(device, src, read),
            Work::WriteFrom { dst, host, from } => self.write_from(device, dst, host, from),
            Work::ReadInto { src, host, into } => self.read_into(device, src, host, into),
            Work::Copy(piece) => self.copy(device, piece),
            Work::Gather(pieces) => pieces.iter().try_for_each(|&piece| self.copy(device, piece)),
            Work::Fill { range, value } => {
                let mut buffer = step_buffer(range.bytes);
                buffer.fill(value);
                steps(range)
                    .try_for_each(|(_, part)| self.store(device, part.start, &buffer[..length(part.bytes)]))
            }
            Work::FillPattern { range, seed } => {
                let mut buffer = step_buffer(range.bytes);
                steps(range).try_for_each(|(offset, part)| {
                    let part_buffer = &mut buffer[..length(part.bytes)];
                    write_pattern(part_buffer, seed, offset);
                    self.store(device, part.start, part_buffer)
                })
            }
            Work::CheckPattern { range, seed } => self.check_pattern(device, range, seed),
        }
    }

    fn copy(&mut self, device: usize, piece: Piece) -> Result<()> {
        let mut buffer = step_buffer(piece.bytes);
        steps(AddressRange::new(piece.src, piece.bytes)).try_for_each(|(offset, part)| {
            let part_buffer = &mut buffer[..length(part.bytes)];
            self.load(device, part.start, part_buffer)?;
            self.store(device, piece.dst + offset, part_buffer)
        })
    }

    fn check_pattern(&mut self, device: usize, range: AddressRange, seed: u64) -> Result<()> {
        let (mut found, mut expected) = (step_buffer(range.bytes), step_buffer(range.bytes));
        for (offset, part) in steps(range) {
            let n = length(part.bytes);
            self.load(device, part.start, &mut found[..n])?;
            write_pattern(&mut expected[..n], seed, offset);
            let words = found[..n].chunks_exact(8).zip(expected[..n].chunks_exact(8));
            self.devices[device].n_mismatches += words.filter(|(a, b)| a != b).count() as u64;
        }
        Ok(())
    }

    fn finish_read(&mut self, device: usize, src: DevicePtr, read: u64) -> Result<()> {
        let Some(pending) = self.streams.reads.get_mut(read) else { return Ok(()) };
        let mut buffer = std::mem::take(&mut pending.buffer);
        self.load(device, src, &mut buffer)?;
        if let Some(pending) = self.streams.reads.get_mut(read) {
            (pending.buffer, pending.done) = (buffer, true);
        }
        Ok(())
    }

    /// Whether `device` may touch all of the range now.
    pub(super) fn check(&self, device: usize, start: DevicePtr, bytes: u64, touch: Touch) -> Result<()> {
        self.space.translate(AddressRange::new(start, bytes), device, touch, |_| {})
    }

    /// Whether `device` may make that copy now.
    pub(super) fn check_copy(&self, device: usize, piece: Piece) -> Result<()> {
        self.check(device, piece.src, piece.bytes, Touch::Read)?;
        self.check(device, piece.dst, piece.bytes, Touch::Write)
    }

    fn segments(&self, device: usize, start: DevicePtr, bytes: usize, touch: Touch) -> Result<Vec<Segment>> {
        let mut segments = Vec::new();
        let range = AddressRange::new(start, bytes as u64);
        self.space.translate(range, device, touch, |segment| segments.push(segment))?;
        Ok(segments)
    }

    /// Reads device memory as `device` sees it.
    pub(super) fn load(&self, device: usize, src: DevicePtr, mut out: &mut [u8]) -> Result<()> {
        for segment in self.segments(device, src, out.len(), Touch::Read)? {
            let (part, rest) = out.split_at_mut(length(segment.bytes));
            self.memory.load(segment, part)?;
            out = rest;
        }
        Ok(())
    }

    /// Writes device memory as `device` sees it.
    pub(super) fn store(&mut self, device: usize, dst: DevicePtr, mut data: &[u8]) -> Result<()> {
        for segment in self.segments(device, dst, data.len(), Touch::Write)? {
            let (part, rest) = data.split_at(length(segment.bytes));
            self.memory.store(segment, part)?;
            data = rest;
        }
        Ok(())
    }

    /// Whether two ranges hold the same bytes.
    pub(super) fn compare(&self, device: usize, a: DevicePtr, b: DevicePtr, bytes: u64) -> Result<bool> {
        let (mut left, mut right) = (step_buffer(bytes), step_buffer(bytes));
        for (offset, part) in steps(AddressRange::new(a, bytes)) {
            let n = length(part.bytes);
            self.load(device, part.start, &mut left[..n])?;
            self.load(device, b + offset, &mut right[..n])?;
            if left[..n] != right[..n] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
