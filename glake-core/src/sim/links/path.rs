//! The path of a copy: which engines carry it, how fast, and when.

use super::super::config::Completion;
use super::super::space::Touch;
use super::super::state::State;
use super::super::work::Work;
use super::{Engine, LinkRates};
use crate::driver::{Piece, Result};
use crate::units::AddressRange;

/// What work moves.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) enum Traffic<'a> {
    /// Host memory to the range.
    ToDevice(AddressRange),
    /// The range to host memory.
    ToHost(AddressRange),
    Pieces(&'a [Piece]),
    /// The stream's device writes the range.
    Writes(AddressRange),
    /// The stream's device reads the range.
    Reads(AddressRange),
    /// The stream's device reads both ranges, as long as one another.
    Compares(AddressRange, AddressRange),
}

impl Traffic<'_> {
    fn bytes(self) -> u64 {
        match self {
            Self::ToDevice(range)
            | Self::ToHost(range)
            | Self::Writes(range)
            | Self::Reads(range)
            | Self::Compares(range, _) => range.bytes,
            Self::Pieces(pieces) => pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.bytes)),
        }
    }
}

/// Engines that carry a copy together, and what they let through.
#[derive(Debug)]
struct Path {
    /// Device and engine.
    engines: Vec<(usize, Engine)>,
    /// The slowest rate on the way.
    bytes_per_us: u64,
    /// The longest start.
    start_ns: u64,
}

impl Path {
    fn new() -> Self {
        Self { engines: Vec::new(), bytes_per_us: u64::MAX, start_ns: 0 }
    }

    /// Takes an engine of a device along.
    fn over(&mut self, device: usize, engine: Engine, rates: LinkRates) {
        if !self.engines.contains(&(device, engine)) {
            self.engines.push((device, engine));
            self.start_ns = self.start_ns.max(rates.start_ns);
            self.limit(engine, rates);
        }
    }

    /// Makes the copy no faster than an engine.
    fn limit(&mut self, engine: Engine, rates: LinkRates) {
        self.bytes_per_us = self.bytes_per_us.min(rates.bytes_per_us(engine).max(1));
    }

    fn ns(&self, bytes: u64) -> u64 {
        self.start_ns.saturating_add(bytes.saturating_mul(1000).div_ceil(self.bytes_per_us))
    }
}

impl State {
    /// When work enqueued on a stream now is done by the clock, which lags by `lag_ns`.
    pub(in crate::sim) fn end_ns(&mut self, stream: usize, work: &Work, lag_ns: u64) -> u64 {
        let traffic = match work {
            Work::Marker => None,
            Work::Wait(event) => return self.begin_ns(stream, lag_ns).max(event.ready_ns),
            Work::Delay(ns) => return self.begin_ns(stream, lag_ns).saturating_add(*ns),
            Work::Write { dst, src } => {
                Some(Traffic::ToDevice(AddressRange::new(*dst, (**src).as_ref().len() as u64)))
            }
            Work::Read { src, read } => {
                let bytes = self.streams.reads.get(*read).map_or(0, |read| read.buffer.len() as u64);
                Some(Traffic::ToHost(AddressRange::new(*src, bytes)))
            }
            Work::WriteFrom { dst, from, .. } => {
                Some(Traffic::ToDevice(AddressRange::new(*dst, from.len() as u64)))
            }
            Work::ReadInto { src, into, .. } => {
                Some(Traffic::ToHost(AddressRange::new(*src, into.len() as u64)))
            }
            Work::Copy(piece) => Some(Traffic::Pieces(std::slice::from_ref(piece))),
            Work::Gather(pieces) => Some(Traffic::Pieces(pieces)),
            Work::Fill { range, .. } | Work::FillPattern { range, .. } => Some(Traffic::Writes(*range)),
            Work::CheckPattern { range, .. } => Some(Traffic::Reads(*range)),
        };
        let timed = traffic.and_then(|traffic| self.book(stream, traffic, lag_ns));
        timed.unwrap_or_else(|| self.begin_ns(stream, lag_ns))
    }

    /// Blocks the host until all work of a stream is done, and `traffic` behind it.
    pub(in crate::sim) fn drain_and_move(&mut self, stream: usize, traffic: Traffic<'_>) -> Result<()> {
        if let Completion::Lag(lag_ns) = self.config.completion
            && let Some(end_ns) = self.book(stream, traffic, lag_ns)
        {
            self.streams.all[stream].ready_ns = end_ns;
        }
        self.drain(stream)
    }

    fn begin_ns(&self, stream: usize, lag_ns: u64) -> u64 {
        self.streams.all[stream].ready_ns.max(self.now_ns.saturating_add(lag_ns))
    }

    /// Takes the engines of `traffic` on a stream for as long as it lasts, as soon as all are free;
    /// returns its end. `None` if it takes no time as no device on its path has rates.
    fn book(&mut self, stream: usize, traffic: Traffic<'_>, lag_ns: u64) -> Option<u64> {
        if self.devices.iter().all(|device| device.links.rates.is_none()) {
            return None;
        }
        let path = self.path(self.streams.device(stream), traffic);
        if path.engines.is_empty() {
            return None;
        }
        let ns = path.ns(traffic.bytes());
        let mut begin_ns = self.begin_ns(stream, lag_ns);
        while let Some(later_ns) = path.engines.iter().find_map(|&(device, engine)| {
            let gap_ns = self.devices[device].links.schedule(engine).gap(begin_ns, ns);
            (gap_ns > begin_ns).then_some(gap_ns)
        }) {
            begin_ns = later_ns;
        }
        for &(device, engine) in &path.engines {
            self.devices[device].links.schedule_mut(engine).take(begin_ns, ns, self.now_ns);
        }
        Some(begin_ns.saturating_add(ns))
    }

    /// The path of what a stream of `device` moves. Copies with host memory take the link of that
    /// device, wherever the memory is. Others go from the owner of what is read through that
    /// device to the owner of what is written; all of it goes the slowest of these ways.
    fn path(&self, device: usize, traffic: Traffic<'_>) -> Path {
        let mut path = Path::new();
        match traffic {
            Traffic::ToDevice(range) => self.host_path(&mut path, device, Engine::ToDevice, range),
            Traffic::ToHost(range) => self.host_path(&mut path, device, Engine::ToHost, range),
            Traffic::Pieces(pieces) => {
                for piece in pieces {
                    let ranges = [piece.src, piece.dst].map(|start| AddressRange::new(start, piece.bytes));
                    self.fetch(&mut path, device, ranges[0]);
                    self.each_peer(device, ranges[1], |peer| self.hop(&mut path, device, peer));
                }
            }
            Traffic::Writes(range) => self.each_peer(device, range, |peer| self.hop(&mut path, device, peer)),
            Traffic::Reads(range) => self.fetch(&mut path, device, range),
            Traffic::Compares(a, b) => {
                self.fetch(&mut path, device, a);
                self.fetch(&mut path, device, b);
            }
        }
        if path.engines.is_empty() && !matches!(traffic, Traffic::ToDevice(_) | Traffic::ToHost(_)) {
            self.over(&mut path, device, Engine::OnDevice);
        }
        path
    }

    fn host_path(&self, path: &mut Path, device: usize, link: Engine, range: AddressRange) {
        self.over(path, device, link);
        self.each_peer(device, range, |peer| {
            for rates in [device, peer].into_iter().filter_map(|end| self.devices[end].links.rates) {
                path.limit(Engine::PeerIn, rates);
            }
        });
    }

    fn fetch(&self, path: &mut Path, device: usize, range: AddressRange) {
        self.each_peer(device, range, |peer| self.hop(path, peer, device));
    }

    fn hop(&self, path: &mut Path, from: usize, to: usize) {
        self.over(path, from, Engine::PeerOut);
        self.over(path, to, Engine::PeerIn);
    }

    fn over(&self, path: &mut Path, device: usize, engine: Engine) {
        if let Some(rates) = self.devices[device].links.rates {
            path.over(device, engine, rates);
        }
    }

    /// The other devices whose memory is in a range, as `device` sees it. What is not mapped, as a
    /// graph's memory may be when that is launched, counts as its own.
    fn each_peer(&self, device: usize, range: AddressRange, mut see: impl FnMut(usize)) {
        let owner = |memory| self.memory.get(memory).map_or(device, |physical| physical.device);
        // An error ends the walk early; the work meets it when it runs.
        let _ = self.space.translate(range, device, Touch::Read, |segment| match owner(segment.memory) {
            own if own == device => {}
            peer => see(peer),
        });
    }
}
