//! Makes a file of random bytes a model: its beginning becomes the header of a safetensors file, whose tensors have the
//! rest of its bytes.
//!
//! ```text
//! length of the header u64 (little-endian) · header: JSON, padded with spaces · tensors, without gaps
//! ```
//! Each layer has a small and a large tensor. Programs load them in the order of their names, in which `layers.10`
//! comes before `layers.2`: mostly, not always, the order in the file.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::Context;

/// The mean size of a layer, and of its small tensor.
const LAYER_BYTES: u64 = 16 << 20;
const SMALL_TENSOR_BYTES: u64 = 8 << 10;

/// Room in the header for a layer, and the multiple to which the header is padded.
const HEADER_BYTES_A_LAYER: u64 = 256;
const HEADER_ALIGN: u64 = 4096;

fn layers(size: u64) -> u64 {
    (size / LAYER_BYTES).max(12)
}

fn header_bytes(size: u64) -> u64 {
    (layers(size) * HEADER_BYTES_A_LAYER).next_multiple_of(HEADER_ALIGN)
}

/// The bytes of all tensors of a model of this size.
pub(super) fn tensor_bytes(size: u64) -> u64 {
    size - 8 - header_bytes(size)
}

/// The tensors of a model of this size, in the order of the file: the number of the layer, the name in it, and where
/// the tensor begins and ends among all.
fn tensors(size: u64) -> impl Iterator<Item = (u64, &'static str, u64, u64)> {
    let (layers, all) = (layers(size), tensor_bytes(size));
    (0..layers).flat_map(move |layer| {
        let [begin, end] = [layer, layer + 1].map(|layer| all * layer / layers);
        let middle = begin + SMALL_TENSOR_BYTES;
        [(layer, "norm", begin, middle), (layer, "weight", middle, end)]
    })
}

/// The bytes of the fourth eighth of each tensor.
pub(super) fn eighth_bytes(size: u64) -> u64 {
    tensors(size).map(|(_, _, begin, end)| (end - begin) * 4 / 8 - (end - begin) * 3 / 8).sum()
}

/// Overwrites the beginning of a file of `size` bytes, at least 4 MiB.
pub(super) fn write_header(file: &Path, size: u64) -> anyhow::Result<()> {
    let len = header_bytes(size);
    let mut header = String::from("{");
    for (layer, name, begin, end) in tensors(size) {
        let comma = if header.len() == 1 { "" } else { "," };
        let (shape, offsets) = (end - begin, format!("[{begin},{end}]"));
        // Writing to a String cannot fail.
        let _ = write!(
            header,
            r#"{comma}"layers.{layer}.{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":{offsets}}}"#
        );
    }
    header.push('}');
    let padded = format!("{header:len$}", len = len as usize);
    let write = || {
        let file = OpenOptions::new().write(true).open(file)?;
        file.write_all_at(&[&len.to_le_bytes()[..], padded.as_bytes()].concat(), 0)
    };
    write().with_context(|| format!("write the header of {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_every_byte_after_the_header() {
        for size in [4 << 20, 5_000_001, 100 << 20, 1 << 30] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(size).unwrap();
            write_header(file.path(), size).unwrap();
            let mut len = [0; 8];
            file.as_file().read_exact_at(&mut len, 0).unwrap();
            let mut header = vec![0; u64::from_le_bytes(len) as usize];
            file.as_file().read_exact_at(&mut header, 8).unwrap();
            let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&header).unwrap();
            let mut offsets: Vec<[u64; 2]> =
                header.values().map(|tensor| serde_json::from_value(tensor["data_offsets"].clone()).unwrap()).collect();
            offsets.sort_unstable();
            assert!(offsets.len() >= 24 && offsets.iter().all(|[begin, end]| begin < end), "{size}");
            assert_eq!((offsets[0][0], offsets.last().unwrap()[1]), (0, tensor_bytes(size)), "{size}");
            assert!(offsets.windows(2).all(|pair| pair[0][1] == pair[1][0]), "{size}: without gaps");
            assert_eq!(file.as_file().metadata().unwrap().len(), size);
        }
    }
}
