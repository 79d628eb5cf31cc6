//! The copies, and how long they take.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

use glake::driver::{Driver, HostBytes, Lent};
use glake::multipath::{Direction, Engine, Path, Segment};
use glake::units::DeviceId;

use crate::bytes::{self, DeviceSide};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What lies on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Memory {
    Pinned,
    Pageable,
    File,
}

/// How bytes are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way<'a> {
    /// By one call of the driver.
    Plain,
    Engine(&'a Engine),
}

/// Copies between one device and memory on the host, timed.
pub(crate) struct Copies<'a> {
    pub(crate) device: DeviceId,
    pub(crate) side: DeviceSide<'a>,
    pub(crate) rounds: usize,
}

impl Copies<'_> {
    /// The median time of copies of `n_bytes` in nanoseconds, each checked.
    pub(crate) fn time(
        &self,
        way: Way<'_>,
        direction: Direction,
        host: &mut dyn HostBytes,
        file: Option<&File>,
        n_bytes: u64,
    ) -> Outcome<u64> {
        let driver = self.side.driver;
        let mut times = Vec::new();
        for round in 0..=self.rounds as u64 {
            match direction {
                Direction::ToDevice => self.side.fill(n_bytes, !round)?,
                Direction::ToHost => self.side.fill(n_bytes, round)?,
            }
            let host = &mut host.as_mut()[..usize::try_from(n_bytes)?];
            let start_ns = driver.now_ns();
            match (way, direction, file) {
                (Way::Plain, Direction::ToDevice, Some(file)) => {
                    file.read_exact_at(host, 0)?;
                    driver.write(self.side.start, host, self.side.stream)?;
                }
                (Way::Plain, ..) => self.plain(direction, host)?,
                (Way::Engine(engine), Direction::ToDevice, Some(file)) => {
                    let all = Segment { host_offset: 0, device: self.side.start, bytes: n_bytes };
                    engine.on(self.device).write_file(&[all], file)?;
                }
                (Way::Engine(engine), Direction::ToDevice, None) => {
                    engine.on(self.device).write(self.side.start, host)?;
                }
                (Way::Engine(engine), Direction::ToHost, _) => {
                    engine.on(self.device).read(self.side.start, host)?;
                }
            }
            // The first one makes lanes and slots.
            if round > 0 {
                times.push(driver.now_ns() - start_ns);
            }
            match direction {
                Direction::ToDevice => self.side.check(n_bytes, SEED)?,
                Direction::ToHost => bytes::check(host, round)?,
            }
        }
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    /// One copy by the driver, of whatever memory it is.
    fn plain(&self, direction: Direction, host: &mut [u8]) -> Outcome<()> {
        let DeviceSide { driver, start, stream } = self.side;
        let n_bytes = host.len() as u64;
        if !driver.is_pinned(host) {
            match direction {
                Direction::ToDevice => driver.write(start, host, stream)?,
                Direction::ToHost => driver.read(start, host, stream)?,
            }
            return Ok(());
        }
        driver.lend(Lent::Sink(host), &mut |host| match direction {
            Direction::ToDevice => driver.write_from(start, host, 0..n_bytes, stream),
            Direction::ToHost => driver.read_into(start, host, 0..n_bytes, stream),
        })?;
        Ok(())
    }
}

/// What it takes the host to enqueue a copy that a stream waits for.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Submission {
    pub(crate) bytes: u64,
    pub(crate) n_direct_chunks: u64,
    pub(crate) n_relayed_chunks: u64,
    pub(crate) us: f64,
}

/// The best of a few reads of `n_bytes` into pinned memory behind a stream's work.
#[allow(clippy::disallowed_methods, reason = "an example measures the host's time")]
pub(crate) fn submission(
    engine: &Engine,
    side: &DeviceSide<'_>,
    device: DeviceId,
    n_bytes: u64,
) -> Outcome<Submission> {
    let mut buffer = side.driver.pin(n_bytes, device)?;
    let mut best: Option<Submission> = None;
    for _ in 0..5 {
        let start = Instant::now();
        let read = engine.on(device).enqueue_read(side.start, buffer, side.stream)?;
        let us = start.elapsed().as_secs_f64() * 1e6;
        let chunks = |is_direct: bool| {
            let lanes = read.report().lanes.iter().filter(|lane| (lane.path == Path::Direct) == is_direct);
            lanes.map(|lane| lane.n_chunks).sum()
        };
        let (n_direct_chunks, n_relayed_chunks) = (chunks(true), chunks(false));
        buffer = read.wait()?;
        if best.as_ref().is_none_or(|best| us < best.us) {
            best = Some(Submission { bytes: n_bytes, n_direct_chunks, n_relayed_chunks, us });
        }
    }
    best.ok_or_else(|| "nothing was enqueued".into())
}

/// The pattern of what is copied to the device.
pub(crate) const SEED: u64 = 7;

/// What all links carry at once: copies of `n_bytes` between each of the devices and pinned memory, in
/// bytes per second.
pub(crate) fn links_together(
    driver: &dyn Driver,
    devices: &[DeviceId],
    direction: Direction,
    n_bytes: u64,
) -> Outcome<f64> {
    let sides: Vec<_> =
        devices.iter().map(|device| DeviceSide::new(driver, *device, n_bytes)).collect::<Result<_, _>>()?;
    let mut hosts: Vec<_> =
        devices.iter().map(|device| driver.pin(n_bytes, *device)).collect::<Result<_, _>>()?;
    let mut best = 0.0f64;
    for _ in 0..3 {
        let start_ns = driver.now_ns();
        lend_all(&sides, &mut hosts, &mut |side, host| match direction {
            Direction::ToDevice => side.driver.write_from(side.start, host, 0..n_bytes, side.stream),
            Direction::ToHost => side.driver.read_into(side.start, host, 0..n_bytes, side.stream),
        })?;
        let ns = driver.now_ns() - start_ns;
        best = best.max(n_bytes as f64 * devices.len() as f64 * 1e9 / ns.max(1) as f64);
    }
    Ok(best)
}

/// Lends one buffer for each side, enqueues a copy on each, and waits for all.
fn lend_all(
    sides: &[DeviceSide<'_>],
    hosts: &mut [glake::driver::HostBuffer],
    copy: &mut dyn FnMut(&DeviceSide<'_>, glake::units::HostId) -> glake::driver::Result<()>,
) -> glake::driver::Result<()> {
    let (Some((side, sides)), Some((buffer, buffers))) = (sides.split_first(), hosts.split_first_mut())
    else {
        return Ok(());
    };
    side.driver.lend(Lent::Sink((**buffer).as_mut()), &mut |host| {
        copy(side, host)?;
        lend_all(sides, buffers, copy)
    })
}

/// What `n_threads` copy from `from` to `to`, in bytes per second of the driver's clock; 0 where that does
/// not move meanwhile.
pub(crate) fn memcpy_peak(driver: &dyn Driver, from: &[u8], to: &mut [u8], n_threads: usize) -> f64 {
    let part = from.len().div_ceil(n_threads.max(1));
    let mut best = 0.0f64;
    for _ in 0..4 {
        let start_ns = driver.now_ns();
        thread::scope(|scope| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        let ns = driver.now_ns() - start_ns;
        if ns > 0 {
            best = best.max(from.len() as f64 * 1e9 / ns as f64);
        }
    }
    best
}
