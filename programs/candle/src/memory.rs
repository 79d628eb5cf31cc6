//! Whose pool the program's memory is in, and how much of it there was.

use std::error::Error;
use std::fmt;

use candle_core::Device;
use serde::Serialize;

use crate::args::{Common, Switch};
use crate::driver::{Driver, DriverError};

/// The most bytes that there were at once.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    /// As asked for; the driver's own pool does not count it.
    requested_bytes: Option<u64>,
    /// In use, rounding included.
    allocated_bytes: u64,
    /// Held by the pool.
    reserved_bytes: u64,
    /// Of the device, by the driver's own word after each step, above what candle took to warm up.
    device_bytes: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(requested) = self.requested_bytes {
            writeln!(f, "peak requested   {}", Mib(requested))?;
        }
        writeln!(f, "peak allocated   {}", Mib(self.allocated_bytes))?;
        writeln!(f, "peak reserved    {}", Mib(self.reserved_bytes))?;
        write!(f, "peak of device   {}", Mib(self.device_bytes))
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
    free_when_warm: u64,
    least_free: u64,
}

impl Memory {
    /// Before the device is made.
    pub(crate) fn prepare(common: &Common) -> Result<Self, Box<dyn Error>> {
        if common.glake == Switch::On {
            return Err("glake is not there yet".into());
        }
        let Some(ordinal) = common.device.ordinal() else { return Ok(Self(None)) };
        Ok(Self(Some(Watch { ordinal, driver: Driver::open()?, free_when_warm: 0, least_free: 0 })))
    }

    /// Once the device is made, before anything is computed on it.
    pub(crate) fn attach(&mut self, _: &Device) -> Result<(), DriverError> {
        self.0.as_ref().map_or(Ok(()), |watch| watch.driver.never_release(watch.ordinal))
    }

    /// Once everything that candle and its libraries take for themselves is taken.
    pub(crate) fn warm(&mut self, cap_bytes: Option<u64>) -> Result<(), DriverError> {
        let Some(watch) = &mut self.0 else { return Ok(()) };
        if let Some(cap) = cap_bytes {
            watch.driver.occupy(watch.driver.free_bytes()?.saturating_sub(cap))?;
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

    /// When the work is done.
    pub(crate) fn finish(self, _: &Device) -> Result<Option<Figures>, DriverError> {
        let Some(watch) = self.0 else { return Ok(None) };
        Ok(Some(Figures {
            requested_bytes: None,
            allocated_bytes: watch.driver.used_peak_bytes(watch.ordinal)?,
            reserved_bytes: watch.driver.reserved_peak_bytes(watch.ordinal)?,
            device_bytes: watch.free_when_warm - watch.least_free,
        }))
    }
}
