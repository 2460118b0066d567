//! The table of a dataset's pages on one disk: which pages of its large files the disk has, with their checksums. The
//! file's layout is described in `table`.
//!
//! ```text
//!  word 256 b + p, of page p of block b:  0 = not held, else  bit 63 = 1 | bits 0..32 = CRC-32 of the page's bytes
//! ```
//! A page has 16 KiB; the last one of a file has the rest. Blocks of other files have no words, and the file is sparse:
//! only its parts that hold words take disk space, 2 KiB for a block of 4 MiB.
//!
//! Invariant: a word is set after its page was written, and cleared before the space of the page is freed. After a
//! kill, a page without its word is fetched again. After a power loss, a word may outlive its page, which then fails
//! verification.

use std::io;
use std::ops::Range;
use std::path::Path;

use larder_dataset::{BLOCK_BYTES, BlockIndex, CacheId};

use crate::table::{Kind, Table};

const KIND: Kind = Kind { magic: *b"LRDRPAGE", words: PAGES, allocate: false };

/// The number of bytes that one word covers.
pub(crate) const PAGE_BYTES: u32 = 16 << 10;

/// The number of pages in a whole block.
const PAGES: u32 = BLOCK_BYTES as u32 / PAGE_BYTES;

const HELD: u64 = 1 << 63;

/// The pages of a dataset's large files on one disk. Any number of threads may look up.
#[derive(Debug)]
pub(crate) struct Pages(Table);

impl Pages {
    /// Opens the table at `path`. Creates it if it is missing, damaged or belongs to another snapshot.
    pub(crate) fn open(path: &Path, id: &CacheId, blocks: u32) -> io::Result<Self> {
        Table::open(path, KIND, id, blocks).map(|(table, _)| Self(table))
    }

    /// Opens the table at `path` if it exists and belongs to this snapshot.
    pub(crate) fn open_existing(path: &Path, id: &CacheId, blocks: u32) -> io::Result<Option<Self>> {
        match Table::open_existing(path, KIND, id, blocks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(opened?.map(Self)),
        }
    }

    /// The checksum of a page. None if the page is not held.
    pub(crate) fn crc(&self, block: BlockIndex, page: u32) -> Option<u32> {
        let word = self.0.get(word_of(block, page));
        // The cast keeps the lower 32 bits, which are the checksum.
        (word & HELD != 0).then_some(word as u32)
    }

    /// True if all of these pages of a block are held.
    pub(crate) fn holds(&self, block: BlockIndex, mut pages: Range<u32>) -> bool {
        pages.all(|page| self.crc(block, page).is_some())
    }

    /// True if a page of the block is held.
    pub(crate) fn holds_any(&self, block: BlockIndex) -> bool {
        (0..PAGES).any(|page| self.crc(block, page).is_some())
    }

    /// The next block from `from` on of which a page is held.
    pub(crate) fn next_held(&self, from: BlockIndex) -> Option<BlockIndex> {
        let mut from = from.0;
        loop {
            let block = BlockIndex(self.0.next_written(from)?);
            if self.holds_any(block) {
                return Some(block);
            }
            from = block.0.checked_add(1)?;
        }
    }

    /// Shows consecutive pages of a block as held, from page `first` on. `bytes` are theirs. Blocks on the disk.
    pub(crate) fn set(&self, block: BlockIndex, first: u32, bytes: &[u8]) -> io::Result<()> {
        let word = |page: &[u8]| HELD | u64::from(crc32fast::hash(page));
        let words: Vec<u64> = bytes.chunks(PAGE_BYTES as usize).map(word).collect();
        self.0.set(word_of(block, first), &words)
    }

    /// Shows those pages of a block as held that `other` shows of its block `of`, which has the same bytes. Blocks on
    /// the disk.
    pub(crate) fn copy(&self, block: BlockIndex, other: &Self, of: BlockIndex) -> io::Result<()> {
        let words: Vec<u64> = (0..PAGES).map(|page| other.0.get(word_of(of, page))).collect();
        let mut first = 0;
        for run in words.chunk_by(|one, next| (one & HELD) == (next & HELD)) {
            if run.iter().all(|word| word & HELD != 0) {
                self.0.set(word_of(block, first), run)?;
            }
            first += run.len() as u32;
        }
        Ok(())
    }

    /// Shows these pages of a block as not held. Blocks on the disk.
    pub(crate) fn clear(&self, block: BlockIndex, pages: Range<u32>) -> io::Result<()> {
        if pages.clone().any(|page| self.crc(block, page).is_some()) {
            self.0.set(word_of(block, pages.start), &vec![0; pages.len()])?;
        }
        Ok(())
    }

    /// Shows all pages of a block as not held. Blocks on the disk.
    pub(crate) fn clear_all(&self, block: BlockIndex) -> io::Result<()> {
        self.clear(block, 0..PAGES)
    }

    /// Makes all words set so far survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

fn word_of(block: BlockIndex, page: u32) -> u64 {
    u64::from(block.0) * u64::from(PAGES) + u64::from(page)
}

/// The number of pages of a block of `len` bytes.
pub(crate) const fn page_count(len: u32) -> u32 {
    len.div_ceil(PAGE_BYTES)
}

/// A part of a block, and the pages that it lies in. A buffer for it holds these pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PagePart {
    block_len: u32,
    start: u32,
    len: u32,
    pub(crate) pages: Range<u32>,
}

impl PagePart {
    /// The part of `len` bytes from `start` of a block. None if it is empty or not within the block.
    pub(crate) fn new(block_len: u32, start: u32, len: u32) -> Option<Self> {
        let end = start.checked_add(len)?;
        let fits = len > 0 && end <= block_len && u64::from(block_len) <= BLOCK_BYTES;
        fits.then(|| Self { block_len, start, len, pages: start / PAGE_BYTES..page_count(end) })
    }

    /// The length of the block.
    pub(crate) const fn block_len(&self) -> u32 {
        self.block_len
    }

    /// Where the first page begins in the block.
    pub(crate) const fn begin(&self) -> u32 {
        self.pages.start * PAGE_BYTES
    }

    /// The size of buffer that the part needs.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.pages.len() * PAGE_BYTES as usize
    }

    /// The bytes of a page in the buffer.
    pub(crate) fn in_buffer(&self, page: u32) -> Range<usize> {
        let (begin, end) = (page * PAGE_BYTES, ((page + 1) * PAGE_BYTES).min(self.block_len));
        (begin - self.begin()) as usize..(end - self.begin()) as usize
    }

    /// The bytes of the part in the buffer.
    pub(crate) fn range(&self) -> Range<usize> {
        let begin = (self.start - self.begin()) as usize;
        begin..begin + self.len as usize
    }

    /// The number of bytes in the buffer that are the file's.
    pub(crate) fn filled_bytes(&self) -> usize {
        self.in_buffer(self.pages.end - 1).end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: CacheId = CacheId([0x5a; 32]);
    const BLOCK: u32 = BLOCK_BYTES as u32;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn a_word_has_the_layout_that_is_documented() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pages");
        let pages = Pages::open(&path, &SNAPSHOT, 2).unwrap();
        pages.set(BlockIndex(1), 3, b"123456789").unwrap();
        let made = std::fs::read(&path).unwrap();
        assert_eq!(made.len(), 4096 + 2 * 2048);
        assert_eq!((&made[..9], &made[48..52]), (&b"LRDRPAGE\x01"[..], &2_u32.to_le_bytes()[..]));
        // The check value of CRC-32.
        let word = [0x26, 0x39, 0xf4, 0xcb, 0, 0, 0, 0x80];
        let at = 4096 + 8 * (256 + 3);
        assert_eq!(made[at..at + 8], word);
        assert!(made[4096..at].iter().chain(&made[at + 8..]).all(|&byte| byte == 0));
        drop(pages);
        let pages = Pages::open_existing(&path, &SNAPSHOT, 2).unwrap().unwrap();
        assert_eq!((pages.crc(BlockIndex(1), 3), pages.crc(BlockIndex(0), 3)), (Some(0xcbf4_3926), None));
    }

    #[test]
    fn a_page_is_held_from_when_it_is_set_until_it_is_cleared_whatever_process_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pages");
        assert!(Pages::open_existing(&path, &SNAPSHOT, 1000).unwrap().is_none());
        let pages = Pages::open(&path, &SNAPSHOT, 1000).unwrap();
        let block = BlockIndex(700);
        assert_eq!(pages.next_held(BlockIndex(0)), None);
        pages.set(block, 254, &bytes(2 * PAGE_BYTES as usize)).unwrap();
        pages.set(block, 255, &bytes(2 * PAGE_BYTES as usize)).unwrap_err();
        pages.set(BlockIndex(1000), 0, &bytes(1)).unwrap_err();
        drop(pages);
        let pages = Pages::open(&path, &SNAPSHOT, 1000).unwrap();
        assert!(pages.holds(block, 254..256) && pages.holds_any(block) && !pages.holds(block, 253..256));
        assert_eq!((pages.next_held(BlockIndex(0)), pages.next_held(BlockIndex(701))), (Some(block), None));
        assert_eq!(pages.crc(block, 254), Some(crc32fast::hash(&bytes(PAGE_BYTES as usize))));
        pages.clear(block, 254..255).unwrap();
        assert!(!pages.holds(block, 254..255) && pages.holds(block, 255..256));
        pages.clear_all(block).unwrap();
        assert!(!pages.holds_any(block));
        assert_eq!(pages.next_held(BlockIndex(0)), None);
        assert!(Pages::open_existing(&path, &CacheId([1; 32]), 1000).unwrap().is_none());
    }

    #[test]
    fn pages_of_another_table_are_added_to_those_that_are_held() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| Pages::open(&dir.path().join(name), &SNAPSHOT, 10).unwrap());
        let page = bytes(PAGE_BYTES as usize);
        ours.set(BlockIndex(1), 0, &page).unwrap();
        for first in [3, 200] {
            theirs.set(BlockIndex(4), first, &[&page[..], &page[..]].concat()).unwrap();
        }
        ours.copy(BlockIndex(1), &theirs, BlockIndex(4)).unwrap();
        let held: Vec<u32> = (0..PAGES).filter(|&page| ours.crc(BlockIndex(1), page).is_some()).collect();
        assert_eq!(held, [0, 3, 4, 200, 201]);
    }

    #[test]
    fn a_part_needs_the_pages_that_it_touches() {
        let part = |start, len| PagePart::new(BLOCK, start, len).unwrap();
        let one = part(PAGE_BYTES, 1);
        assert_eq!((one.pages.clone(), one.begin(), one.buffer_bytes(), one.range()), (1..2, 16_384, 16_384, 0..1));
        let across = part(PAGE_BYTES - 1, 2);
        assert_eq!((across.pages.clone(), across.begin(), across.range()), (0..2, 0, 16_383..16_385));
        assert_eq!((across.in_buffer(1), across.filled_bytes()), (16_384..32_768, 32_768));
        let last = PagePart::new(20_000, 17_000, 3000).unwrap();
        assert_eq!((last.pages.clone(), last.range(), last.filled_bytes()), (1..2, 616..3616, 3616));
        for (block_len, start, len) in [(5, 0, 0), (5, 5, 1), (5, 0, 6), (5, u32::MAX, 2), (u32::MAX, 0, 1), (0, 0, 0)]
        {
            assert_eq!(PagePart::new(block_len, start, len), None);
        }
    }
}
