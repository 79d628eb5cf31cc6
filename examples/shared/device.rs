//! On what an example runs, as the command line says it.
#![allow(unreachable_pub, reason = "examples take this file in as a module of their own")]

use std::fmt;
use std::str::FromStr;

/// What an example runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The simulated driver.
    Sim,
    /// A GPU, by its ordinal.
    Cuda(u32),
}

impl FromStr for Device {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("cuda") {
            None if text == "sim" => Ok(Self::Sim),
            Some("") => Ok(Self::Cuda(0)),
            Some(ordinal) => ordinal
                .strip_prefix(':')
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Self::Cuda)
                .ok_or("a GPU is `cuda:N`"),
            None => Err("neither `sim` nor `cuda:N`"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sim => f.write_str("sim"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}
