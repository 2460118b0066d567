//! CRC32C, the checksum of everything that Larder stores and packs.
//!
//! Every byte that a reader gets from the cache's disk is checksummed first. For bytes in the CPU's cache, carry-less
//! multiplication over wide vectors is four times as fast as the CPU's CRC instruction. For bytes that come fresh from
//! the disk, memory bandwidth is the limit.

use crc_fast::{CrcAlgorithm, Digest};

/// Computes the CRC32C of `bytes`. Allocates nothing.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Continues a CRC32C: returns the checksum of the bytes whose CRC32C is `crc`, followed by `bytes`. The CRC32C of no
/// bytes is 0.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    // The digest's type has room for every CRC; this one has 32 bits.
    digest.finalize() as u32
}

/// Computes the CRC32C of two adjacent pieces from the CRC32C of each. The second piece has `second_len` bytes.
pub fn crc32c_combine(first: u32, second: u32, second_len: u64) -> u32 {
    let both = crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, u64::from(first), u64::from(second), second_len);
    both as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crc32c_by_whatever_pieces() {
        assert_eq!(crc32c(b""), 0);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| ((n * 7919) >> 5) as u8).collect();
        for len in [0, 1, 63, 64, 255, 4096, 65_537, bytes.len()] {
            let (head, tail) = bytes.split_at(len);
            // Bit by bit, as the standard defines it.
            let slow = !head.iter().fold(u32::MAX, |crc, byte| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
            });
            assert_eq!(crc32c(head), slow, "{len}");
            assert_eq!(crc32c_append(crc32c(head), tail), crc32c(&bytes), "{len}");
            assert_eq!(crc32c_combine(crc32c(head), crc32c(tail), tail.len() as u64), crc32c(&bytes), "{len}");
        }
    }
}
