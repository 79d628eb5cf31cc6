//! Many short pieces at once, as caches of keys and values and adapters are made of.

use std::error::Error;

use glake::driver::{Driver, HostBuffer, Lent};
use glake::multipath::{Direction, Segment};
use glake::units::DeviceId;

use crate::bytes::{self, DeviceSide, Pinned};
use crate::measure::{Memory, Way};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Pieces whose neighbours lie elsewhere, on both sides.
pub(crate) struct Scattered<'a> {
    device: DeviceId,
    side: DeviceSide<'a>,
    segments: Vec<Segment>,
    piece_bytes: u64,
}

/// Primes that the number of pieces is no multiple of: steps with which each place is come to once.
const STEPS: [u64; 2] = [7919, 3301];

impl<'a> Scattered<'a> {
    /// `n` pieces, of whole words.
    pub(crate) fn new(driver: &'a dyn Driver, device: DeviceId, n: u64, piece_bytes: u64) -> Outcome<Self> {
        let side = DeviceSide::new(driver, device, n * piece_bytes)?;
        let place = |k: u64, step: u64| k * step % n * piece_bytes;
        let segment = |k| Segment {
            host_offset: place(k, STEPS[0]),
            device: side.start + place(k, STEPS[1]),
            bytes: piece_bytes,
        };
        Ok(Self { device, side, segments: (0..n).map(segment).collect(), piece_bytes })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.segments.len() as u64 * self.piece_bytes
    }

    /// Memory for the host's side.
    pub(crate) fn host(&self, memory: Memory) -> Outcome<HostBuffer> {
        let pinned = if memory == Memory::Pinned { Pinned::Yes } else { Pinned::No };
        bytes::host_memory(self.side.driver, self.device, self.bytes(), pinned)
    }

    /// The median time of `rounds` copies in nanoseconds, each checked.
    pub(crate) fn time(
        &self,
        way: Way<'_>,
        direction: Direction,
        host: &mut HostBuffer,
        rounds: usize,
    ) -> Outcome<u64> {
        let mut times = Vec::new();
        for round in 0..=rounds as u64 {
            // What is to arrive on the one side, and what is not on the other.
            match direction {
                Direction::ToDevice => {
                    self.fill_host((**host).as_mut(), round)?;
                    self.side.fill(self.bytes(), !round)?;
                }
                Direction::ToHost => self.side.fill(self.bytes(), round)?,
            }
            let start_ns = self.side.driver.now_ns();
            match (way, direction) {
                (Way::Plain, _) => self.plain(direction, (**host).as_mut())?,
                (Way::Engine(engine), Direction::ToDevice) => {
                    drop(engine.on(self.device).write_segments(&self.segments, (**host).as_ref())?);
                }
                (Way::Engine(engine), Direction::ToHost) => {
                    drop(engine.on(self.device).read_segments(&self.segments, (**host).as_mut())?);
                }
            }
            if round > 0 {
                times.push(self.side.driver.now_ns() - start_ns);
            }
            match direction {
                Direction::ToDevice => self.side.check(self.bytes(), round)?,
                Direction::ToHost => self.check_host((**host).as_ref(), round)?,
            }
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// A loop of copies, of which the last one is waited for.
    fn plain(&self, direction: Direction, host: &mut [u8]) -> Outcome<()> {
        let DeviceSide { driver, stream, .. } = self.side;
        driver.lend(Lent::Sink(host), &mut |host| {
            self.segments.iter().try_for_each(|piece| {
                let range = piece.host_offset..piece.host_offset + piece.bytes;
                match direction {
                    Direction::ToDevice => driver.write_from(piece.device, host, range, stream),
                    Direction::ToHost => driver.read_into(piece.device, host, range, stream),
                }
            })
        })?;
        Ok(())
    }

    /// Where a piece lies on the host, and the index of its first word on the device.
    fn places(&self, piece: &Segment) -> Outcome<(std::ops::Range<usize>, u64)> {
        let start = usize::try_from(piece.host_offset)?;
        Ok((start..start + usize::try_from(piece.bytes)?, (piece.device - self.side.start) / 8))
    }

    /// Fills the host's side so that the pattern of `seed` comes to the device.
    fn fill_host(&self, host: &mut [u8], seed: u64) -> Outcome<()> {
        for piece in &self.segments {
            let (place, first) = self.places(piece)?;
            bytes::fill_from(&mut host[place], seed, first);
        }
        Ok(())
    }

    /// Fails if the pattern of `seed` has not come from the device.
    fn check_host(&self, host: &[u8], seed: u64) -> Outcome<()> {
        for piece in &self.segments {
            let (place, first) = self.places(piece)?;
            bytes::check_from(&host[place], seed, first)?;
        }
        Ok(())
    }
}
