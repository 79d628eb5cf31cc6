//! Copies on the device: by copy engine, by kernel, and as the driver chooses, over one large
//! mapping and over many small ones.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;
use glake_core::alloc::{Allocator, Request};
use glake_core::driver::{Access, Copies, DeviceOps, DriverError, VirtualMemory};
use glake_core::units::{AddressRange, DevicePtr, HandleId, PAGE_BYTES};
use glake_cuda::Foreign;
use glake_testkit::rng::Rng;
use glake_vmm::{Config, Mode, StitchPool};

use crate::{DEVICE, Machine, bar, median, raw};

/// Bytes of each side.
const SIDE_BYTES: u64 = 4 << 30;
const SIZES: [u64; 7] = [4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30, 2 << 30, 4 << 30];
/// The size from which on the bar holds.
const BAR_FROM_BYTES: u64 = 256 << 20;
/// Bytes that one figure moves.
const FIGURE_BYTES: u64 = 4 << 30;
const ROUNDS: usize = 7;

/// How to copy.
#[derive(Clone, Copy)]
enum Way {
    Engine,
    Kernel,
    Chosen,
}

/// Two ranges of one make.
#[derive(Clone, Copy)]
struct Sides {
    src: DevicePtr,
    dst: DevicePtr,
}

/// Enqueues a copy of `bytes` at `offset` of both sides.
fn enqueue(machine: &Machine, sides: Sides, offset: u64, bytes: u64, way: Way) -> Result<(), Box<dyn Error>> {
    let (dst, src) = (sides.dst + offset, sides.src + offset);
    match way {
        // SAFETY: both sides are mapped until all work is done.
        Way::Engine => unsafe { raw::copy(machine, dst, src, usize::try_from(bytes)?) },
        Way::Kernel => Ok(machine.driver.copy_by_kernel(dst, src, bytes, machine.id)?),
        Way::Chosen => Ok(machine.driver.copy(dst, src, bytes, machine.id)?),
    }
}

/// The rate of copies of `bytes` one behind the other, each elsewhere in the sides, in GB/s read
/// and written, and the host time of one in microseconds.
fn rate(
    machine: &Machine,
    sides: Sides,
    bytes: u64,
    way: Way,
    ends: &[CudaEvent; 2],
) -> Result<(f64, f64), Box<dyn Error>> {
    let n = (FIGURE_BYTES / bytes).clamp(4, 400);
    let places = SIDE_BYTES / bytes;
    ends[0].record(&machine.stream)?;
    let start = Instant::now();
    for i in 0..n {
        enqueue(machine, sides, i % places * bytes, bytes, way)?;
    }
    let host_us = start.elapsed().as_micros() as f64 / n as f64;
    ends[1].record(&machine.stream)?;
    let ms = f64::from(ends[0].elapsed_ms(&ends[1])?);
    Ok(((2 * n * bytes) as f64 / ms / 1e6, host_us))
}

/// The medians of alternating rounds: the rate of each way, and the host time of the chosen one.
fn rates(machine: &Machine, sides: Sides, bytes: u64) -> Result<([f64; 3], f64), Box<dyn Error>> {
    let event = || machine.context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let ends = [event()?, event()?];
    let (mut figures, mut host) = ([Vec::new(), Vec::new(), Vec::new()], Vec::new());
    for round in 0..=ROUNDS {
        for (figures, way) in figures.iter_mut().zip([Way::Engine, Way::Kernel, Way::Chosen]) {
            let (gb_per_s, host_us) = rate(machine, sides, bytes, way, &ends)?;
            if round > 0 {
                figures.push(gb_per_s);
                if let Way::Chosen = way {
                    host.push(host_us);
                }
            }
        }
    }
    Ok((figures.map(median), median(host)))
}

/// A side of shuffled handles of one size.
struct Handles {
    range: AddressRange,
    handles: Vec<HandleId>,
}

impl Handles {
    fn new(machine: &Machine, handle_bytes: u64, rng: &mut Rng) -> Result<Self, DriverError> {
        let driver = &machine.driver;
        let range = driver.reserve(SIDE_BYTES, PAGE_BYTES)?;
        let n = SIDE_BYTES / handle_bytes;
        let mut handles =
            (0..n).map(|_| driver.create(DEVICE, handle_bytes)).collect::<Result<Vec<_>, _>>()?;
        for i in (1..handles.len()).rev() {
            handles.swap(i, usize::try_from(rng.below(i as u64 + 1)).unwrap_or(0));
        }
        for (at, &handle) in (0..).zip(&handles) {
            driver.map(range.start + at * handle_bytes, handle)?;
        }
        driver.set_access(range, &[DEVICE], Access::ReadWrite)?;
        Ok(Self { range, handles })
    }

    fn end(self, machine: &Machine) -> Result<(), DriverError> {
        machine.driver.unmap(self.range)?;
        self.handles.into_iter().try_for_each(|handle| machine.driver.release(handle))?;
        machine.driver.unreserve(self.range)
    }
}

/// What the plain block reaches by the engine, size by size.
type Plain = [f64; SIZES.len()];

/// Prints the rows of one make; returns the engine's rates, and the least share of `plain` that the
/// chosen way reaches for large copies.
fn rows(
    machine: &Machine,
    make: &str,
    sides: Sides,
    plain: Option<&Plain>,
) -> Result<(Plain, f64), Box<dyn Error>> {
    let mut engines = Plain::default();
    let mut least = f64::INFINITY;
    for (i, bytes) in SIZES.into_iter().enumerate() {
        let ([engine, kernel, chosen], host_us) = rates(machine, sides, bytes)?;
        engines[i] = engine;
        let share = chosen / plain.map_or(engine, |plain| plain[i]);
        if bytes >= BAR_FROM_BYTES {
            least = least.min(share);
        }
        println!(
            "  {make:<14} {:>5} MiB {engine:>7.0} {kernel:>7.0} {chosen:>7.0} {:>6.1} % {host_us:>7.1} us",
            bytes >> 20,
            100.0 * share
        );
    }
    Ok((engines, least))
}

/// Prints a table of copies.
pub(crate) fn compare(machine: &Machine) -> Result<(), Box<dyn Error>> {
    println!("copies, GB/s read + written    engine  kernel  chosen  of plain     host");
    let plain = [raw::allocate(usize::try_from(SIDE_BYTES)?)?, raw::allocate(usize::try_from(SIDE_BYTES)?)?];
    for start in plain {
        let range = AddressRange::new(start, SIDE_BYTES);
        let memory = Foreign::Memory { range, device: DEVICE, access: Access::ReadWrite };
        // SAFETY: the memory lives until it is disowned below, and is used here alone.
        unsafe { machine.driver.adopt(memory) }?;
    }
    let (engines, _) = rows(machine, "plain", Sides { src: plain[0], dst: plain[1] }, None)?;
    machine.stream.synchronize()?;
    for start in plain {
        machine.driver.disown_memory(start)?;
        raw::free(start)?;
    }
    let mut rng = Rng::new(5);
    for mib in [32, 16, 8, 4, 2] {
        let src = Handles::new(machine, mib << 20, &mut rng)?;
        let dst = Handles::new(machine, mib << 20, &mut rng)?;
        let sides = Sides { src: src.range.start, dst: dst.range.start };
        let (_, least) = rows(machine, &format!("{mib} MiB handles"), sides, Some(&engines))?;
        machine.stream.synchronize()?;
        src.end(machine)?;
        dst.end(machine)?;
        bar(&format!("copies over handles of {mib} MiB, share of plain"), least, 0.9);
    }
    for (name, mode) in [("default pool", Mode::Default), ("compact pool", Mode::Compact)] {
        let config = Config::new(DEVICE).mode(mode);
        let mut pool = StitchPool::new(Arc::new(machine.driver.clone()), config)?;
        let src = pool.allocate(Request::new(SIDE_BYTES, machine.id))?.ptr;
        let dst = pool.allocate(Request::new(SIDE_BYTES, machine.id))?.ptr;
        let (_, least) = rows(machine, name, Sides { src, dst }, Some(&engines))?;
        pool.close()?;
        bar(&format!("copies inside the {name}, share of plain"), least, 0.9);
    }
    Ok(())
}
