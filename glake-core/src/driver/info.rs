//! What a device is beside the others: where it sits, whom it reaches.

use std::fmt;
use std::str::FromStr;

use crate::units::DeviceId;

/// What a driver says of a device without making a context for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Where the device sits, if the driver says so.
    pub pci: Option<PciAddress>,
    /// The other devices whose memory this one can reach, ascending. A copy between the two needs
    /// access to the memory all the same.
    pub peers: Vec<DeviceId>,
}

impl DeviceInfo {
    /// A device at `pci` that reaches the memory of `peers`, in any order.
    #[must_use]
    pub fn new(pci: Option<PciAddress>, mut peers: Vec<DeviceId>) -> Self {
        peers.sort_unstable();
        peers.dedup();
        Self { pci, peers }
    }
}

/// A place on the PCI buses of a machine, written as Linux names it.
///
/// ```
/// use glake_core::driver::PciAddress;
///
/// let address: PciAddress = "0000:65:00.0".parse()?;
/// assert_eq!(address, PciAddress { domain: 0, bus: 0x65, device: 0, function: 0 });
/// assert_eq!(address.to_string(), "0000:65:00.0");
/// # Ok::<(), glake_core::driver::PciAddressError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain: a set of buses with numbers of its own.
    pub domain: u32,
    /// The bus in its domain.
    pub bus: u8,
    /// The device on its bus, less than 32.
    pub device: u8,
    /// The function of its device, less than 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Reads what Linux, CUDA and NVML write: a domain of four to eight hexadecimal digits, letters of either case.
impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        let (domain, rest) = text.split_once(':').ok_or(PciAddressError::Form)?;
        let (bus, rest) = rest.split_once(':').ok_or(PciAddressError::Form)?;
        let (device, function) = rest.split_once('.').ok_or(PciAddressError::Form)?;
        let byte = |text, n_digits| {
            let value = hexadecimal(text, n_digits, n_digits)?;
            u8::try_from(value).map_err(|_| PciAddressError::Form)
        };
        let domain = hexadecimal(domain, 4, 8)?;
        let (bus, device, function) = (byte(bus, 2)?, byte(device, 2)?, byte(function, 1)?);
        if device >= 32 || function >= 8 {
            return Err(PciAddressError::Range { device, function });
        }
        Ok(Self { domain, bus, device, function })
    }
}

/// A number of `least` to `most` hexadecimal digits, at most eight, and nothing else.
fn hexadecimal(text: &str, least: usize, most: usize) -> Result<u32, PciAddressError> {
    let is_number = (least..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let value = is_number.then(|| u32::from_str_radix(text, 16).ok()).flatten();
    value.ok_or(PciAddressError::Form)
}

/// Why a text is no [`PciAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PciAddressError {
    /// It has another form.
    #[error("not a PCI address: write domain:bus:device.function in hexadecimal, as in 0000:65:00.0")]
    Form,
    /// No bus has that device, or no device that function.
    #[error("no PCI bus has function {function} of device {device}: devices go to 31, functions to 7")]
    Range {
        /// The device.
        device: u8,
        /// The function.
        function: u8,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<PciAddress, PciAddressError> {
        text.parse()
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_is_written(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(read(&address.to_string()), Ok(address));
            prop_assert_eq!(read(&address.to_string().to_uppercase()), Ok(address));
        }

        #[test]
        fn what_is_read_is_written_alike(text in "[0-9a-f]{3,9}:[0-9a-f]{1,3}:[0-3][0-9a-f]\\.[0-9]") {
            if let Ok(address) = read(&text) {
                let written = address.to_string();
                prop_assert_eq!(written.trim_start_matches('0'), text.trim_start_matches('0'));
            }
        }
    }

    #[test]
    fn every_writer_of_addresses_is_read() {
        let address = PciAddress { domain: 0, bus: 0xa1, device: 0x1f, function: 7 };
        for text in ["0000:a1:1f.7", "0000:A1:1F.7", "00000000:A1:1F.7"] {
            assert_eq!(read(text), Ok(address));
        }
        let far = PciAddress { domain: 0x1_0000, bus: 1, device: 0, function: 0 };
        assert_eq!((far.to_string().as_str(), read("10000:01:00.0")), ("10000:01:00.0", Ok(far)));
        assert_eq!(read("ffffffff:00:00.0").map(|address| address.domain), Ok(u32::MAX));
    }

    #[test]
    fn other_texts_are_refused() {
        let texts = [
            "",
            "pci0000:60",
            "65:00.0",
            "0000:65:00",
            "0000:65.00.0",
            "000:65:00.0",
            "000000000:65:00.0",
            "0000:165:00.0",
            "0000:5:00.0",
            "0000:65:00.00",
            "0000:65:0.0",
            "+000:65:00.0",
            "0000:+5:00.0",
            "0000:65:00.0 ",
            "0000:65:00.0\n",
            "0000:6g:00.0",
            "0000:65:00.0.0",
            "0000:65:00:00.0",
            "éé:65:00.0",
        ];
        for text in texts {
            assert_eq!(read(text), Err(PciAddressError::Form), "{text:?}");
        }
        assert_eq!(read("0000:65:20.0"), Err(PciAddressError::Range { device: 32, function: 0 }));
        assert_eq!(read("0000:65:1f.8"), Err(PciAddressError::Range { device: 31, function: 8 }));
    }

    #[test]
    fn peers_are_ascending() {
        let peers = [3, 1, 12, 3].map(DeviceId).to_vec();
        assert_eq!(DeviceInfo::new(None, peers).peers, [1, 3, 12].map(DeviceId));
    }
}
