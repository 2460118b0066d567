//! A record: one block as a segment holds it, with everything needed to tell whether it is the right block and intact.
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
//! The cast: `encode_head` writes everything before the data, [`decode_header`] reads the first 64 bytes, [`Part`]
//! knows which bytes of a record a read needs and checks them.
//!
//! Invariant: [`Part::check`] returns the bytes that were encoded for this snapshot, block and length, or a [`Flaw`].
//! No bytes, however broken, make anything here panic.

use std::ops::Range;

use larder_dataset::{BLOCK_BYTES, BlockIndex, SnapshotId};

#[cfg(test)]
mod tests;

/// First bytes of a record.
pub const MAGIC: [u8; 4] = *b"LREC";
/// The version this code writes and reads.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 64;
/// Bytes that one checksum covers.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Records start and end at multiples of this.
pub const ALIGN_BYTES: usize = 4096;
/// Bytes of the snapshot id that a record carries; enough that no two snapshots of a node share them.
pub const KEY_BYTES: usize = 16;

/// A part that starts this close to the record's start is read together with the header.
const ONE_READ_BYTES: usize = 2 * CHUNK_BYTES;

/// The block that a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first bytes of the snapshot's id.
    pub key: [u8; KEY_BYTES],
    /// The block.
    pub block: BlockIndex,
    /// Bytes of the block, 1 to 4 MiB.
    pub len: u32,
}

impl Header {
    /// The header of a block of this snapshot.
    pub fn new(snapshot: &SnapshotId, block: BlockIndex, len: u32) -> Self {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&snapshot.0[..KEY_BYTES]);
        Self { key, block, len }
    }
}

/// Why bytes are not the header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Fewer than 64 bytes, or only zeros: never written, or freed.
    #[error("no record was written here")]
    Absent,
    /// Something else is here.
    #[error("not a record (wrong first bytes)")]
    NotARecord,
    /// Written by another version of Larder.
    #[error("record version {found}, this program reads version {VERSION}")]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// The header's bytes have changed.
    #[error("record header is damaged")]
    Damaged,
}

/// Reads a header; `bytes` may be longer.
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

/// Writes the header and the chunk CRCs of `data`, the whole block, into `head`: [`data_at`] zeros.
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

/// Where the data of a block of `len` bytes starts in its record.
pub(crate) const fn data_at(len: u32) -> usize {
    HEADER_BYTES + 4 * (len as usize).div_ceil(CHUNK_BYTES)
}

/// Bytes that the record of a block of `len` bytes takes in a segment.
pub const fn extent_bytes(len: u32) -> usize {
    (data_at(len) + len as usize).next_multiple_of(ALIGN_BYTES)
}

/// A defect of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Cut off, never completely written, or freed.
    Torn,
    /// A sound header of another block, length or snapshot.
    Foreign,
    /// No sound header: its bytes have changed, or this is the middle of something else.
    RottenHeader,
    /// The right header, but changed data.
    RottenData,
}

/// Which bytes of a record a read of part of its block needs, and where they go in a buffer: first `head_bytes` from
/// the record's start, then the bytes `from..to` of the record, or nothing when `head_bytes` reaches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    block_len: u32,
    start: u32,
    len: u32,
    /// Bytes to read from the record's start.
    pub head_bytes: usize,
    /// First byte of the record to read after that.
    pub from: usize,
    /// End of the bytes to read after that.
    pub to: usize,
}

impl Part {
    /// The part of `len` bytes from `start` of a block; none if it is empty or not within the block.
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

    /// Bytes of buffer needed.
    pub const fn buffer_bytes(&self) -> usize {
        self.head_bytes + self.to - self.from
    }

    /// Where the part's bytes are in a buffer that was filled as this part says, if they are unchanged bytes of `block`
    /// in the snapshot of `key`.
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
        // The bytes between the two reads are not in the buffer.
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
