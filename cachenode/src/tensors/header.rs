//! The headers of files of tensors, decoded: which bytes are which tensor.
//!
//! ```text
//!  safetensors  length of the JSON u64 │ JSON: {name: {"data_offsets": [begin, end], …}, …} │ tensors
//!  GGUF         "GGUF" │ version u32 │ tensors u64 │ pairs u64 │ the pairs │ name, shape and offset of each tensor │ tensors
//! ```
//! Numbers are little-endian. A header comes from whoever wrote the file, and is a hint.
//!
//! Invariant: whatever the bytes, decoding them takes time and memory in proportion to their number, and at most
//! [`TENSORS_MOST`](super::tensor::TENSORS_MOST) tensors come of it, which lie in the file and do not overlap.

mod gguf;
mod safetensors;
mod shape;
#[cfg(test)]
pub(super) mod tests;

pub(crate) use shape::Header;

/// Decodes the header of a file in this folder of the dataset out of its first bytes: some KiB, or all of the file.
pub(crate) fn decode(start: &[u8], file_bytes: u64, folder: u32) -> Header {
    if start.starts_with(gguf::MAGIC) {
        gguf::decode(start, file_bytes, folder)
    } else {
        safetensors::decode(start, file_bytes, folder)
    }
}

/// True if a file with these first bytes may have a header that can be decoded.
pub(crate) fn may_begin_header(start: &[u8]) -> bool {
    start.starts_with(gguf::MAGIC) || safetensors::may_begin(start)
}
