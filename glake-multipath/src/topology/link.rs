//! Rates of PCIe links, as Linux writes them.

/// What a PCIe link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkRate {
    /// Million transfers a second on each lane: 32,000 for PCIe 5.
    pub lane_mt_per_s: u32,
    /// How many lanes.
    pub n_lanes: u32,
}

impl LinkRate {
    /// The rate that Linux's words for speed and width say; `None` where Linux does not know, or has words for it
    /// that are not known here.
    pub(super) fn from_words(speed: &str, width: &str) -> Option<Self> {
        let (number, unit) = speed.split_once(' ')?;
        let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !(unit.starts_with("GT/s") && digits(whole) && digits(tenth) && tenth.len() == 1) {
            return None;
        }
        let (whole, tenth): (u32, u32) = (whole.parse().ok()?, tenth.parse().ok()?);
        let lane_mt_per_s = whole.checked_mul(1000)?.checked_add(tenth * 100)?;
        // 0 and numbers beyond stand for a width that the device does not tell.
        let n_lanes = width.parse().ok().filter(|n_lanes| (1..=32).contains(n_lanes))?;
        (lane_mt_per_s > 0).then_some(Self { lane_mt_per_s, n_lanes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generation_is_read() {
        let rate = |lane_mt_per_s, n_lanes| Some(LinkRate { lane_mt_per_s, n_lanes });
        assert_eq!(LinkRate::from_words("2.5 GT/s PCIe", "1"), rate(2_500, 1));
        assert_eq!(LinkRate::from_words("8 GT/s", "8"), rate(8_000, 8));
        assert_eq!(LinkRate::from_words("32.0 GT/s PCIe", "16"), rate(32_000, 16));
        assert_eq!(LinkRate::from_words("64.0 GT/s PCIe", "32"), rate(64_000, 32));
    }

    #[test]
    fn other_words_are_unknown() {
        for speed in
            ["Unknown", "Unknown speed", "", "32.0", "32.0 MB/s", "32.05 GT/s", "-8 GT/s", "0.0 GT/s"]
        {
            assert_eq!(LinkRate::from_words(speed, "16"), None, "{speed:?}");
        }
        assert_eq!(LinkRate::from_words("4294967295.0 GT/s", "16"), None);
        for width in ["0", "63", "255", "", "x16", "-1"] {
            assert_eq!(LinkRate::from_words("32.0 GT/s PCIe", width), None, "{width:?}");
        }
    }
}
