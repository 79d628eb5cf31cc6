//! Transfers cut into chunks, as lanes ask for them.

use glake_core::units::{AddressRange, DevicePtr};
use smallvec::SmallVec;

use crate::error::InvalidSegments;

/// One part of a transfer: `bytes` bytes from `host_offset` of the host side, and at `device`. In a copy from a device
/// the range that is copied from stands for the host side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where the bytes lie on the host side, in bytes from its start.
    pub host_offset: u64,
    /// Where they lie on the device.
    pub device: DevicePtr,
    /// How many they are.
    pub bytes: u64,
}

impl Segment {
    /// The first address behind it on the host side.
    pub(crate) fn host_end(self) -> u64 {
        self.host_offset + self.bytes
    }

    /// The part from `offset` on, of `bytes` bytes.
    fn part(self, offset: u64, bytes: u64) -> Self {
        Self { host_offset: self.host_offset + offset, device: self.device + offset, bytes }
    }
}

/// The most segments in one chunk.
const MAX_PIECES: usize = 4096;
/// Where long segments are cut: at multiples of so many bytes of themselves.
const CUT_BYTES: u64 = 64 << 10;

/// From this many parts on, shorter than that on average, a transfer is scattered.
const SCATTERED_FROM: usize = 16;
const SHORT_BYTES: u64 = 256 << 10;

fn are_short(n: usize, bytes: u64) -> bool {
    n >= SCATTERED_FROM && bytes / (n as u64) < SHORT_BYTES
}

/// The runs of pieces that are neighbours on the host side: where each starts, and its bytes.
pub(crate) fn runs(pieces: &[Segment]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let neighbours = |a: &Segment, b: &Segment| a.host_end() == b.host_offset;
    let bytes = |run: &[Segment]| run.iter().map(|piece| piece.bytes).sum();
    pieces.chunk_by(neighbours).map(move |run| (run[0].host_offset, bytes(run)))
}

/// What a lane moves at a time: a part of one segment, or several short ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) pieces: SmallVec<[Segment; 1]>,
    pub(crate) bytes: u64,
}

impl Chunk {
    /// The same bytes, where the copy from `src` on takes them from.
    pub(crate) fn source(&self, src: DevicePtr) -> Self {
        let mut chunk = self.clone();
        chunk.pieces.iter_mut().for_each(|piece| piece.device = src + piece.host_offset);
        chunk
    }
}

/// What is left of a transfer.
#[derive(Clone, Debug)]
pub(crate) struct Chunks {
    segments: Box<[Segment]>,
    /// The first segment that is not handed out whole.
    at: usize,
    /// How much of it is handed out.
    offset: u64,
    returned: Vec<Chunk>,
    left_bytes: u64,
    /// Runs of neighbouring bytes on the host side.
    n_host_runs: usize,
}

/// Which ways a transfer may touch the same byte twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The device is written.
    Device,
    /// The host is written.
    Host,
}

impl Chunks {
    /// All of `segments`, of a transfer with a host side of `host_bytes` that writes `written`.
    ///
    /// # Errors
    /// A segment that is not inside the host side or wraps around on the device; two that overlap where they
    /// are written.
    pub(crate) fn new(segments: &[Segment], host_bytes: u64, written: Side) -> Result<Self, InvalidSegments> {
        let segments: Box<[Segment]> = segments.iter().copied().filter(|segment| segment.bytes > 0).collect();
        for segment in &segments {
            let end = segment.host_offset.checked_add(segment.bytes);
            if end.is_none_or(|end| end > host_bytes) {
                return Err(InvalidSegments::OutsideHost { segment: *segment, host_bytes });
            }
            if segment.device.checked_add(segment.bytes).is_none() {
                return Err(InvalidSegments::OutsideDevice(*segment));
            }
        }
        if let Some((a, b)) = overlap(&segments, written) {
            return Err(InvalidSegments::Overlap(a, b));
        }
        let left_bytes = segments.iter().map(|segment| segment.bytes).sum();
        let n_host_runs = runs(&segments).count();
        Ok(Self { segments, at: 0, offset: 0, returned: Vec::new(), left_bytes, n_host_runs })
    }

    /// All of `segments`, of a copy from `src`, which stands for the host side.
    ///
    /// # Errors
    /// As [`new`](Self::new); a segment that is copied from where one is written.
    pub(crate) fn between(segments: &[Segment], src: AddressRange) -> Result<Self, InvalidSegments> {
        if src.start.checked_add(src.bytes).is_none() {
            let all = Segment { host_offset: 0, device: src.start, bytes: src.bytes };
            return Err(InvalidSegments::OutsideDevice(all));
        }
        let chunks = Self::new(segments, src.bytes, Side::Device)?;
        match onto_source(&chunks.segments, src.start) {
            Some((from, to)) => Err(InvalidSegments::OntoSource(from, to)),
            None => Ok(chunks),
        }
    }

    /// Whether the device's places are so short that copying each takes longer than its bytes do.
    pub(crate) fn is_scattered(&self) -> bool {
        are_short(self.segments.len(), self.left_bytes)
    }

    /// The same of the host's places.
    pub(crate) fn is_scattered_on_host(&self) -> bool {
        are_short(self.n_host_runs, self.left_bytes)
    }

    /// Bytes that are not handed out.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// The next chunk, of at most `most_bytes`.
    pub(crate) fn next(&mut self, most_bytes: u64) -> Option<Chunk> {
        let most_bytes = most_bytes.max(1);
        let chunk = match self.returned.pop() {
            Some(chunk) if chunk.bytes > most_bytes => self.part(chunk, most_bytes),
            Some(chunk) => chunk,
            None => self.cut(most_bytes)?,
        };
        self.left_bytes -= chunk.bytes;
        Some(chunk)
    }

    /// The first `bytes` bytes of a chunk that was returned by who may take more at a time; the rest stays.
    fn part(&mut self, chunk: Chunk, bytes: u64) -> Chunk {
        let (mut part, mut rest) = (Chunk::default(), Chunk::default());
        for piece in chunk.pieces {
            let now = piece.bytes.min(bytes - part.bytes);
            if now > 0 {
                part.pieces.push(piece.part(0, now));
            }
            if now < piece.bytes {
                rest.pieces.push(piece.part(now, piece.bytes - now));
            }
            part.bytes += now;
            rest.bytes += piece.bytes - now;
        }
        self.returned.push(rest);
        part
    }

    fn cut(&mut self, most_bytes: u64) -> Option<Chunk> {
        let mut chunk = Chunk::default();
        while let Some(segment) = self.segments.get(self.at) {
            let rest = segment.part(self.offset, segment.bytes - self.offset);
            let room = most_bytes - chunk.bytes;
            let is_first = chunk.pieces.is_empty();
            if !is_first && (rest.bytes > room || chunk.pieces.len() == MAX_PIECES) {
                break;
            }
            let bytes = if rest.bytes <= room { rest.bytes } else { whole(room, CUT_BYTES) };
            chunk.pieces.push(rest.part(0, bytes));
            chunk.bytes += bytes;
            if bytes == rest.bytes {
                (self.at, self.offset) = (self.at + 1, 0);
            } else {
                self.offset += bytes;
            }
        }
        (!chunk.pieces.is_empty()).then_some(chunk)
    }

    /// Takes a chunk back that a lane could not move.
    pub(crate) fn give_back(&mut self, chunk: Chunk) {
        self.left_bytes += chunk.bytes;
        self.returned.push(chunk);
    }

    /// What was never handed out, or came back, in the order of the segments.
    pub(crate) fn into_left(mut self) -> Box<[Segment]> {
        let mut left: Vec<Segment> = self.returned.drain(..).flat_map(|chunk| chunk.pieces).collect();
        while let Some(chunk) = self.cut(u64::MAX) {
            left.extend(chunk.pieces);
        }
        left.sort_by_key(|segment| (segment.host_offset, segment.device));
        left.dedup_by(|next, last| {
            let adjoins = last.host_end() == next.host_offset && last.device + last.bytes == next.device;
            if adjoins {
                last.bytes += next.bytes;
            }
            adjoins
        });
        left.into()
    }
}

/// `bytes` rounded down to a multiple of `step_bytes`, unless that is nothing.
fn whole(bytes: u64, step_bytes: u64) -> u64 {
    if bytes < step_bytes { bytes } else { bytes - bytes % step_bytes }
}

/// Two segments that overlap on one side.
fn overlap(segments: &[Segment], side: Side) -> Option<(Segment, Segment)> {
    let start = |segment: &Segment| match side {
        Side::Device => segment.device.0,
        Side::Host => segment.host_offset,
    };
    let mut sorted: Vec<Segment> = segments.to_vec();
    if !sorted.is_sorted_by_key(start) {
        sorted.sort_unstable_by_key(start);
    }
    let overlaps = |pair: &&[Segment]| start(&pair[0]) + pair[0].bytes > start(&pair[1]);
    sorted.windows(2).find(overlaps).map(|pair| (pair[0], pair[1]))
}

/// A segment that is copied from where another is written; their places on the device do not overlap.
fn onto_source(segments: &[Segment], src: DevicePtr) -> Option<(Segment, Segment)> {
    let mut written = segments.to_vec();
    written.sort_unstable_by_key(|segment| segment.device);
    segments.iter().find_map(|from| {
        let start = src + from.host_offset;
        let at = written.partition_point(|to| to.device + to.bytes <= start);
        let to = written.get(at).filter(|to| to.device < start + from.bytes)?;
        Some((*from, *to))
    })
}

#[cfg(test)]
mod tests;
