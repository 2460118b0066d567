//! A mapped file with 64-bit words for each block of a snapshot: one in slot tables and aliases, many in page tables. A
//! look-up is one load from the mapped file. A restart maps the file again.
//!
//! ```text
//!  0       8         16             48       52      60       64     72        80       4096              4096 + 8 b
//!  | magic | 1 | 0s  | snapshot[32]  | blocks | zeros | crc32c | lost | highest | zeros | word of block 0 | 1 | ... | zeros |
//!            version                   u32             of 0..60 u64    u64               u64
//! ```
//! Little-endian; the file is a multiple of 4 KiB long, at most 4 KiB + 8 bytes for each word of 2^32 blocks. The
//! drawing is of a table with one word for each block.
//!
//! The table is read through a read-only mapping and changed by `pwrite`. Both use the page cache, so a change is
//! visible immediately and outlives the process. On a disk that has become read-only or full, a store through the
//! mapping would raise SIGBUS; `pwrite` returns an error instead.
//!
//! A page that the disk cannot read appears as zeros (see `mapping`). Setting a word in it writes the whole page, which
//! repairs it if the disk accepts the write. The page's other words are then lost. `lost` is not zero from before that
//! write until the lost words have been searched for elsewhere. A new file has it set, too: it may replace another one,
//! or one that was deleted.
//!
//! `highest` is a number that the table's owner raises, 0 in a new table and in one of an earlier version.
//!
//! A table that exists is replaced only if it is damaged or belongs to another snapshot. If it cannot be opened for
//! another reason, such as a lack of memory, the next attempt finds it unchanged.
//!
//! Invariant: the mapping has the length that the file was created with. The file is never shortened while it is open.
#![expect(unsafe_code, reason = "reads the mapped file as atomics")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use larder_dataset::CacheId;
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, memfd_create};

use crate::folder::is_read_only;
use crate::mapping::Mapping;
use crate::whole_file::{PRIVATE_FILE, is_damaged, sync_parent};

const VERSION: u8 = 1;
const HEADER_BYTES: usize = 64;
/// The offset of `lost`, which records that words were lost.
const LOST_AT: u64 = HEADER_BYTES as u64;
/// The offset of `highest`.
const HIGHEST_AT: u64 = LOST_AT + 8;
const TABLE_AT: u64 = 4096;

/// The number of words in a page of the file.
pub(crate) const PAGE_WORDS: u32 = 4096 / 8;

/// A kind of table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The first bytes of the table's file, which identify the kind.
    pub(crate) magic: [u8; 8],
    /// The number of words for each block, a power of two of at most [`PAGE_WORDS`].
    pub(crate) words: u32,
    /// If true, the whole file is allocated when it is created. A full disk is then an error at that point and not at a
    /// later change.
    pub(crate) allocate: bool,
}

/// Whether a table existed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The table existed and is valid.
    Kept,
    /// The table was created. Its words count as lost until [`Table::found_lost_words`].
    Made,
}

/// Words for the blocks of a snapshot, initially 0. Any number of threads may look up and change words.
#[derive(Debug)]
pub(crate) struct Table {
    map: Mapping,
    blocks: u32,
    /// The number of words for each block.
    words: u32,
    /// Held while a word or the highest number is written: repairing a page rewrites its other words. Only threads that
    /// may wait for the disk take it.
    pub(crate) changing: Mutex<()>,
}

impl Table {
    /// Opens the table at `path`. Creates it if it is missing, damaged or belongs to another snapshot. On a read-only
    /// disk the table can be read, but no word can be set. Errors: an existing table cannot be opened now, or none can
    /// be made.
    pub(crate) fn open(path: &Path, kind: Kind, id: &CacheId, blocks: u32) -> io::Result<(Self, Found)> {
        match Self::open_existing(path, kind, id, blocks) {
            Ok(Some(table)) => Ok((table, Found::Kept)),
            Err(error) if error.kind() != io::ErrorKind::NotFound && !is_damaged(&error) => Err(error),
            Ok(None) | Err(_) => Ok((Self::map(make(path, kind, id, blocks)?, kind, blocks)?, Found::Made)),
        }
    }

    /// Opens the table at `path`. None if it belongs to another snapshot.
    pub(crate) fn open_existing(path: &Path, kind: Kind, id: &CacheId, blocks: u32) -> io::Result<Option<Self>> {
        let file = open_file(path)?;
        let is_whole = is_whole(&file, &encode_header(kind, id, blocks), file_bytes(kind, blocks))?;
        is_whole.then(|| Self::map(file, kind, blocks)).transpose()
    }

    /// A table for 0 blocks, in memory.
    pub(crate) fn none(kind: Kind) -> io::Result<Self> {
        let made = |flags: MemfdFlags| memfd_create("larder-table", MemfdFlags::CLOEXEC | flags);
        // A kernel before 6.3 rejects NOEXEC_SEAL; a hardened kernel requires it.
        let file = File::from(made(MemfdFlags::NOEXEC_SEAL).or_else(|_| made(MemfdFlags::empty()))?);
        file.set_len(file_bytes(kind, 0))?;
        Self::map(file, kind, 0)
    }

    fn map(file: File, kind: Kind, blocks: u32) -> io::Result<Self> {
        let len = usize::try_from(file_bytes(kind, blocks)).map_err(io::Error::other)?;
        Ok(Self { map: Mapping::new(file, len)?, blocks, words: kind.words, changing: Mutex::default() })
    }

    pub(crate) const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The word with this number; 0 if there is none. Those of block `b` begin at `b` times the words of a block.
    pub(crate) fn get(&self, word: u64) -> u64 {
        let Some(word) = usize::try_from(word).ok().and_then(|at| self.words().get(at)) else { return 0 };
        let word = word.load(Ordering::Relaxed);
        // An Acquire load is undefined behaviour on read-only memory. A relaxed load followed by a fence is defined
        // there, and costs the same.
        fence(Ordering::Acquire);
        u64::from_le(word)
    }

    /// Sets consecutive words from `first` on, all of one block. Blocks on the disk.
    pub(crate) fn set(&self, first: u64, words: &[u64]) -> io::Result<()> {
        let at = TABLE_AT + 8 * first;
        // The words of a block are in one page.
        let page = at / 4096 * 4096;
        let of_block = u64::from(self.words);
        let end = first.saturating_add(words.len() as u64);
        if end > self.len() || end > (first / of_block + 1) * of_block {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.map.file().write_all_at(&words, at) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                self.write_page(page, (at - page) as usize, &words)?
            }
            written => written?,
        }
        if self.is_damaged() {
            // The page is readable again, but the mapping may still show zeros in its place. If mapping it again fails,
            // its words appear absent until the next start.
            let _ = self.map.map_again(page as usize..page as usize + 4096);
        }
        Ok(())
    }

    /// Writes a whole page that contains only these words. A partial write would fail, because the kernel would first
    /// have to read the unreadable page.
    pub(crate) fn write_page(&self, page: u64, words_at: usize, words: &[u8]) -> io::Result<()> {
        self.map.file().write_all_at(&1_u64.to_le_bytes(), LOST_AT)?;
        let mut bytes = self.map.bytes()[page as usize..][..4096].to_vec();
        bytes[words_at..words_at + words.len()].copy_from_slice(words);
        self.map.file().write_all_at(&bytes, page)
    }

    /// True if the disk failed to read a part of the table. The words in that part appear absent.
    pub(crate) fn is_damaged(&self) -> bool {
        self.map.losses() > 0
    }

    /// True if words were lost and not recovered since.
    pub(crate) fn has_lost_words(&self) -> bool {
        self.map.bytes()[LOST_AT as usize..][..8] != [0; 8]
    }

    /// Notes that the lost words were searched for elsewhere.
    pub(crate) fn found_lost_words(&self) -> io::Result<()> {
        self.map.file().write_all_at(&0_u64.to_le_bytes(), LOST_AT)
    }

    /// The highest number that [`raise_highest`](Self::raise_highest) has stored.
    pub(crate) fn highest(&self) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&self.map.bytes()[HIGHEST_AT as usize..][..8]);
        u64::from_le_bytes(number)
    }

    /// Stores a number for the owner of the table, if it is higher than the one that is stored: threads take numbers in
    /// one order and may store them in another. Blocks on the disk.
    pub(crate) fn raise_highest(&self, number: u64) -> io::Result<()> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if number <= self.highest() {
            return Ok(());
        }
        self.map.file().write_all_at(&number.to_le_bytes(), HIGHEST_AT)
    }

    /// The next block from `from` on whose words may not all be 0. Skips the parts of the file that were never written.
    pub(crate) fn next_written(&self, from: u32) -> Option<u32> {
        let block_bytes = 8 * u64::from(self.words);
        let at = TABLE_AT + block_bytes * u64::from(from);
        match rustix::fs::seek(self.map.file(), SeekFrom::Data(at)) {
            Ok(data) => {
                let block = (data.max(at) - TABLE_AT) / block_bytes;
                u32::try_from(block).ok().filter(|&block| block < self.blocks)
            }
            Err(rustix::io::Errno::NXIO) => None,
            // The file system cannot report holes, so nothing is skipped.
            Err(_) => (from < self.blocks).then_some(from),
        }
    }

    /// Advises the kernel that the words of this many blocks from `from` on will be read soon.
    pub(crate) fn will_read(&self, from: u32, blocks: u32) {
        let block_bytes = 8 * self.words as usize;
        let at = TABLE_AT as usize + block_bytes * from as usize;
        self.map.will_read(at..at + block_bytes * blocks as usize);
    }

    /// Makes all words set so far survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.map.file().sync_data()
    }

    /// The number of words.
    fn len(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.words)
    }

    fn words(&self) -> &[AtomicU64] {
        let bytes = &self.map.bytes()[TABLE_AT as usize..];
        // SAFETY: the mapping starts at a page and the table 4096 bytes on, so it is aligned for u64; it is
        // `8 * len()` bytes at least, as `file_bytes` says, which a usize holds, since it was mapped; AtomicU64 has the
        // layout of u64, any bits are valid, and the memory is only read, with relaxed loads, which are defined on
        // read-only memory.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), self.len() as usize) }
    }
}

/// Opens the existing table, read-only if the disk does not allow writing.
fn open_file(path: &Path) -> io::Result<File> {
    let writable = OpenOptions::new().read(true).write(true).open(path);
    match &writable {
        Err(error) if is_read_only(error) => File::open(path),
        _ => writable,
    }
}

fn file_bytes(kind: Kind, blocks: u32) -> u64 {
    (TABLE_AT + 8 * u64::from(kind.words) * u64::from(blocks)).next_multiple_of(4096)
}

fn encode_header(kind: Kind, id: &CacheId, blocks: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&kind.magic);
    header[8] = VERSION;
    header[16..48].copy_from_slice(&id.0);
    header[48..52].copy_from_slice(&blocks.to_le_bytes());
    let crc = larder_dataset::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A table is valid if and only if its header equals the one that would be written now: no header field varies.
fn is_whole(file: &File, header: &[u8; HEADER_BYTES], bytes: u64) -> io::Result<bool> {
    if file.metadata()?.len() < bytes {
        return Ok(false);
    }
    let mut found = [0; HEADER_BYTES];
    file.read_exact_at(&mut found, 0)?;
    Ok(found == *header)
}

fn make(path: &Path, kind: Kind, id: &CacheId, blocks: u32) -> io::Result<File> {
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&fresh)?;
    file.set_len(file_bytes(kind, blocks))?;
    if kind.allocate {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, file_bytes(kind, blocks)) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    file.write_all_at(&encode_header(kind, id, blocks), 0)?;
    file.write_all_at(&1_u64.to_le_bytes(), LOST_AT)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    sync_parent(path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_table_in_memory_is_a_file_that_a_hardened_kernel_allows() {
        let table = Table::none(Kind { magic: *b"LARDERxx", words: 1, allocate: false }).unwrap();
        let mode = table.map.file().metadata().unwrap().permissions().mode();
        let is_known = memfd_create("probe", MemfdFlags::NOEXEC_SEAL).is_ok();
        assert_eq!(mode & 0o111 == 0, is_known, "{mode:o}");
    }
}
