//! Records in memory. A [`Draft`] collects the bytes of a block as they arrive; a [`Record`] is complete. One for a
//! block of a large file is bare: it has the block's bytes alone.
//!
//! Invariant: the bytes are aligned for direct I/O and never move. They go from this memory to the disk and to every
//! waiter without another copy.

use bytes::Bytes;
use larder_dataset::BlockIndex;

use crate::memory::RecordMemory;
use crate::record::{self, ALIGN_BYTES, Header, KEY_BYTES};

/// A record in memory whose data is not complete yet.
#[derive(Debug)]
pub struct Draft {
    header: Header,
    /// Padding up to `start`, then the record so far. It has its full capacity from the start.
    memory: RecordMemory,
    start: usize,
    /// Where the data begins in the record; 0 if it is bare.
    data_at: usize,
}

impl Draft {
    /// Allocates a record without data.
    pub fn new(header: Header) -> Self {
        Self::with_data_at(header, record::data_at(header.len))
    }

    /// Allocates a bare record without data.
    pub(crate) fn bare(header: Header) -> Self {
        Self::with_data_at(header, 0)
    }

    fn with_data_at(header: Header, data_at: usize) -> Self {
        let extent = (data_at + header.len as usize).next_multiple_of(ALIGN_BYTES);
        let mut memory = RecordMemory::new(extent);
        let start = memory.bytes.as_ptr().align_offset(ALIGN_BYTES);
        memory.bytes.resize(start + data_at, 0);
        Self { header, memory, start, data_at }
    }

    /// Bytes of data that are still missing.
    pub fn missing(&self) -> usize {
        self.start + self.data_at + self.header.len as usize - self.memory.bytes.len()
    }

    /// The data received so far.
    pub fn so_far(&self) -> &[u8] {
        &self.memory.bytes[self.start + self.data_at..]
    }

    /// Appends data. Returns the bytes beyond the block's length.
    pub fn push<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let (ours, rest) = data.split_at(data.len().min(self.missing()));
        self.memory.bytes.extend_from_slice(ours);
        rest
    }

    /// Completes the record. None if data is missing.
    pub fn seal(self) -> Option<Record> {
        (self.missing() == 0).then(|| self.finished())
    }

    fn finished(self) -> Record {
        let Self { header, mut memory, start, data_at } = self;
        memory.bytes.resize(start + (data_at + header.len as usize).next_multiple_of(ALIGN_BYTES), 0);
        if data_at > 0 {
            let (head, data) = memory.bytes[start..].split_at_mut(data_at);
            record::encode_head(&header, head, &data[..header.len as usize]);
        }
        Record { header, bytes: Bytes::from_owner(memory).slice(start..), data_at }
    }
}

/// A complete record in memory. Clones share its bytes.
#[derive(Clone, Debug)]
pub struct Record {
    header: Header,
    bytes: Bytes,
    data_at: usize,
}

impl Record {
    /// Builds the record of a block whose bytes are all in memory. Like every block, it has 1 byte to 4 MiB.
    pub fn new(key: [u8; KEY_BYTES], block: BlockIndex, data: &[u8]) -> Self {
        Self::of(Draft::new(Header { key, block, len: data.len() as u32 }), data)
    }

    /// Completes a draft at once.
    pub(crate) fn of(mut draft: Draft, data: &[u8]) -> Self {
        draft.push(data);
        draft.finished()
    }

    /// True if the record is to be written to a large file.
    pub(crate) const fn is_bare(&self) -> bool {
        self.data_at == 0
    }

    /// The header: the block, its length, and its snapshot's key.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The block's bytes, without a copy.
    pub fn data(&self) -> Bytes {
        self.bytes.slice(self.data_at..self.data_at + self.header.len as usize)
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
        let bare = Record::of(Draft::bare(header), &data);
        assert_eq!((bare.as_bytes().as_ptr().addr() % ALIGN_BYTES, bare.as_bytes().len()), (0, 102_400));
        assert!(bare.is_bare() && bare.data() == data && bare.as_bytes()[100_000..].iter().all(|&byte| byte == 0));
        let mut short = Draft::new(header);
        short.push(&data[1..]);
        assert!(short.seal().is_none());
    }
}
