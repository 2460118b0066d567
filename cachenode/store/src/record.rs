//! A record: one block as it lies in a segment, with everything needed to tell whether it is the right one and whole.
//!
//! ```text
//!  0      4   5     8              24     28    32        60      64           64 + 4 n        + len      4 KiB multiple
//!  | LREC | 1 | 0 0 | snapshot[..16] | block | len | zeros | crc32c | n chunk CRCs | data ...      | zeros      |
//!           version                    u32     u32          of 0..60  u32 each
//! ```
//! Little-endian. `n = ceil(len / 64 KiB)`, at most 64, since `len` is 1 to 4 MiB. Each chunk CRC is the CRC32C of 64 KiB
//! of the data (the last chunk is what is left). Records start and end at multiples of 4 KiB, for direct I/O; header and
//! chunk CRCs fit the first 4 KiB. So a part of a large block is checked with its first page and the chunks it touches,
//! and a small block is one read.
//!
//! The cast: [`Draft`] gathers a record and [`Record`] is a whole one, [`decode_header`] reads its first 64 bytes, [`Part`] knows which bytes of a
//! record a read needs and checks them.
//!
//! Invariant: [`Part::check`] gives the bytes that were encoded for this snapshot, block and length, or a [`Flaw`]; and
//! no bytes, however broken, make anything here panic.

use std::ops::Range;

use bytes::Bytes;
use larder_dataset::{BLOCK_BYTES, BlockIndex, SnapshotId};

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

/// Whose bytes a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The first bytes of the snapshot's id.
    pub key: [u8; KEY_BYTES],
    /// Which block.
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
    /// Fewer than 64 bytes, or nothing but zeros: never written, or freed.
    #[error("no record was written here")]
    Absent,
    /// Something else is here.
    #[error("not a record (wrong first bytes)")]
    NotARecord,
    /// Made by another version of Larder.
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

/// Bytes that the record of a block of `len` bytes takes in a segment.
pub const fn extent_bytes(len: u32) -> usize {
    (data_at(len) + len as usize).next_multiple_of(ALIGN_BYTES)
}

/// A record in memory that does not have all of its data yet. It lies aligned for direct I/O, and its data goes where it
/// stays: from here to the disk, and to whoever waits for it, nothing is copied again.
#[derive(Debug)]
pub struct Draft {
    header: Header,
    /// Up to `start` nothing, then the record as far as it is known; never moved, since it has its capacity from the start.
    memory: Vec<u8>,
    start: usize,
}

impl Draft {
    /// Nothing but room.
    pub fn new(header: Header) -> Self {
        let mut memory: Vec<u8> = Vec::with_capacity(extent_bytes(header.len) + ALIGN_BYTES);
        let start = memory.as_ptr().align_offset(ALIGN_BYTES);
        memory.resize(start + data_at(header.len), 0);
        Self { header, memory, start }
    }

    /// Bytes of data that are still to come.
    pub fn missing(&self) -> usize {
        self.start + data_at(self.header.len) + self.header.len as usize - self.memory.len()
    }

    /// The data that is there.
    pub fn so_far(&self) -> &[u8] {
        &self.memory[self.start + data_at(self.header.len)..]
    }

    /// Takes the next bytes of the data, and gives back those that are too many.
    pub fn push<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let (ours, rest) = data.split_at(data.len().min(self.missing()));
        self.memory.extend_from_slice(ours);
        rest
    }

    /// The record, if all of its data is there.
    pub fn seal(self) -> Option<Record> {
        (self.missing() == 0).then(|| self.finished())
    }

    fn finished(mut self) -> Record {
        let Self { header, start, .. } = self;
        self.memory.resize(start + extent_bytes(header.len), 0);
        let (head, data) = self.memory[start..].split_at_mut(data_at(header.len));
        head[..4].copy_from_slice(&MAGIC);
        head[4] = VERSION;
        head[8..24].copy_from_slice(&header.key);
        head[24..28].copy_from_slice(&header.block.0.to_le_bytes());
        head[28..32].copy_from_slice(&header.len.to_le_bytes());
        let crc = larder_dataset::crc32c(&head[..60]);
        head[60..64].copy_from_slice(&crc.to_le_bytes());
        for (nth, chunk) in data[..header.len as usize].chunks(CHUNK_BYTES).enumerate() {
            let at = HEADER_BYTES + 4 * nth;
            head[at..at + 4].copy_from_slice(&larder_dataset::crc32c(chunk).to_le_bytes());
        }
        Record { header, bytes: Bytes::from(self.memory).slice(start..) }
    }
}

/// A whole record in memory. Clones share its bytes.
#[derive(Clone, Debug)]
pub struct Record {
    header: Header,
    bytes: Bytes,
}

impl Record {
    /// The record of a block that is here already: of 1 to 4 MiB, as all are.
    pub fn new(key: [u8; KEY_BYTES], block: BlockIndex, data: &[u8]) -> Self {
        let mut draft = Draft::new(Header { key, block, len: data.len() as u32 });
        draft.push(data);
        draft.finished()
    }

    /// Whose bytes they are.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The block's bytes.
    pub fn data(&self) -> Bytes {
        let at = data_at(self.header.len);
        self.bytes.slice(at..at + self.header.len as usize)
    }

    /// All of it, as it goes to the disk.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Cut off, never wholly written, or freed.
    Torn,
    /// A sound header of another block, length or snapshot.
    Foreign,
    /// No sound header: its bytes have changed, or this is the middle of something else.
    RottenHeader,
    /// The right header, and data that has changed.
    RottenData,
}

/// Which bytes of a record a read of part of its block needs, and where they go in a buffer: first `head_bytes` from the
/// record's start, then the bytes `from..to` of the record, or nothing when `head_bytes` reaches them.
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

    /// Where the part's bytes are in a buffer that was read as this part says, if they are `key`'s block and unchanged.
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
        // What lies between the two reads is not in the buffer.
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

const fn data_at(len: u32) -> usize {
    HEADER_BYTES + 4 * (len as usize).div_ceil(CHUNK_BYTES)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SNAPSHOT: SnapshotId = SnapshotId([0xa5; 32]);

    fn data(len: u32) -> Vec<u8> {
        (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn record(block: u32, data: &[u8]) -> Vec<u8> {
        Record::new([0xa5; KEY_BYTES], BlockIndex(block), data).as_bytes().to_vec()
    }

    /// Reads a part of a record as a segment does.
    fn read(record: &[u8], block: u32, part: &Part) -> Result<Vec<u8>, Flaw> {
        let cut = |from: usize, to: usize| record.get(from..to.min(record.len())).unwrap_or_default();
        let buffer = [cut(0, part.head_bytes), cut(part.from, part.to)].concat();
        part.check(&[0xa5; KEY_BYTES], BlockIndex(block), &buffer).map(|range| buffer[range].to_vec())
    }

    #[test]
    fn golden_file_is_still_written_and_read() {
        // Two chunks, so that the chunk table shows.
        let made = record(0x0102_0304, &data(70_000));
        let golden = format!("{}/golden/v1.record", std::env::var("CARGO_MANIFEST_DIR").unwrap());
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&golden, &made).unwrap();
        }
        let checked_in = std::fs::read(&golden).unwrap();
        assert!(checked_in == made, "the format changed: raise the version and add a golden file beside it");
        let header = Header { key: [0xa5; KEY_BYTES], block: BlockIndex(0x0102_0304), len: 70_000 };
        assert_eq!(decode_header(&checked_in), Ok(header));
        let part = Part::new(70_000, 0, 70_000).unwrap();
        assert!(read(&checked_in, 0x0102_0304, &part).unwrap() == data(70_000));
    }

    #[test]
    fn a_draft_takes_its_data_in_any_pieces_and_no_more_and_lies_where_it_is_written_from() {
        let (header, data) = (Header::new(&SNAPSHOT, BlockIndex(3), 100_000), data(100_000));
        for piece in [1, 4095, 70_000, 100_000] {
            let mut draft = Draft::new(header);
            let mut taken = 0;
            for bytes in data.chunks(piece) {
                assert_eq!(draft.missing(), data.len() - taken);
                assert!(draft.push(bytes).is_empty());
                taken += bytes.len();
                assert!(draft.so_far() == &data[..taken]);
            }
            assert_eq!(draft.push(b"more"), b"more");
            let whole = draft.seal().unwrap();
            assert_eq!(whole.as_bytes().as_ptr().addr() % ALIGN_BYTES, 0);
            assert!(whole.data() == data && whole.as_bytes() == record(3, &data));
        }
        let mut short = Draft::new(header);
        short.push(&data[1..]);
        assert!(short.seal().is_none());
    }

    #[test]
    fn a_header_of_anything_else_is_told_apart() {
        let good = record(1, b"hello");
        assert_eq!(decode_header(&good[..63]), Err(RecordError::Absent));
        assert_eq!(decode_header(&[0; 4096]), Err(RecordError::Absent));
        assert_eq!(decode_header(&[7; 64]), Err(RecordError::NotARecord));
        let resealed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            let crc = larder_dataset::crc32c(&bytes[..60]);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
            decode_header(&bytes)
        };
        assert_eq!(resealed(4, 2), Err(RecordError::Version { found: 2 }));
        assert_eq!(resealed(28, 0), Err(RecordError::Damaged), "no block is empty");
        assert_eq!(resealed(31, 1), Err(RecordError::Damaged), "no block is that long");
        for bit in 0..8 * HEADER_BYTES {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_header(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_small_block_is_one_read_and_a_far_part_is_its_first_page_and_its_chunks() {
        let small = Part::new(100_000, 50_000, 50_000).unwrap();
        assert_eq!((small.head_bytes, small.from, small.to), (102_400, 102_400, 102_400));
        let far = Part::new(4 << 20, 2 << 20, 4096).unwrap();
        assert_eq!((far.head_bytes, far.from, far.to - far.from), (4096, 2 << 20, CHUNK_BYTES + 4096));
    }

    #[test]
    fn another_blocks_record_is_foreign() {
        let part = Part::new(5, 0, 5).unwrap();
        assert_eq!(read(&record(1, b"hello"), 2, &part), Err(Flaw::Foreign));
        assert_eq!(read(&record(1, b"hello!"), 1, &part), Err(Flaw::Foreign));
        assert_eq!(read(&record(1, b"hello"), 1, &part).as_deref(), Ok(&b"hello"[..]));
    }

    #[test]
    fn an_empty_part_or_one_beyond_the_block_is_none() {
        for (block_len, start, len) in [(5, 0, 0), (5, 5, 1), (5, 0, 6), (5, u32::MAX, 2), (u32::MAX, 0, 1), (0, 0, 0)]
        {
            assert_eq!(Part::new(block_len, start, len), None);
        }
    }

    /// Lengths about the edges of chunks and pages, and any.
    fn len() -> impl Strategy<Value = u32> {
        prop_oneof![
            1..5000_u32,
            65_500..65_600_u32,
            (1..=64_u32, 0..3_u32).prop_map(|(chunks, less)| chunks * CHUNK_BYTES as u32 - less),
            1..=(4_u32 << 20),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_part_of_any_block_reads_back(
            len in len(), ends in prop::array::uniform2(any::<prop::sample::Index>())
        ) {
            let [a, b] = ends.map(|end| end.index(len as usize) as u32);
            let (start, end) = (a.min(b), a.max(b) + 1);
            let data = data(len);
            let part = Part::new(len, start, end - start).unwrap();
            let found = read(&record(9, &data), 9, &part).unwrap();
            prop_assert!(found == data[start as usize..end as usize]);
        }

        #[test]
        fn a_changed_or_cut_record_never_gives_wrong_bytes(
            len in len(), ends in prop::array::uniform2(any::<prop::sample::Index>()),
            at in any::<prop::sample::Index>(), bit in 0..8_u32, cut in any::<bool>()
        ) {
            let [a, b] = ends.map(|end| end.index(len as usize) as u32);
            let (start, end) = (a.min(b), a.max(b) + 1);
            let data = data(len);
            let mut record = record(9, &data);
            let at = at.index(record.len());
            if cut { record.truncate(at) } else { record[at] ^= 1_u8 << bit }
            let part = Part::new(len, start, end - start).unwrap();
            if let Ok(found) = read(&record, 9, &part) {
                prop_assert!(found == data[start as usize..end as usize]);
            }
            if at < 60 {
                prop_assert!(read(&record, 9, &part).is_err());
            }
        }

        #[test]
        fn any_bytes_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode_header(&bytes);
        }
    }
}
