//! Reads what Linux says of devices and nodes.
//!
//! The link `bus/pci/devices/ADDRESS` leads to a folder inside the folders of all bridges above the device
//! (`devices/pci0000:60/0000:60:01.0/0000:61:00.0/...`); files beside it say the rest.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use glake_core::driver::{Driver, PciAddress};

use super::{CpuSet, LinkRate, Node, NodeId, PciModel, Place, Topology, TopologyError};

/// Where Linux mounts the sysfs.
pub const SYSFS: &str = "/sys";

/// Longer than any file that is read here.
const MOST_BYTES: u64 = 64 << 10;

impl Topology {
    /// What the driver knows, and what the sysfs at `sysfs_root` ([`SYSFS`], but for tests) adds to it.
    ///
    /// # Errors
    /// [`TopologyError::Driver`] where the driver fails; [`TopologyError::Malformed`] where a file holds what Linux
    /// does not write there; [`TopologyError::Unreadable`] where one could not be read though it is there. What is
    /// missing, hidden, or not told by Linux is unknown instead.
    pub fn read(driver: &dyn Driver, sysfs_root: &Path) -> Result<Self, TopologyError> {
        let mut places = Self::of(driver)?.places;
        for place in &mut places {
            look_at(place, &sysfs_root.join("bus/pci/devices"))?;
        }
        let system = sysfs_root.join("devices/system");
        let nodes = nodes(&system.join("node"))?;
        let online: Option<CpuSet> = parsed(system.join("cpu/online"))?;
        let of_nodes = || nodes.iter().map(|node| node.cpus.len()).sum();
        let n_cpus = online.map(|cpus| cpus.len()).or_else(|| (!nodes.is_empty()).then(of_nodes));
        Ok(Self::new(places, nodes, n_cpus))
    }
}

/// Adds to `place` what the folder of its device says.
fn look_at(place: &mut Place, devices: &Path) -> Result<(), TopologyError> {
    let Some(address) = place.pci else { return Ok(()) };
    let folder = devices.join(address.to_string());
    let (vendor, device) = (parsed(folder.join("vendor"))?, parsed(folder.join("device"))?);
    place.model = vendor.zip(device).map(|(Hex(vendor), Hex(device))| PciModel { vendor, device });
    place.node = parsed(folder.join("numa_node"))?.and_then(|NumaNode(node)| node);
    place.max_link = link(&folder, "max")?;
    place.current_link = link(&folder, "current")?;
    place.bridges = told(&folder, fs::canonicalize(&folder))?.map(|real| bridges_above(&real));
    Ok(())
}

/// The bridges among the folders that a device's real folder lies in, the outermost first.
fn bridges_above(folder: &Path) -> Vec<PciAddress> {
    let address = |folder: &Path| folder.file_name()?.to_str()?.parse().ok();
    let mut bridges: Vec<_> = folder.ancestors().skip(1).map_while(address).collect();
    bridges.reverse();
    bridges
}

fn link(folder: &Path, which: &str) -> Result<Option<LinkRate>, TopologyError> {
    let speed = text(&folder.join(format!("{which}_link_speed")))?;
    let width = text(&folder.join(format!("{which}_link_width")))?;
    Ok(speed.zip(width).and_then(|(speed, width)| LinkRate::from_words(&speed, &width)))
}

/// The nodes whose CPUs are told. Other entries of the folder are passed over.
fn nodes(folder: &Path) -> Result<Vec<Node>, TopologyError> {
    let Some(entries) = told(folder, fs::read_dir(folder))? else { return Ok(Vec::new()) };
    let mut nodes = Vec::new();
    for entry in entries {
        let Some(entry) = told(folder, entry)? else { continue };
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let Some(number) = number else { continue };
        if let Some(cpus) = parsed(entry.path().join("cpulist"))? {
            nodes.push(Node { id: NodeId(number), cpus });
        }
    }
    Ok(nodes)
}

/// What a file says; `None` if it is not told.
fn parsed<T: FromStr>(path: PathBuf) -> Result<Option<T>, TopologyError> {
    let Some(text) = text(&path)? else { return Ok(None) };
    text.parse().map(Some).map_err(|_| TopologyError::Malformed(path.into()))
}

/// The text of a file without its end of line; `None` if it is not told.
fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    let Some(n_bytes) = told(path, read)? else { return Ok(None) };
    if n_bytes as u64 == MOST_BYTES {
        return Err(TopologyError::Malformed(path.into()));
    }
    Ok(Some(text.trim_end().to_owned()))
}

/// `None` for what is missing or hidden, and for attributes that Linux has no answer for.
fn told<T>(path: &Path, result: io::Result<T>) -> Result<Option<T>, TopologyError> {
    /// The device is gone, or has no such thing as a link: `EIO`, `ENXIO`, `ENODEV`, `EINVAL`, `EOPNOTSUPP`.
    const NO_ANSWER: [i32; 5] = [5, 6, 19, 22, 95];
    let error = match result {
        Ok(value) => return Ok(Some(value)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied => Ok(None),
        _ if error.raw_os_error().is_some_and(|code| NO_ANSWER.contains(&code)) => Ok(None),
        ErrorKind::InvalidData => Err(TopologyError::Malformed(path.into())),
        _ => Err(TopologyError::Unreadable { path: path.into(), source: error }),
    }
}

/// A number as in `0x10de`.
struct Hex(u16);

impl FromStr for Hex {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.strip_prefix("0x").ok_or(())?;
        u16::from_str_radix(digits, 16).map(Self).map_err(|_| ())
    }
}

/// A node, or -1 where none is known.
struct NumaNode(Option<NodeId>);

impl FromStr for NumaNode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let node = if text == "-1" { None } else { Some(NodeId(text.parse().map_err(|_| ())?)) };
        Ok(Self(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_does_not_answer_is_unknown_and_other_failures_are_errors() {
        let path = Path::new("numa_node");
        let failed = |code| told::<()>(path, Err(io::Error::from_raw_os_error(code)));
        // ENOENT, EIO, ENXIO, EACCES, ENODEV, ENOTDIR, EINVAL, EOPNOTSUPP
        for code in [2, 5, 6, 13, 19, 20, 22, 95] {
            assert!(matches!(failed(code), Ok(None)), "{code}");
        }
        // ENOMEM, EISDIR, EMFILE, ELOOP
        for code in [12, 21, 24, 40] {
            assert!(matches!(failed(code), Err(TopologyError::Unreadable { .. })), "{code}");
        }
        assert!(matches!(told(path, Ok(3)), Ok(Some(3))));
    }

    #[test]
    fn bridges_end_where_the_folders_are_no_addresses() {
        let above = |path| bridges_above(Path::new(path)).iter().map(ToString::to_string).collect::<Vec<_>>();
        let folder = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0";
        assert_eq!(above(folder), ["0000:10:01.0", "0000:11:00.0"]);
        assert_eq!(above("/0000:01:00.0/sys/bus/pci/devices/0000:12:00.0"), [""; 0]);
        assert_eq!(above("/"), [""; 0]);
    }
}
