//! Whose pool the program's memory is in, and how much of it there was.

use std::error::Error;
use std::fmt;

use candle_core::Device;
use glake_candle::{Config, Glake, Recording, Workspace};
use serde::Serialize;

use crate::args::{Common, Switch};
use crate::driver::{Driver, DriverError};

/// How much memory there was at most, and what became of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// In use, rounding included.
    peak_allocated_bytes: u64,
    /// Held by the pool.
    peak_reserved_bytes: u64,
    /// Of the device, by the driver's own word after each step, above what candle took to warm up.
    peak_device_bytes: u64,
    /// What only glake counts.
    #[serde(flatten)]
    glake: Option<OfGlake>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct OfGlake {
    /// In use, as asked for.
    peak_requested_bytes: u64,
    n_allocations: u64,
    /// Allocations that needed a driver call.
    n_misses: u64,
    n_stitches: u64,
    /// In use when all tensors are dropped.
    live_bytes: u64,
    /// What went to the driver's own allocator.
    n_passed_on: usize,
    passed_on_bytes: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(glake) = &self.glake {
            writeln!(f, "peak requested   {}", Mib(glake.peak_requested_bytes))?;
        }
        writeln!(f, "peak allocated   {}", Mib(self.peak_allocated_bytes))?;
        writeln!(f, "peak reserved    {}", Mib(self.peak_reserved_bytes))?;
        write!(f, "peak of device   {}", Mib(self.peak_device_bytes))?;
        if let Some(glake) = &self.glake {
            writeln!(f)?;
            let OfGlake { n_allocations, n_misses, n_stitches, .. } = glake;
            writeln!(
                f,
                "allocations      {n_allocations}, {n_misses} with a driver call, {n_stitches} stitched"
            )?;
            writeln!(f, "left at the end  {}", Mib(glake.live_bytes))?;
            write!(f, "to the driver    {} allocations, {}", glake.n_passed_on, Mib(glake.passed_on_bytes))?;
        }
        Ok(())
    }
}

struct Mib(u64);

impl fmt::Display for Mib {
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / f64::from(1 << 20))
    }
}

/// On the CPU there is nothing to watch.
#[derive(Debug)]
pub(crate) struct Memory(Option<Watch>);

#[derive(Debug)]
struct Watch {
    ordinal: usize,
    driver: Driver,
    pool: Pool,
    workspace: Switch,
    free_when_warm: u64,
    least_free: u64,
}

#[derive(Debug)]
enum Pool {
    /// The device's default pool, which keeps all memory that it once had.
    OfDevice,
    Glake {
        glake: Glake,
        workspace: Option<Workspace>,
        recording: Option<Recording>,
    },
}

impl Memory {
    /// Before the device is made: installs glake.
    pub(crate) fn prepare(common: &Common) -> Result<Self, Box<dyn Error>> {
        let pool = match common.glake {
            Switch::Off => Pool::OfDevice,
            Switch::On => {
                let glake = glake_candle::install(Config::from_env()?)?;
                Pool::Glake { glake, workspace: None, recording: None }
            }
        };
        let Some(ordinal) = common.device.ordinal() else { return Ok(Self(None)) };
        let workspace = common.workspace;
        let driver = Driver::open()?;
        Ok(Self(Some(Watch { ordinal, driver, pool, workspace, free_when_warm: 0, least_free: 0 })))
    }

    /// Once the device is made, before anything is computed on it.
    pub(crate) fn attach(&mut self, device: &Device) -> Result<(), Box<dyn Error>> {
        let Some(watch) = &mut self.0 else { return Ok(()) };
        match &mut watch.pool {
            Pool::OfDevice => watch.driver.never_release(watch.ordinal)?,
            Pool::Glake { glake, workspace, .. } => {
                glake.self_test(device)?;
                if watch.workspace == Switch::On {
                    *workspace = Some(glake.cublas_workspace(device)?);
                }
            }
        }
        Ok(())
    }

    /// Once everything that candle and its libraries take for themselves is taken.
    pub(crate) fn warm(&mut self, common: &Common, device: &Device) -> Result<(), Box<dyn Error>> {
        let Some(watch) = &mut self.0 else { return Ok(()) };
        if let Some(cap) = common.cap_bytes {
            watch.driver.occupy(watch.driver.free_bytes()?.saturating_sub(cap))?;
        }
        if let (Pool::Glake { glake, recording, .. }, Some(path)) = (&mut watch.pool, &common.record) {
            *recording = Some(glake.record(device, path)?);
        }
        watch.free_when_warm = watch.driver.free_bytes()?;
        watch.least_free = watch.free_when_warm;
        Ok(())
    }

    /// After each step.
    pub(crate) fn sample(&mut self) -> Result<(), DriverError> {
        let Some(watch) = &mut self.0 else { return Ok(()) };
        watch.least_free = watch.least_free.min(watch.driver.free_bytes()?);
        Ok(())
    }

    /// When the work is done and its tensors are dropped.
    pub(crate) fn finish(self, device: &Device) -> Result<Option<Figures>, Box<dyn Error>> {
        let Some(Watch { ordinal, driver, pool, free_when_warm, least_free, .. }) = self.0 else {
            return Ok(None);
        };
        let peak_device_bytes = free_when_warm.saturating_sub(least_free);
        let (glake, recording) = match pool {
            Pool::OfDevice => {
                return Ok(Some(Figures {
                    peak_allocated_bytes: driver.used_peak_bytes(ordinal)?,
                    peak_reserved_bytes: driver.reserved_peak_bytes(ordinal)?,
                    peak_device_bytes,
                    glake: None,
                }));
            }
            Pool::Glake { glake, workspace: _ends_here, recording } => (glake, recording),
        };
        recording.map_or(Ok(()), Recording::finish)?;
        device.synchronize()?;
        let (stats, passed_on) = (glake.memory_stats(device)?, glake.passed_on());
        Ok(Some(Figures {
            peak_allocated_bytes: stats.peak_allocated_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            peak_device_bytes,
            glake: Some(OfGlake {
                peak_requested_bytes: stats.peak_requested_bytes,
                n_allocations: stats.n_allocations,
                n_misses: stats.n_misses,
                n_stitches: stats.n_stitches,
                live_bytes: stats.requested_bytes,
                n_passed_on: passed_on.n_allocations,
                passed_on_bytes: passed_on.bytes,
            }),
        }))
    }
}
