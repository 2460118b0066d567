//! A tensor of a file, as far as reading ahead needs to know it.

use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

/// The most bytes of a file that are read as its header. Those of GGUF files have the vocabulary of a model.
pub(crate) const HEADER_BYTES_MOST: u64 = 16 << 20;

/// The most tensors of a file whose readers are followed.
pub(crate) const TENSORS_MOST: usize = 1 << 16;

/// The position of a tensor in a file. It has at least one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) role: Role,
}

/// Which part of a model a tensor is. It is the same in all layers: readers take the same part of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Role(u64);

impl Role {
    /// The role of the tensor of this name in a file of this folder. Other numbers than that of the layer count: a
    /// reader may take some experts of each layer.
    pub(crate) fn of(folder: u32, name: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write_u32(folder);
        let Range { start, end } = layer_in(name).unwrap_or(name.len()..name.len());
        hasher.write(&name[..start]);
        // Not a byte of a name.
        hasher.write_u8(0xff);
        hasher.write(&name[end..]);
        Self(hasher.finish())
    }
}

/// Where the number of the layer is in a name: the first number that is a word of its own.
fn layer_in(name: &[u8]) -> Option<Range<usize>> {
    let is_word = |at: usize| name.get(at).is_some_and(u8::is_ascii_alphanumeric);
    let mut start = 0;
    for run in name.chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit()) {
        let end = start + run.len();
        let is_number = run.iter().all(u8::is_ascii_digit);
        if is_number && !start.checked_sub(1).is_some_and(is_word) && !is_word(end) {
            return Some(start..end);
        }
        start = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_that_differ_in_the_number_of_their_layer_have_one_role() {
        let role = |name: &str| Role::of(7, name.as_bytes());
        for (one, other) in [
            ("model.layers.0.self_attn.q_proj.weight", "model.layers.31.self_attn.q_proj.weight"),
            ("blk.9.attn_q.weight", "blk.10.attn_q.weight"),
            ("t5.block_3_norm", "t5.block_12_norm"),
            ("0", "17"),
        ] {
            assert_eq!(role(one), role(other), "{one}");
            assert_ne!(role(one), Role::of(8, one.as_bytes()), "{one} in another folder");
        }
        for (one, other) in [
            ("layers.0.experts.1.w1", "layers.0.experts.2.w1"),
            ("layers.0.q_proj", "layers.0.k_proj"),
            ("conv1.weight", "conv2.weight"),
            ("layers.0.a", "layers.0"),
            ("lm_head", "embed"),
        ] {
            assert_ne!(role(one), role(other), "{one}");
        }
    }
}
