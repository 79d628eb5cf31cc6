//! How the hook is set up.

use std::env;
use std::fmt;

use glake_core::units::DeviceId;
use glake_vmm::Mode;

use crate::multipath::Multipath;

/// How the hook is set up: the pool of each device, and what is kept beside it.
///
/// ```
/// use glake_hook::{Config, Mode};
/// let config = Config::new().limit_bytes(60 << 30).mode(Mode::Compact);
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The pool of each device, but for its limit.
    pub(crate) pool: glake_vmm::Config,
    pub(crate) limit_bytes: u64,
    pub(crate) has_worker: bool,
    pub(crate) pinned_bytes: u64,
    pub(crate) multipath: Multipath,
    pub(crate) has_multipath: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pool: glake_vmm::Config::new(DeviceId(0)),
            limit_bytes: u64::MAX,
            has_worker: false,
            pinned_bytes: 256 << 20,
            multipath: Multipath::new(),
            has_multipath: false,
        }
    }
}

/// An option, or its value, that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// There is no such option.
    #[error("no such option: there are {}", NAMES.join(", "))]
    Unknown,
    /// The value cannot be read.
    #[error("{name} takes {takes}")]
    BadValue {
        /// The option.
        name: &'static str,
        /// What it takes.
        takes: &'static str,
    },
    /// The option cannot be changed any more.
    #[error("{0} is decided when the hook is installed: set it in the `Config` or in the environment")]
    TooLate(&'static str),
    /// The pool refused.
    #[error("the option is set, but the pool of device {} could not give memory back", .0.0)]
    NotTrimmed(DeviceId),
}

// As text: a `main` that returns an error prints it by `Debug`, and what to do has to be read there.
impl fmt::Debug for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What takes a number of bytes.
const BYTES: &str = "bytes, such as 1073741824, 512MiB or 60GiB";

/// The options by the names that they have in the environment.
pub(crate) const NAMES: [&str; 10] = [
    "GLAKE_POOL_MODE",
    LIMIT,
    "GLAKE_POOL_STITCH_ABOVE",
    "GLAKE_POOL_HEADROOM",
    "GLAKE_POOL_LEAVE",
    "GLAKE_POOL_BACKGROUND",
    PINNED,
    MULTIPATH,
    "GLAKE_MULTIPATH_CHANNELS",
    "GLAKE_MULTIPATH_CHUNK",
];
pub(crate) const LIMIT: &str = "GLAKE_POOL_LIMIT";
pub(crate) const PINNED: &str = "GLAKE_PINNED_CACHE";
pub(crate) const MULTIPATH: &str = "GLAKE_MULTIPATH";

impl Config {
    /// A pool in default mode without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How the pools weigh waste against driver time. `GLAKE_POOL_MODE`: `default`, `compact` or `pinned`.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { pool: self.pool.mode(mode), ..self }
    }

    /// The most physical bytes that the pool of a device may hold. `GLAKE_POOL_LIMIT`.
    #[must_use]
    pub fn limit_bytes(self, bytes: u64) -> Self {
        Self { limit_bytes: bytes, ..self }
    }

    /// Below this many physical bytes a pool grows rather than stitch. `GLAKE_POOL_STITCH_ABOVE`.
    #[must_use]
    pub fn stitch_above_bytes(self, bytes: u64) -> Self {
        Self { pool: self.pool.stitch_above_bytes(bytes), ..self }
    }

    /// Gives each pool a thread that removes mappings that are no longer needed, and sees to
    /// `headroom_bytes` and `leave_bytes`. `GLAKE_POOL_BACKGROUND`: `on` or `off`.
    #[must_use]
    pub fn background(self) -> Self {
        Self { has_worker: true, ..self }
    }

    /// How many free bytes the thread keeps ready. `GLAKE_POOL_HEADROOM`.
    #[must_use]
    pub fn headroom_bytes(self, bytes: u64) -> Self {
        Self { pool: self.pool.headroom_bytes(bytes), has_worker: true, ..self }
    }

    /// How many free bytes the thread leaves to others on the device. `GLAKE_POOL_LEAVE`.
    #[must_use]
    pub fn leave_bytes(self, bytes: u64) -> Self {
        Self { pool: self.pool.leave_bytes(bytes), has_worker: true, ..self }
    }

    /// The most bytes of freed pinned host memory that are kept for later requests, 256 MiB by default.
    /// `GLAKE_PINNED_CACHE`.
    #[must_use]
    pub fn pinned_bytes(self, bytes: u64) -> Self {
        Self { pinned_bytes: bytes, ..self }
    }

    /// Moves large copies between the host and the pools' memory over several links, and stages memory that is not
    /// pinned by several threads; off if not set. Such a copy is done when the program's call returns. Everything
    /// else is the driver's as ever: small copies, other memory, streams that are captured, and asynchronous copies
    /// of pinned memory. `GLAKE_MULTIPATH`: `on` or `off`.
    #[must_use]
    pub fn multipath(self, multipath: Multipath) -> Self {
        Self { multipath, has_multipath: true, ..self }
    }

    /// The configuration that the environment's `GLAKE_*` variables describe.
    ///
    /// # Errors
    /// [`OptionError::BadValue`] for the first variable that makes no sense.
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub fn from_env() -> Result<Self, OptionError> {
        let mut config = Self::new();
        for name in NAMES {
            if let Some(value) = env::var_os(name) {
                config = config.with(name, &value.to_string_lossy())?;
            }
        }
        Ok(config)
    }

    /// The configuration with an option set by its name in the environment.
    ///
    /// # Errors
    /// [`OptionError::Unknown`], [`OptionError::BadValue`].
    pub fn with(self, name: &str, value: &str) -> Result<Self, OptionError> {
        let index = NAMES.iter().position(|known| *known == name).ok_or(OptionError::Unknown)?;
        let bytes = || bytes(value).ok_or(OptionError::BadValue { name: NAMES[index], takes: BYTES });
        let bad = |takes| OptionError::BadValue { name: NAMES[index], takes };
        Ok(match index {
            0 => self.mode(match value {
                "default" => Mode::Default,
                "compact" => Mode::Compact,
                "pinned" => Mode::Pinned,
                _ => return Err(bad("default, compact or pinned")),
            }),
            1 => self.limit_bytes(bytes()?),
            2 => self.stitch_above_bytes(bytes()?),
            3 => self.headroom_bytes(bytes()?),
            4 => self.leave_bytes(bytes()?),
            5 => Self { has_worker: switch(value).ok_or(bad(SWITCH))?, ..self },
            6 => self.pinned_bytes(bytes()?),
            7 => Self { has_multipath: switch(value).ok_or(bad(SWITCH))?, ..self },
            8 => {
                let n_links = if value == "direct" { Some(1) } else { value.parse().ok() };
                let n_links =
                    n_links.filter(|n| *n > 0).ok_or(bad("direct, or a number of links from 1 on"))?;
                Self { multipath: self.multipath.n_links(n_links), ..self }
            }
            _ => Self { multipath: self.multipath.chunk_bytes(bytes()?), ..self },
        })
    }
}

/// What switches something.
const SWITCH: &str = "on or off";

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "1" => Some(true),
        "off" | "0" => Some(false),
        _ => None,
    }
}

/// A number of bytes, with a unit of 1024 or none.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim_start() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_by_name() {
        let config = Config::new().with("GLAKE_POOL_LIMIT", "3GiB").unwrap();
        let config =
            config.with("GLAKE_POOL_MODE", "compact").unwrap().with("GLAKE_POOL_LEAVE", "1 MiB").unwrap();
        assert_eq!(config, Config::new().limit_bytes(3 << 30).mode(Mode::Compact).leave_bytes(1 << 20));
        let config = Config::new().with("GLAKE_POOL_BACKGROUND", "on").unwrap().with(PINNED, "0").unwrap();
        assert_eq!(config, Config::new().background().pinned_bytes(0));
    }

    #[test]
    fn copies_are_the_drivers_until_they_are_switched_on() {
        let set = |config: Config, name: &str, value: &str| config.with(name, value).unwrap();
        let config = set(Config::new(), "GLAKE_MULTIPATH_CHANNELS", "3");
        let config = set(config, "GLAKE_MULTIPATH_CHUNK", "1MiB");
        assert!(!config.has_multipath && !Config::new().has_multipath);
        let multipath = Multipath::new().n_links(3).chunk_bytes(1 << 20);
        let config = set(config, MULTIPATH, "on");
        assert_eq!(config, Config::new().multipath(multipath));
        assert!(!set(config.clone(), MULTIPATH, "off").has_multipath);
        let config = set(config, "GLAKE_MULTIPATH_CHANNELS", "direct");
        assert_eq!(config, Config::new().multipath(multipath.n_links(1)));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_advice() {
        assert_eq!(Config::new().with("GLAKE_POOL_LIMITS", "1"), Err(OptionError::Unknown));
        for value in ["", "GiB", "-1", "1.5GiB", "1GB", "99999999999TiB", "١"] {
            let error = Config::new().with(LIMIT, value).unwrap_err();
            for text in [error.to_string(), format!("{error:?}")] {
                assert!(text.starts_with("GLAKE_POOL_LIMIT takes bytes"), "{value}: {text}");
            }
        }
        assert!(Config::new().with("GLAKE_POOL_MODE", "fast").is_err());
        for (name, value) in [("GLAKE_MULTIPATH", "yes"), ("GLAKE_MULTIPATH_CHANNELS", "0")] {
            let error = Config::new().with(name, value).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{name} takes ")), "{error}");
        }
    }
}
