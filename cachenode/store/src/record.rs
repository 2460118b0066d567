//! A record: one block as a segment stores it, with the data needed to verify that the block is the right one and
//! intact.
//!
//! ```text
//!  0      4   5     8              24     28    32        60      64           64 + 4 n        + len      4 KiB multiple
//!  | LREC | 1 | 0 0 | snapshot[..16] | block | len | zeros | crc32c | n chunk CRCs | data ...      | zeros      |
//!           version                    u32     u32          of 0..60  u32 each
//! ```
//! Little-endian. `n = ceil(len / 64 KiB)`, at most 64, since `len` is 1 to 4 MiB. Each chunk CRC is the CRC32C of 64
//! KiB of the data; the last chunk is the remainder. Records start and end at multiples of 4 KiB, for direct I/O;
//! header and chunk CRCs fit in the first 4 KiB. A part of a large block is therefore checked with the record's first
//! page and the chunks that the part touches, and a small block takes one read.
//!
//! Its parts: `encode_head` writes everything before the data; [`decode_header`] reads the first 64 bytes; [`Part`]
//! computes which bytes of a record a read needs, and verifies them.
//!
//! Invariant: [`Part::check`] returns the bytes that were encoded for this snapshot, block and length, or a [`Flaw`].
//! No input makes a function of this module panic.

use std::ops::Range;

use larder_dataset::{BLOCK_BYTES, BlockIndex, CacheId};

#[cfg(test)]
mod tests;

/// First bytes of a record.
pub const MAGIC: [u8; 4] = *b"LREC";
/// The version that this code writes and reads.
pub const VERSION: u8 = 1;
/// The size of the header.
pub const HEADER_BYTES: usize = 64;
/// The number of data bytes that one checksum covers.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Records start and end at multiples of this, as direct I/O requires.
pub const ALIGN_BYTES: usize = 4096;
/// Bytes of the snapshot id that a record carries. 16 bytes are enough to tell all snapshots of a node apart.
pub const KEY_BYTES: usize = 16;

/// A part that starts within this distance of the record's start is read together with the header.
const ONE_READ_BYTES: usize = 2 * CHUNK_BYTES;

/// Identifies the block that a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first bytes of the snapshot's id.
    pub key: [u8; KEY_BYTES],
    /// The block's index in that snapshot.
    pub block: BlockIndex,
    /// The block's length in bytes, 1 to 4 MiB.
    pub len: u32,
}

impl Header {
    /// Builds the header of a block of `snapshot`.
    pub fn new(id: &CacheId, block: BlockIndex, len: u32) -> Self {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&id.0[..KEY_BYTES]);
        Self { key, block, len }
    }
}

/// Why bytes are not a valid header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Fewer than 64 bytes, or only zeros: no record was written, or it was freed.
    #[error("no record was written here")]
    Absent,
    /// The bytes do not start with [`MAGIC`].
    #[error("not a record (wrong first bytes)")]
    NotARecord,
    /// Another version of Larder wrote the record.
    #[error("record version {found}, this program reads version {VERSION}")]
    Version {
        /// The version byte that was found.
        found: u8,
    },
    /// The header's checksum does not match.
    #[error("record header is damaged")]
    Damaged,
}

/// Decodes a header. `bytes` may be longer than the header.
pub fn decode_header(bytes: &[u8]) -> Result<Header, RecordError> {
    let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return Err(RecordError::Absent) };
    if bytes[..4] != MAGIC {
        return Err(if bytes.iter().all(|&byte| byte == 0) { RecordError::Absent } else { RecordError::NotARecord });
    }
    if larder_dataset::crc32c(&bytes[..60]) != u32_at(bytes, 60) {
        return Err(RecordError::Damaged);
    }
    if bytes[4] != VERSION {
        return Err(RecordError::Version { found: bytes[4] });
    }
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&bytes[8..24]);
    let header = Header { key, block: BlockIndex(u32_at(bytes, 24)), len: u32_at(bytes, 28) };
    if header.len == 0 || u64::from(header.len) > BLOCK_BYTES {
        return Err(RecordError::Damaged);
    }
    Ok(header)
}

/// Writes the header and the chunk CRCs of `data`, the whole block, into `head`, which must be [`data_at`] zeros.
pub(crate) fn encode_head(header: &Header, head: &mut [u8], data: &[u8]) {
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[8..24].copy_from_slice(&header.key);
    head[24..28].copy_from_slice(&header.block.0.to_le_bytes());
    head[28..32].copy_from_slice(&header.len.to_le_bytes());
    let crc = larder_dataset::crc32c(&head[..60]);
    head[60..64].copy_from_slice(&crc.to_le_bytes());
    for (nth, chunk) in data.chunks(CHUNK_BYTES).enumerate() {
        let at = HEADER_BYTES + 4 * nth;
        head[at..at + 4].copy_from_slice(&larder_dataset::crc32c(chunk).to_le_bytes());
    }
}

/// The offset of the data in the record of a block of `len` bytes.
pub(crate) const fn data_at(len: u32) -> usize {
    HEADER_BYTES + 4 * (len as usize).div_ceil(CHUNK_BYTES)
}

/// Bytes that the record of a block of `len` bytes occupies in a segment.
pub const fn extent_bytes(len: u32) -> usize {
    (data_at(len) + len as usize).next_multiple_of(ALIGN_BYTES)
}

/// A defect of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The record is cut off, was never completely written, or was freed.
    Torn,
    /// The header is valid but belongs to another block, length or snapshot.
    Foreign,
    /// The header is not valid: its bytes have changed, or the place is not the start of a record.
    RottenHeader,
    /// The header is right, but the data has changed.
    RottenData,
}

/// The bytes of a record that a read of part of its block needs, and their position in a buffer. The buffer holds
/// `head_bytes` from the record's start, then the record's bytes `from..to`. The second range is empty if `head_bytes`
/// already includes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    block_len: u32,
    start: u32,
    len: u32,
    /// The number of bytes to read from the record's start.
    pub head_bytes: usize,
    /// The first byte of the second read, as an offset in the record.
    pub from: usize,
    /// The end of the second read, exclusive.
    pub to: usize,
}

impl Part {
    /// The part of `len` bytes from `start` of a block. None if it is empty or not within the block.
    pub fn new(block_len: u32, start: u32, len: u32) -> Option<Self> {
        let end = start.checked_add(len)?;
        if len == 0 || end > block_len || u64::from(block_len) > BLOCK_BYTES {
            return None;
        }
        let data_at = data_at(block_len);
        let first = data_at + start as usize / CHUNK_BYTES * CHUNK_BYTES;
        let last = data_at + (end as usize).next_multiple_of(CHUNK_BYTES).min(block_len as usize);
        let to = last.next_multiple_of(ALIGN_BYTES);
        Some(if first <= ONE_READ_BYTES {
            Self { block_len, start, len, head_bytes: to, from: to, to }
        } else {
            let from = first / ALIGN_BYTES * ALIGN_BYTES;
            Self { block_len, start, len, head_bytes: ALIGN_BYTES, from, to }
        })
    }

    /// The size of buffer that the part needs.
    pub const fn buffer_bytes(&self) -> usize {
        self.head_bytes + self.to - self.from
    }

    /// Verifies that a buffer filled for this part holds unchanged bytes of `block` in the snapshot whose key is `key`.
    /// Returns the range of the part's bytes in the buffer.
    pub fn check(&self, key: &[u8; KEY_BYTES], block: BlockIndex, buffer: &[u8]) -> Result<Range<usize>, Flaw> {
        if buffer.len() < self.buffer_bytes() {
            return Err(Flaw::Torn);
        }
        let found = decode_header(buffer).map_err(|error| match error {
            RecordError::Absent => Flaw::Torn,
            RecordError::NotARecord | RecordError::Version { .. } | RecordError::Damaged => Flaw::RottenHeader,
        })?;
        if found != (Header { key: *key, block, len: self.block_len }) {
            return Err(Flaw::Foreign);
        }
        // The bytes between the two reads are not in the buffer, so later offsets shift by their number.
        let gap = self.from - self.head_bytes;
        let place = |byte: usize| data_at(self.block_len) + byte - gap;
        let (start, end) = (self.start as usize, (self.start + self.len) as usize);
        for chunk in start / CHUNK_BYTES..end.div_ceil(CHUNK_BYTES) {
            let from = chunk * CHUNK_BYTES;
            let to = (from + CHUNK_BYTES).min(self.block_len as usize);
            if larder_dataset::crc32c(&buffer[place(from)..place(to)]) != u32_at(buffer, HEADER_BYTES + 4 * chunk) {
                return Err(Flaw::RottenData);
            }
        }
        Ok(place(start)..place(end))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}
