//! Records in memory. A [`Draft`] collects the bytes of a block as they arrive; a [`Record`] is complete.
//!
//! Invariant: the bytes are aligned for direct I/O and never move. They go from this memory to the disk and to every
//! waiter without another copy.

use bytes::Bytes;
use larder_dataset::BlockIndex;

use crate::record::{self, ALIGN_BYTES, Header, KEY_BYTES};

/// A record in memory whose data is not complete yet.
#[derive(Debug)]
pub struct Draft {
    header: Header,
    /// Padding up to `start`, then the record so far. Allocated with its full capacity and never reallocated.
    memory: Vec<u8>,
    start: usize,
}

impl Draft {
    /// Allocates a record without data.
    pub fn new(header: Header) -> Self {
        let mut memory: Vec<u8> = Vec::with_capacity(record::extent_bytes(header.len) + ALIGN_BYTES);
        let start = memory.as_ptr().align_offset(ALIGN_BYTES);
        memory.resize(start + record::data_at(header.len), 0);
        Self { header, memory, start }
    }

    /// Bytes of data that are still missing.
    pub fn missing(&self) -> usize {
        self.start + record::data_at(self.header.len) + self.header.len as usize - self.memory.len()
    }

    /// The data received so far.
    pub fn so_far(&self) -> &[u8] {
        &self.memory[self.start + record::data_at(self.header.len)..]
    }

    /// Appends data. Returns the bytes beyond the block's length.
    pub fn push<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let (ours, rest) = data.split_at(data.len().min(self.missing()));
        self.memory.extend_from_slice(ours);
        rest
    }

    /// Completes the record. None if data is missing.
    pub fn seal(self) -> Option<Record> {
        (self.missing() == 0).then(|| self.finished())
    }

    fn finished(mut self) -> Record {
        let Self { header, start, .. } = self;
        self.memory.resize(start + record::extent_bytes(header.len), 0);
        let (head, data) = self.memory[start..].split_at_mut(record::data_at(header.len));
        record::encode_head(&header, head, &data[..header.len as usize]);
        Record { header, bytes: Bytes::from(self.memory).slice(start..) }
    }
}

/// A complete record in memory. Clones share its bytes.
#[derive(Clone, Debug)]
pub struct Record {
    header: Header,
    bytes: Bytes,
}

impl Record {
    /// Builds the record of a block whose bytes are all in memory. Like every block, it has 1 byte to 4 MiB.
    pub fn new(key: [u8; KEY_BYTES], block: BlockIndex, data: &[u8]) -> Self {
        let mut draft = Draft::new(Header { key, block, len: data.len() as u32 });
        draft.push(data);
        draft.finished()
    }

    /// The header: the block, its length, and its snapshot's key.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The block's bytes, without a copy.
    pub fn data(&self) -> Bytes {
        let at = record::data_at(self.header.len);
        self.bytes.slice(at..at + self.header.len as usize)
    }

    /// The whole record as it is written to the disk: header, checksums, data and padding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::CacheId;

    use super::*;

    #[test]
    fn a_draft_takes_its_data_in_any_pieces_and_no_more_and_lies_where_it_is_written_from() {
        let header = Header::new(&CacheId([0xa5; 32]), BlockIndex(3), 100_000);
        let data: Vec<u8> = (0..100_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
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
            let at_once = Record::new(header.key, header.block, &data);
            assert!(whole.data() == data && whole.as_bytes() == at_once.as_bytes());
        }
        let mut short = Draft::new(header);
        short.push(&data[1..]);
        assert!(short.seal().is_none());
    }
}
