//! What a load is about, for people and programs.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use glake_multipath::Path;
use glake_multipath::checkpoint::{Checkpoint, Loaded};

/// The figures of a load.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figures {
    /// The device.
    pub device: String,
    /// Shards with a tensor.
    pub shards: usize,
    /// Tensors.
    pub tensors: usize,
    /// Allocations.
    pub extents: usize,
    /// Their bytes, tensors and what lies between them.
    pub extent_bytes: u64,
    /// Bytes of tensors.
    pub bytes: u64,
    /// How long the transfers took, by the driver's clock.
    pub seconds: f64,
    /// 10^9 bytes per second.
    pub gb_per_s: f64,
    /// Bytes by path.
    pub bytes_by_path: BTreeMap<String, u64>,
    /// Bytes that were compared with the files.
    pub verified_bytes: Option<u64>,
}

impl Figures {
    /// Those of `loaded`.
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub fn new(device: &str, checkpoint: &Checkpoint, loaded: &Loaded) -> Self {
        let mut bytes_by_path = BTreeMap::new();
        for lane in loaded.reports().iter().flat_map(|report| &report.lanes) {
            let path = match lane.path {
                Path::Direct => "direct".to_owned(),
                Path::Host => "host".to_owned(),
                Path::Via(relay) => format!("via {}", relay.0),
            };
            *bytes_by_path.entry(path).or_default() += lane.bytes;
        }
        let seconds = loaded.ns() as f64 / 1e9;
        Self {
            device: device.to_owned(),
            shards: loaded.reports().len(),
            tensors: checkpoint.tensors().len(),
            extents: loaded.extents().len(),
            extent_bytes: loaded.extents().iter().map(|extent| extent.bytes).sum(),
            bytes: loaded.bytes(),
            seconds,
            gb_per_s: if seconds > 0.0 { loaded.bytes() as f64 / 1e9 / seconds } else { 0.0 },
            bytes_by_path,
            verified_bytes: None,
        }
    }
}

impl Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: &dyn Display| writeln!(f, "  {name:<10} {value}");
        row("device", &self.device)?;
        row("tensors", &format_args!("{} in {} files", self.tensors, self.shards))?;
        row("memory", &format_args!("{} bytes in {} allocations", self.extent_bytes, self.extents))?;
        row("loaded", &format_args!("{} bytes in {:.6} s", self.bytes, self.seconds))?;
        row("rate", &format_args!("{:.2} GB/s", self.gb_per_s))?;
        if self.device == "sim" {
            row("clock", &"simulated: reading files takes no time")?;
        }
        for (path, bytes) in &self.bytes_by_path {
            row(path, &format_args!("{bytes} bytes"))?;
        }
        match self.verified_bytes {
            Some(bytes) => row("verified", &format_args!("{bytes} bytes")),
            None => Ok(()),
        }
    }
}
