//! A sysfs made for a test, in a folder that goes away with it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

use glake_core::driver::PciAddress;
use glake_core::sim::{SimConfig, SimDriver};
use glake_core::units::DeviceId;

/// The folder.
#[derive(Debug)]
pub(super) struct Sysfs(PathBuf);

impl Sysfs {
    /// One without anything in it.
    pub(super) fn empty() -> Self {
        static N_MADE: AtomicU32 = AtomicU32::new(0);
        let n = N_MADE.fetch_add(1, Ordering::Relaxed);
        let root = env::temp_dir().join(format!("glake-sysfs-{}-{n}", process::id()));
        fs::create_dir(&root).unwrap();
        Self(root)
    }

    pub(super) fn root(&self) -> &Path {
        &self.0
    }

    /// Writes a file, with the end of line that Linux writes, and the folders above it.
    pub(super) fn file(self, path: &str, text: &str) -> Self {
        self.bytes(path, format!("{text}\n").as_bytes())
    }

    pub(super) fn bytes(self, path: &str, bytes: &[u8]) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        self
    }

    /// A node with its CPUs.
    pub(super) fn node(self, id: u32, cpus: &str) -> Self {
        self.file(&format!("devices/system/node/node{id}/cpulist"), cpus)
    }

    /// An H200 whose real folder is `devices/FOLDER`, reached by a relative link as on Linux.
    pub(super) fn gpu(self, folder: &str, numa_node: &str) -> Self {
        let address = folder.rsplit('/').next().unwrap();
        let links = self.0.join("bus/pci/devices");
        fs::create_dir_all(&links).unwrap();
        let real = format!("devices/{folder}");
        fs::create_dir_all(self.0.join(&real)).unwrap();
        std::os::unix::fs::symlink(format!("../../../{real}"), links.join(address)).unwrap();
        self.file(&format!("{real}/numa_node"), numa_node)
            .file(&format!("{real}/vendor"), "0x10de")
            .file(&format!("{real}/device"), "0x2335")
            .file(&format!("{real}/max_link_speed"), "32.0 GT/s PCIe")
            .file(&format!("{real}/max_link_width"), "16")
            .file(&format!("{real}/current_link_speed"), "2.5 GT/s PCIe")
            .file(&format!("{real}/current_link_width"), "16")
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

/// Devices at these addresses, all of them peers.
pub(super) fn driver(addresses: &[&str]) -> SimDriver {
    config(addresses).build()
}

pub(super) fn config(addresses: &[&str]) -> SimConfig {
    let new = SimConfig::h200(u32::try_from(addresses.len()).unwrap());
    (0..).zip(addresses).fold(new, |config, (id, text)| config.pci_address(DeviceId(id), address(text)))
}
