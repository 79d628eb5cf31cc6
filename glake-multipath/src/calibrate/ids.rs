//! How ids of other crates and modules are written to files.

/// A device by its number.
pub(super) mod device {
    use glake_core::units::DeviceId;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(in crate::calibrate) fn serialize<S: Serializer>(id: &DeviceId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(id.0)
    }

    pub(in crate::calibrate) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<DeviceId, D::Error> {
        u32::deserialize(from).map(DeviceId)
    }
}

/// A topology's key as it is displayed: numbers in JSON do not reach so far.
pub(super) mod key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::topology::TopologyKey;

    pub(in crate::calibrate) fn serialize<S: Serializer>(
        key: &TopologyKey,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(key)
    }

    pub(in crate::calibrate) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<TopologyKey, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map(TopologyKey).map_err(D::Error::custom)
    }
}
