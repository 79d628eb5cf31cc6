//! One measurement each.

use glake_core::driver::{Driver, DriverError};
use glake_core::units::{DeviceId, EventId};

use super::budget::{Deadline, Miss};
use super::fit::{self, PathRate, Sample};
use super::rig::{Rig, push, wait};
use crate::config::LEAST_BYTES;
use crate::lane::{Direction, Lane, Path};

/// What the first copy over a link may take.
const FIRST_NS: u64 = 1_000_000;
/// The small one of the two sizes that give the start of a copy.
const SMALL_BYTES: u64 = 64 << 10;
/// About how long a large chunk takes: so much longer than its start that this counts for nothing.
const CHUNK_NS: u64 = 1_000_000;
/// Chunks of each lane that are timed while all are busy, behind the first one.
const N_TIMED: u64 = 4;
/// What a step with several lanes takes at most.
const STEADY_NS: u64 = 50_000_000;
/// After so many looks at a clock that stands still, waiting takes the place of looking.
const N_STALLED: u32 = 64;

/// The direct path, by two sizes.
pub(super) fn direct(rig: &mut Rig<'_>, direction: Direction, until: Deadline<'_>) -> Result<PathRate, Miss> {
    rig.with_lanes(&[Path::Direct], |rig, lanes| {
        let most_bytes = rig.scale.most_chunk_bytes;
        let small_bytes = SMALL_BYTES.min(most_bytes / 2);
        let mut single = |bytes| stream(rig, &mut lanes[0], direction, bytes, bytes);
        until.admit(FIRST_NS)?;
        let first_ns = single(small_bytes)?;
        let probe_bytes = LEAST_BYTES.min(most_bytes);
        until.admit(first_ns.saturating_mul(2 * (probe_bytes / small_bytes)))?;
        let probe = Sample { bytes: probe_bytes, ns: single(probe_bytes)? };
        let rate = probe.bytes_per_ms().ok_or(Miss::Untimed)?;
        let bytes = fit::bytes_in(CHUNK_NS, rate, LEAST_BYTES, most_bytes);
        let expected_ns = 2 * fit::start(probe, rate).ns(bytes);
        let small = Sample { bytes: small_bytes, ns: until.rounds(first_ns, || single(small_bytes))? };
        let large = Sample { bytes, ns: until.rounds(expected_ns, || single(bytes))? };
        fit::fit(small, large).ok_or(Miss::Untimed)
    })
}

/// The large chunk of a path.
fn large_bytes(rig: &Rig<'_>, bytes_per_ms: u64) -> u64 {
    fit::bytes_in(CHUNK_NS, bytes_per_ms, LEAST_BYTES, rig.scale.most_chunk_bytes)
}

/// The best chunk of the direct path: the same bytes in ever smaller ones, as long as that does little harm.
pub(super) fn chunk(
    rig: &mut Rig<'_>,
    direction: Direction,
    direct: PathRate,
    until: Deadline<'_>,
) -> Result<u64, Miss> {
    rig.with_lanes(&[Path::Direct], |rig, lanes| {
        let largest = large_bytes(rig, direct.bytes_per_ms);
        let bytes = 2 * largest;
        let mut rates: Vec<(u64, u64)> = Vec::new();
        let mut chunk = largest;
        while chunk >= rig.scale.least_chunk_bytes.min(largest) {
            let expected_ns = 2 * direct.ns(chunk).saturating_mul(bytes / chunk);
            let ns = until.rounds(expected_ns, || stream(rig, &mut lanes[0], direction, bytes, chunk))?;
            let rate = Sample { bytes, ns }.bytes_per_ms().ok_or(Miss::Untimed)?;
            rates.push((chunk, rate));
            let best = rates.iter().map(|rate| rate.1).max().unwrap_or(rate);
            if !fit::is_within(rate, best, 5) {
                break;
            }
            chunk /= 2;
        }
        fit::best_chunk(&rates).ok_or(Miss::Untimed)
    })
}

/// A path over one relay, alone; `direct` is what the direct path carries.
pub(super) fn relay(
    rig: &mut Rig<'_>,
    direction: Direction,
    relay: DeviceId,
    direct: PathRate,
    until: Deadline<'_>,
) -> Result<PathRate, Miss> {
    rig.with_lanes(&[Path::Via(relay)], |rig, lanes| {
        let bytes = LEAST_BYTES.min(rig.scale.most_chunk_bytes);
        until.admit(direct.ns(bytes).saturating_mul(2))?;
        let mut single = || stream(rig, &mut lanes[0], direction, bytes, bytes);
        let first_ns = single()?;
        let probe = Sample { bytes, ns: until.rounds(first_ns, single)? };
        let rate = probe.bytes_per_ms().ok_or(Miss::Untimed)?;
        let rate = steady_rounds(rig, lanes, direction, &[fit::start(probe, rate)], until)?;
        Ok(fit::start(probe, rate))
    })
}

/// The direct path and those over relays, which carry so much alone, at once; in bytes per millisecond.
pub(super) fn together(
    rig: &mut Rig<'_>,
    direction: Direction,
    relays: &[(DeviceId, PathRate)],
    direct: PathRate,
    until: Deadline<'_>,
) -> Result<u64, Miss> {
    let all = || {
        std::iter::once((Path::Direct, direct)).chain(relays.iter().map(|(id, rate)| (Path::Via(*id), *rate)))
    };
    let paths: Vec<Path> = all().map(|path| path.0).collect();
    let rates: Vec<PathRate> = all().map(|path| path.1).collect();
    rig.with_lanes(&paths, |rig, lanes| steady_rounds(rig, lanes, direction, &rates, until))
}

/// What lanes that carry `alone` each carry in sum while all are busy, in bytes per millisecond.
fn steady_rounds(
    rig: &Rig<'_>,
    lanes: &mut [Lane],
    direction: Direction,
    alone: &[PathRate],
    until: Deadline<'_>,
) -> Result<u64, Miss> {
    let chunk_bytes: Vec<u64> = alone.iter().map(|path| large_bytes(rig, path.bytes_per_ms)).collect();
    let slowest_ns = alone.iter().zip(&chunk_bytes).map(|(path, bytes)| path.ns(*bytes)).max().unwrap_or(0);
    // Where relays share a link, each takes as much longer as there are of them.
    let expected_ns = slowest_ns.saturating_mul((N_TIMED + 3) * lanes.len() as u64).min(STEADY_NS);
    // Rounds are compared by what a step of all lanes takes.
    let bytes: u64 = chunk_bytes.iter().sum();
    let round = || {
        Ok(PathRate { bytes_per_ms: steady(rig, lanes, direction, &chunk_bytes, until)?, start_ns: 0 }
            .ns(bytes))
    };
    Sample { bytes, ns: until.rounds(expected_ns, round)? }.bytes_per_ms().ok_or(Miss::Untimed)
}

/// What `bytes` in chunks over one lane take.
fn stream(
    rig: &Rig<'_>,
    lane: &mut Lane,
    direction: Direction,
    bytes: u64,
    chunk_bytes: u64,
) -> Result<u64, Miss> {
    let start_ns = rig.driver.now_ns();
    for nth in 0..bytes / chunk_bytes {
        if !lane.has_room() {
            wait(&**rig.driver, lane)?;
        }
        push(rig, lane, direction, rig.chunk(nth, chunk_bytes))?;
    }
    while !lane.is_idle() {
        wait(&**rig.driver, lane)?;
    }
    Ok(rig.driver.now_ns().saturating_sub(start_ns))
}

/// The chunks of one lane that were seen done.
#[derive(Clone, Copy, Debug, Default)]
struct Track {
    n: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Track {
    fn note(&mut self, now_ns: u64) {
        if self.n == 0 {
            self.first_ns = now_ns;
        }
        self.n += 1;
        self.last_ns = now_ns;
    }

    /// The rate from the end of the first chunk of `bytes` to that of the last one.
    fn bytes_per_ms(self, bytes: u64) -> Result<u64, Miss> {
        let n = self.n.checked_sub(1).filter(|n| *n > 0).ok_or(Miss::Budget)?;
        let sample = Sample { bytes: n * bytes, ns: self.last_ns.saturating_sub(self.first_ns) };
        sample.bytes_per_ms().ok_or(Miss::Untimed)
    }
}

/// What all lanes carry in sum while each of them has chunks enough, of a size for each lane.
fn steady(
    rig: &Rig<'_>,
    lanes: &mut [Lane],
    direction: Direction,
    chunk_bytes: &[u64],
    until: Deadline<'_>,
) -> Result<u64, Miss> {
    let driver = &**rig.driver;
    let end_ns = until.at_ns.min(driver.now_ns().saturating_add(STEADY_NS));
    let mut tracks = vec![Track::default(); lanes.len()];
    let (mut nth, mut stall) = (0, Stall::default());
    while driver.now_ns() < end_ns && tracks.iter().any(|track| track.n <= N_TIMED) {
        for (lane, bytes) in lanes.iter_mut().zip(chunk_bytes) {
            while lane.has_room() {
                push(rig, lane, direction, rig.chunk(nth, *bytes))?;
                nth += 1;
            }
        }
        let mut is_waiting = true;
        for (lane, track) in lanes.iter_mut().zip(&mut tracks) {
            if lane.settle()?.is_some() {
                track.note(driver.now_ns());
                is_waiting = false;
            }
        }
        if is_waiting {
            stall.pass(driver, lanes.iter().find_map(Lane::oldest))?;
        }
    }
    for lane in lanes {
        while !lane.is_idle() {
            wait(driver, lane)?;
        }
    }
    tracks.iter().zip(chunk_bytes).map(|(track, bytes)| track.bytes_per_ms(*bytes)).sum()
}

/// Looks at a clock that may stand still.
#[derive(Debug, Default)]
struct Stall {
    last_ns: u64,
    n: u32,
}

impl Stall {
    /// Lets time pass, or waits for `event` where none does.
    fn pass(&mut self, driver: &dyn Driver, event: Option<EventId>) -> Result<(), DriverError> {
        let now_ns = driver.now_ns();
        self.n = if now_ns == self.last_ns { self.n + 1 } else { 0 };
        self.last_ns = now_ns;
        match event {
            Some(event) if self.n >= N_STALLED => driver.synchronize(event),
            _ => {
                std::hint::spin_loop();
                Ok(())
            }
        }
    }
}
