//! The result of decoding a header.

use super::super::tensor::{HEADER_BYTES_MOST, Tensor};

/// The tensors of a file, or why they are not known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// In the order of their bytes, without overlaps.
    Tensors(Vec<Tensor>),
    /// This many of the file's first bytes may have all of the header: more than there were.
    Needs(u64),
    /// The file has no header of a known format, or one that breaks a rule or a limit.
    Unknown,
}

impl Header {
    /// The tensors, if they lie in a file of this size and do not overlap.
    pub(super) fn of(mut tensors: Vec<Tensor>, file_bytes: u64) -> Self {
        tensors.sort_unstable_by_key(|tensor| tensor.begin);
        let are_apart = tensors.windows(2).all(|pair| pair[0].end <= pair[1].begin);
        let are_inside = tensors.iter().all(|tensor| tensor.begin < tensor.end && tensor.end <= file_bytes);
        if are_apart && are_inside && !tensors.is_empty() { Self::Tensors(tensors) } else { Self::Unknown }
    }

    /// More bytes are needed than the first `had` of a file of this size; `wanted` may be enough.
    pub(super) fn needs(wanted: u64, had: usize, file_bytes: u64) -> Self {
        let wanted = wanted.min(HEADER_BYTES_MOST).min(file_bytes);
        if wanted > had as u64 { Self::Needs(wanted) } else { Self::Unknown }
    }
}
