//! What a file's header says.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use serde::de::value::Error as ValueError;
use serde::de::{Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::HeaderError;
use super::{HEADER_BYTES, Tensor};

/// The name that is no tensor's.
const METADATA: &str = "__metadata__";

/// How long the header of a file of `file_bytes` is that begins with `prefix`.
///
/// # Errors
/// It would be too long, or longer than the file.
pub(super) fn header_bytes(prefix: [u8; 8], file_bytes: u64) -> Result<u64, HeaderError> {
    if file_bytes < 8 {
        return Err(HeaderError::Truncated { file_bytes, needed_bytes: 8 });
    }
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > HEADER_BYTES {
        return Err(HeaderError::TooLong { header_bytes });
    }
    if header_bytes > file_bytes - 8 {
        return Err(HeaderError::Truncated { file_bytes, needed_bytes: 8 + header_bytes });
    }
    Ok(header_bytes)
}

/// A header, as it stands there.
#[derive(Debug)]
struct Header(Vec<(Box<str>, Info)>);

#[derive(Debug, Deserialize)]
struct Info {
    dtype: Box<str>,
    shape: Box<[u64]>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut infos, mut notes) = (Vec::new(), None);
        while let Some(name) = map.next_key::<Box<str>>()? {
            if &*name != METADATA {
                infos.push((name, map.next_value()?));
            } else if notes.replace(map.next_value::<Option<Notes>>()?).is_some() {
                return Err(A::Error::duplicate_field(METADATA));
            }
        }
        Ok(Header(infos))
    }
}

/// What programs note in a header.
type Notes = BTreeMap<String, String>;

/// The tensors of a file in the order of their places, from its header and from where its data lies. They fill
/// the data without a hole.
///
/// # Errors
/// [`HeaderError`].
pub(super) fn parse(header: &[u8], data: Range<u64>) -> Result<Vec<Tensor>, HeaderError> {
    let Header(mut infos) = serde_json::from_slice(header).map_err(HeaderError::Json)?;
    infos.sort_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(pair) = infos.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(HeaderError::Duplicate { tensor: pair[0].0.clone() });
    }
    // Equals stay in the order of their names.
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let data_bytes = data.end - data.start;
    let (mut tensors, mut end) = (Vec::with_capacity(infos.len()), 0);
    for (name, info) in infos {
        let tensor = tensor(name, info, data.start, data_bytes)?;
        let start = tensor.offset_bytes - data.start;
        if start < end {
            return Err(HeaderError::Overlap { tensor: tensor.name });
        }
        if start > end {
            return Err(HeaderError::Hole { offset_bytes: end, bytes: start - end });
        }
        end = start + tensor.bytes;
        tensors.push(tensor);
    }
    if end < data_bytes {
        return Err(HeaderError::Hole { offset_bytes: end, bytes: data_bytes - end });
    }
    Ok(tensors)
}

/// One tensor, checked by itself.
fn tensor(name: Box<str>, info: Info, data_start: u64, data_bytes: u64) -> Result<Tensor, HeaderError> {
    let Ok(dtype) = Dtype::deserialize(IntoDeserializer::<ValueError>::into_deserializer(&*info.dtype))
    else {
        return Err(HeaderError::UnknownDtype { tensor: name, dtype: info.dtype });
    };
    let (start, end) = info.data_offsets;
    let Some(bytes) = end.checked_sub(start) else {
        return Err(HeaderError::Backwards { tensor: name });
    };
    if end > data_bytes {
        return Err(HeaderError::Outside { tensor: name, missing_bytes: end - data_bytes });
    }
    if bits(&info.shape, dtype) != bytes.checked_mul(8) {
        return Err(HeaderError::Shape { tensor: name });
    }
    Ok(Tensor { name, dtype, shape: info.shape, bytes, shard: 0, offset_bytes: data_start + start })
}

/// The bits of a tensor, unless they are too many to count.
fn bits(shape: &[u64], dtype: Dtype) -> Option<u64> {
    let n = shape.iter().try_fold(1_u64, |n, length| n.checked_mul(*length))?;
    n.checked_mul(dtype.bitsize() as u64)
}
