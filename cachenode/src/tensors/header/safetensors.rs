//! The header of a safetensors file.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};

use super::super::tensor::{HEADER_BYTES_MOST, Role, TENSORS_MOST, Tensor};
use super::shape::Header;

/// The length of the JSON before it.
const LENGTH_BYTES: u64 = 8;

/// The entry that is no tensor.
const METADATA: &str = "__metadata__";

/// True if a file with these first bytes may be one.
pub(super) fn may_begin(start: &[u8]) -> bool {
    start.get(LENGTH_BYTES as usize) == Some(&b'{')
}

pub(super) fn decode(start: &[u8], file_bytes: u64, folder: u32) -> Header {
    let Some(len) = start.first_chunk() else { return Header::Unknown };
    let data = u64::from_le_bytes(*len).saturating_add(LENGTH_BYTES);
    if !may_begin(start) || data > HEADER_BYTES_MOST || data >= file_bytes {
        return Header::Unknown;
    }
    let Some(json) = start.get(LENGTH_BYTES as usize..data as usize) else {
        return Header::needs(data, start.len(), file_bytes);
    };
    let mut json = serde_json::Deserializer::from_slice(json);
    match (Entries { data, folder }).deserialize(&mut json).and_then(|tensors| json.end().map(|()| tensors)) {
        Ok(tensors) => Header::of(tensors, file_bytes),
        Err(_) => Header::Unknown,
    }
}

/// Makes tensors of the entries of the JSON.
struct Entries {
    /// Where the data begin.
    data: u64,
    folder: u32,
}

/// An entry. Its type and its shape do not matter here.
#[derive(Deserialize)]
struct Entry {
    data_offsets: [u64; 2],
}

impl<'de> DeserializeSeed<'de> for Entries {
    type Value = Vec<Tensor>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<Tensor>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tensors of a file")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = entries.next_key::<String>()? {
            if name == METADATA {
                entries.next_value::<IgnoredAny>()?;
                continue;
            }
            let Entry { data_offsets: [begin, end] } = entries.next_value()?;
            // Tensors without bytes are allowed.
            if begin == end {
                continue;
            }
            if tensors.len() == TENSORS_MOST {
                return Err(A::Error::custom("too many tensors"));
            }
            let [begin, end] = [begin, end].map(|at| self.data.saturating_add(at));
            tensors.push(Tensor { begin, end, role: Role::of(self.folder, name.as_bytes()) });
        }
        Ok(tensors)
    }
}
