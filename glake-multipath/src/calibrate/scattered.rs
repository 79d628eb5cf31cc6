//! Ranges that lie apart on the device, measured two ways.

use glake_core::driver::Piece;

use super::Scattered;
use super::budget::{Deadline, Miss};
use super::fit::{PathRate, Sample};
use super::rig::{Rig, push, wait};
use crate::chunk::{Chunk, Segment};
use crate::lane::{Direction, Path};

/// The length of scattered ranges.
const RANGE_BYTES: u64 = 16 << 10;
/// How many of them there are at most.
const MAX_RANGES: u64 = 512;

/// Short ranges that lie apart on the device: a copy for each, and all at once through a staging area.
pub(super) fn scattered(
    rig: &mut Rig<'_>,
    direction: Direction,
    direct: PathRate,
    until: Deadline<'_>,
) -> Result<Scattered, Miss> {
    // A quarter of the memory is the staging area, a third of the rest is ranges.
    let n = (rig.scale.memory_bytes / (4 * RANGE_BYTES)).min(MAX_RANGES);
    let bytes = n * RANGE_BYTES;
    let loop_ns = rig.with_lanes(&[Path::Direct], |rig, lanes| {
        let place = |nth| rig.memory() + bytes + nth * 3 * RANGE_BYTES;
        let piece = |nth| Segment { host_offset: nth * RANGE_BYTES, device: place(nth), bytes: RANGE_BYTES };
        let chunk = Chunk { pieces: (0..n).map(piece).collect(), bytes };
        let expected_ns = 2 * direct.ns(RANGE_BYTES).saturating_mul(n);
        until.rounds(expected_ns, || {
            let start_ns = rig.driver.now_ns();
            push(rig, &mut lanes[0], direction, chunk.clone())?;
            wait(&**rig.driver, &mut lanes[0])?;
            Ok(rig.driver.now_ns().saturating_sub(start_ns))
        })
    })?;
    let gathered_ns = gathered(rig, direction, n, 2 * direct.ns(bytes), until)?;
    let rate = |ns| Sample { bytes, ns }.bytes_per_ms().ok_or(Miss::Untimed);
    let (loop_bytes_per_ms, gathered_bytes_per_ms) = (rate(loop_ns)?, rate(gathered_ns)?);
    Ok(Scattered { range_bytes: RANGE_BYTES, loop_bytes_per_ms, gathered_bytes_per_ms })
}

/// What `n` ranges take through a staging area.
fn gathered(
    rig: &mut Rig<'_>,
    direction: Direction,
    n: u64,
    expected_ns: u64,
    until: Deadline<'_>,
) -> Result<u64, Miss> {
    let driver = &**rig.driver;
    let (staging, bytes) = (rig.memory(), n * RANGE_BYTES);
    let piece = |nth| {
        let (staged, place) = (staging + nth * RANGE_BYTES, staging + bytes + nth * 3 * RANGE_BYTES);
        let (dst, src) = match direction {
            Direction::ToDevice => (place, staged),
            Direction::ToHost => (staged, place),
        };
        Piece { dst, src, bytes: RANGE_BYTES }
    };
    let pieces: Vec<Piece> = (0..n).map(piece).collect();
    let stream = driver.create_stream(rig.device)?;
    let once = || -> Result<u64, Miss> {
        let start_ns = driver.now_ns();
        match direction {
            Direction::ToDevice => {
                driver.write_from(staging, rig.host, 0..bytes, stream)?;
                driver.gather(&pieces, stream)?;
            }
            Direction::ToHost => {
                driver.gather(&pieces, stream)?;
                driver.read_into(staging, rig.host, 0..bytes, stream)?;
            }
        }
        let event = driver.record(stream)?;
        let done = driver.synchronize(event);
        driver.forget(event);
        done?;
        Ok(driver.now_ns().saturating_sub(start_ns))
    };
    // The first gather of all may load the kernel.
    let measured =
        until.admit(expected_ns).and_then(|()| once()).and_then(|_| until.rounds(expected_ns, once));
    if measured.is_err() {
        rig.settle();
    }
    let _ = rig.driver.destroy_stream(stream);
    measured
}
