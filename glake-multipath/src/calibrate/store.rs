//! Calibrations in files: one for each machine in a folder.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use glake_core::driver::Driver;
use serde::Deserialize;

use super::{CalibrateError, Calibration, StoreError};
use crate::topology::{Topology, TopologyKey};

/// The longest file that is read.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The sizes of chunks that are believed.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// Tells files apart that one process writes at a time.
static N_FILES: AtomicU64 = AtomicU64::new(0);

/// The folder for calibrations of this user, `glake` in the folder for caches, given the values of `XDG_CACHE_HOME` and
/// `HOME`. As the XDG base directory specification says, what is no absolute path does not count.
///
/// ```
/// use std::path::Path;
/// use glake_multipath::calibrate::default_folder;
///
/// let folder = default_folder(None, Some("/home/me".as_ref()));
/// assert_eq!(folder.as_deref(), Some(Path::new("/home/me/.cache/glake")));
/// ```
#[must_use]
pub fn default_folder(xdg_cache_home: Option<&OsStr>, home: Option<&OsStr>) -> Option<PathBuf> {
    let absolute = |path: &OsStr| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let caches = xdg_cache_home.and_then(absolute);
    let caches = caches.or_else(|| home.and_then(absolute).map(|home| home.join(".cache")));
    caches.map(|caches| caches.join("glake"))
}

/// What every version has.
#[derive(Deserialize)]
struct Head {
    version: u32,
}

impl Calibration {
    /// The name of a machine's file.
    #[must_use]
    pub fn file_name(key: &TopologyKey) -> String {
        format!("calibration-{key}.json")
    }

    /// Reads the calibration of the machine `key`.
    ///
    /// # Errors
    /// [`StoreError`]; where the file does not exist, it is `Io` of [`io::ErrorKind::NotFound`].
    pub fn load(path: &Path, key: &TopologyKey) -> Result<Self, StoreError> {
        let malformed = |source| StoreError::Malformed { path: path.into(), source };
        let text = read(path).map_err(|source| StoreError::Io { path: path.into(), source })?;
        let form = |error| malformed(Some(Box::new(error)));
        let head: Head = serde_json::from_slice(&text).map_err(form)?;
        if head.version != Self::VERSION {
            return Err(StoreError::Version(head.version));
        }
        let found: Self = serde_json::from_slice(&text).map_err(form)?;
        if found.topology != *key {
            return Err(StoreError::Foreign(Box::new(found.topology)));
        }
        if found.is_plausible() { Ok(found) } else { Err(malformed(None)) }
    }

    /// Writes it, in place of what is there: the file has the old text or the new one, never a part. Makes the
    /// folders that it lies in.
    ///
    /// # Errors
    /// `Io`; the file is as before.
    pub fn store(&self, path: &Path) -> Result<(), StoreError> {
        let io = |source| StoreError::Io { path: path.into(), source };
        let text = serde_json::to_vec_pretty(self).map_err(|error| io(error.into()))?;
        write(path, &text).map_err(io)
    }

    /// The calibration of this machine from `folder`, or measured now and put there. A file that cannot be
    /// used is replaced; a folder that cannot be used does no harm. What failed in part is not kept,
    /// so that it is measured again the next time.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn load_or_measure(
        folder: &Path,
        driver: &Arc<dyn Driver>,
        topology: &Topology,
        budget_ns: u64,
    ) -> Result<Self, CalibrateError> {
        let key = topology.key();
        let path = folder.join(Self::file_name(&key));
        match Self::load(&path, &key) {
            Ok(found) => return Ok(found),
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "a calibration could not be used and is measured again"),
        }
        let measured = Self::measure(driver, topology, budget_ns)?;
        if !measured.has_failures()
            && !measured.links.is_empty()
            && let Err(error) = measured.store(&path)
        {
            tracing::warn!(%error, "the calibration could not be kept");
        }
        Ok(measured)
    }

    /// Whether every value may have been measured.
    fn is_plausible(&self) -> bool {
        let links = self.links.iter().all(|link| {
            let paths = link.relays.iter().map(|relay| relay.path).chain([link.direct]);
            paths.into_iter().all(|path| path.bytes_per_ms > 0)
                && link.together_bytes_per_ms != Some(0)
                && link.chunk_bytes.is_none_or(|bytes| CHUNK_BYTES.contains(&bytes))
        });
        links && self.memcpy.iter().all(|rate| rate.bytes_per_ms > 0 && rate.n_threads > 0)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Writes a file beside `path` and moves it there.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut temporary = name.to_os_string();
    temporary.push(format!(".{}.{}.tmp", std::process::id(), N_FILES.fetch_add(1, Ordering::Relaxed)));
    let temporary = folder.join(temporary);
    // One that is there was left by a process that had this number and ended.
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
    let written = file.write_all(text).and_then(|()| file.sync_all());
    let moved = written.and_then(|()| fs::rename(&temporary, path));
    if moved.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    moved
}
