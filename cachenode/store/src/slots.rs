//! The slot table: for each block of a snapshot, where its record is. A look-up is one load from a mapped file; a restart
//! maps the file again.
//!
//! ```text
//!  0          8         16             48       52      60       64        4096        4096 + 8 b
//!  | LRDRSLOT | 1 | 0s  | snapshot[32]  | blocks | zeros | crc32c | zeros ... | slot of block 0 | 1 | ... | zeros |
//!               version                   u32             of 0..60              u64
//!
//!  slot: 0 = absent, else  bit 63 = 1 | bits 32..63 = segment number | bits 0..32 = offset in 4 KiB
//! ```
//! Little-endian; the file is a multiple of 4 KiB long, at most 4 KiB + 8 bytes for each of 2^32 blocks.
//!
//! The table is read through a read-only mapping and changed by `pwrite`: both use the page cache, so that a change is
//! visible at once and outlives the process. On a disk that has become read-only or full, a store through the mapping
//! would be a SIGBUS; a `pwrite` is an error.
//!
//! A page that the disk cannot read shows no blocks (see `mapping`). The first slot that is set in it writes it whole, which
//! mends it if the disk takes the write; the other slots of the page are lost until the rebuild of a later start fetches them
//! from the index.
//!
//! Invariant: the mapping has the length that the file was created with, and the file is never shortened while it is
//! open. A slot may be stale or wrong: records name their own block.
#![expect(unsafe_code, reason = "reads the mapped file as atomics")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use larder_dataset::{BlockIndex, SnapshotId};

use crate::folder::{self, is_read_only};
use crate::mapping::Mapping;

const MAGIC: [u8; 8] = *b"LRDRSLOT";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 64;
const TABLE_AT: u64 = 4096;
/// Slots that are read ahead of a walk through the table: 1 MiB.
const AHEAD_SLOTS: u32 = 128 << 10;
const PRESENT: u64 = 1 << 63;

/// Slots in a page of the file.
pub(crate) const PAGE_SLOTS: u32 = 4096 / 8;

/// Where a record starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The segment's number, below 2^31.
    pub(crate) segment: u32,
    /// Offset in the segment, in 4 KiB.
    pub(crate) page: u32,
}

impl Place {
    pub(crate) const MAX_SEGMENT: u32 = (1 << 31) - 1;

    pub(crate) const fn offset(self) -> u64 {
        self.page as u64 * 4096
    }

    const fn to_slot(self) -> u64 {
        PRESENT | (self.segment as u64) << 32 | self.page as u64
    }

    const fn from_slot(slot: u64) -> Option<Self> {
        // Truncations on purpose: the two halves.
        if slot & PRESENT == 0 {
            None
        } else {
            Some(Self { segment: (slot >> 32) as u32 & Self::MAX_SEGMENT, page: slot as u32 })
        }
    }
}

/// Whether a table was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It was there.
    Kept,
    /// It was created; `replaced` if there was one that did not fit.
    Made { replaced: bool },
}

/// A snapshot's slot table. Look-ups from any number of threads; changes from one at a time.
#[derive(Debug)]
pub(crate) struct Slots {
    map: Mapping,
    blocks: u32,
}

impl Slots {
    /// Opens the table at `path`, or creates it if it is missing, unreadable or not this snapshot's. A table on a disk that is
    /// read-only can be read, and no slot of it can be set.
    pub(crate) fn open(path: &Path, snapshot: &SnapshotId, blocks: u32) -> io::Result<(Self, Found)> {
        let header = encode_header(snapshot, blocks);
        let opened = open_file(path);
        let (file, found) = match opened {
            Ok(file) if is_whole(&file, &header, blocks).unwrap_or(false) => (file, Found::Kept),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (make(path, &header, blocks)?, Found::Made { replaced: false })
            }
            Ok(_) | Err(_) => (make(path, &header, blocks)?, Found::Made { replaced: true }),
        };
        let len = usize::try_from(file_bytes(blocks)).map_err(io::Error::other)?;
        Ok((Self { map: Mapping::new(file, len)?, blocks }, found))
    }

    /// A table without slots, in memory: every look-up finds nothing.
    pub(crate) fn none() -> io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("larder-slots", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len(file_bytes(0))?;
        Ok(Self { map: Mapping::new(file, TABLE_AT as usize)?, blocks: 0 })
    }

    pub(crate) const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Where the block's record is.
    pub(crate) fn get(&self, block: BlockIndex) -> Option<Place> {
        let slot = self.table().get(block.0 as usize)?.load(Ordering::Relaxed);
        // A load with Acquire is not defined on read-only memory; a relaxed load and a fence are, and cost the same.
        fence(Ordering::Acquire);
        Place::from_slot(u64::from_le(slot))
    }

    pub(crate) fn set(&self, block: BlockIndex, place: Option<Place>) -> io::Result<()> {
        if block.0 >= self.blocks {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slot = place.map_or(0, Place::to_slot).to_le_bytes();
        let at = TABLE_AT + 8 * u64::from(block.0);
        let page = at / 4096 * 4096;
        match self.map.file().write_all_at(&slot, at) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                self.write_page(page, (at - page) as usize, slot)?
            }
            written => written?,
        }
        if self.is_damaged() {
            // The page can be read now, and the mapping may still show zeros in its place. If so, and it stays that way, the block is
            // missing until the next start.
            let _ = self.map.map_again(page as usize..page as usize + 4096);
        }
        Ok(())
    }

    /// Writes a slot with all of its page: a part of it cannot be written if the page cannot be read.
    fn write_page(&self, page: u64, slot_at: usize, slot: [u8; 8]) -> io::Result<()> {
        let mut bytes = self.map.bytes()[page as usize..][..4096].to_vec();
        bytes[slot_at..slot_at + 8].copy_from_slice(&slot);
        self.map.file().write_all_at(&bytes, page)
    }

    /// True if the disk failed to read a part of the table: blocks in it are missing.
    pub(crate) fn is_damaged(&self) -> bool {
        self.map.losses() > 0
    }

    /// Tells the kernel that the slots from `from` on are walked through.
    pub(crate) fn will_walk(&self, from: u32) {
        if from.is_multiple_of(AHEAD_SLOTS) {
            let at = TABLE_AT as usize + 8 * from as usize;
            self.map.will_read(at..at + 2 * 8 * AHEAD_SLOTS as usize);
        }
    }

    /// The next block from `from` on that might be present: skips the parts of the file that were never written.
    pub(crate) fn next_written(&self, from: u32) -> Option<u32> {
        let at = TABLE_AT + 8 * u64::from(from);
        match rustix::fs::seek(self.map.file(), rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => u32::try_from((data.max(at) - TABLE_AT) / 8).ok().filter(|&block| block < self.blocks),
            Err(rustix::io::Errno::NXIO) => None,
            // The file system does not know.
            Err(_) => (from < self.blocks).then_some(from),
        }
    }

    /// Appends the blocks that are present in the next page of slots from `from` on. Returns where to continue.
    pub(crate) fn page_of_present(&self, from: u32, present: &mut Vec<BlockIndex>) -> Option<u32> {
        let from = self.next_written(from)?;
        let end = from.saturating_add(PAGE_SLOTS - from % PAGE_SLOTS).min(self.blocks);
        present.extend((from..end).map(BlockIndex).filter(|&block| self.get(block).is_some()));
        (end < self.blocks).then_some(end)
    }

    /// Makes all slots set so far outlive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.map.file().sync_data()
    }

    fn table(&self) -> &[AtomicU64] {
        let bytes = &self.map.bytes()[TABLE_AT as usize..];
        // SAFETY: the mapping starts at a page and the table 4096 bytes on, so it is aligned for u64; it is
        // `8 * blocks` bytes at least, as `file_bytes` says; AtomicU64 has the layout of u64, any bits are valid, and
        // the memory is only read, with relaxed loads, which are defined on read-only memory.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), self.blocks as usize) }
    }
}

/// The existing table; for reading only if the disk does not allow more.
fn open_file(path: &Path) -> io::Result<File> {
    let writable = OpenOptions::new().read(true).write(true).open(path);
    match &writable {
        Err(error) if is_read_only(error) => File::open(path),
        _ => writable,
    }
}

fn file_bytes(blocks: u32) -> u64 {
    (TABLE_AT + 8 * u64::from(blocks)).next_multiple_of(4096)
}

fn encode_header(snapshot: &SnapshotId, blocks: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8] = VERSION;
    header[16..48].copy_from_slice(&snapshot.0);
    header[48..52].copy_from_slice(&blocks.to_le_bytes());
    let crc = larder_dataset::crc32c(&header[..60]);
    header[60..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A table fits if and only if its header is the one that would be written now: nothing in it varies.
fn is_whole(file: &File, header: &[u8; HEADER_BYTES], blocks: u32) -> io::Result<bool> {
    if file.metadata()?.len() < file_bytes(blocks) {
        return Ok(false);
    }
    let mut found = [0; HEADER_BYTES];
    file.read_exact_at(&mut found, 0)?;
    Ok(found == *header)
}

/// Allocates room for the whole table, so that a full disk is an error here and an eviction can always be recorded.
fn make(path: &Path, header: &[u8; HEADER_BYTES], blocks: u32) -> io::Result<File> {
    let fresh = path.with_extension("new");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&fresh)?;
    file.set_len(file_bytes(blocks))?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, file_bytes(blocks)) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(error) => return Err(error.into()),
    }
    file.write_all_at(header, 0)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    folder::sync_parent(path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: SnapshotId = SnapshotId([0x5a; 32]);

    fn place(segment: u32, page: u32) -> Place {
        Place { segment, page }
    }

    #[test]
    fn golden_file_is_still_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slots");
        let (slots, _) = Slots::open(&path, &SNAPSHOT, 3).unwrap();
        slots.set(BlockIndex(1), Some(place(Place::MAX_SEGMENT, 7))).unwrap();
        slots.set(BlockIndex(2), Some(place(1, u32::MAX))).unwrap();
        let made = std::fs::read(&path).unwrap();
        let golden = format!("{}/golden/v1.slots", std::env::var("CARGO_MANIFEST_DIR").unwrap());
        if std::env::var_os("LARDER_WRITE_GOLDEN").is_some() {
            std::fs::write(&golden, &made).unwrap();
        }
        assert_eq!(std::fs::read(&golden).unwrap(), made, "the format changed: raise the version, add a golden file");
        std::fs::copy(&golden, &path).unwrap();
        let (slots, found) = Slots::open(&path, &SNAPSHOT, 3).unwrap();
        assert_eq!(found, Found::Kept);
        let all: Vec<_> = (0..4).map(|block| slots.get(BlockIndex(block))).collect();
        assert_eq!(all, [None, Some(place(Place::MAX_SEGMENT, 7)), Some(place(1, u32::MAX)), None]);
    }

    #[test]
    fn a_change_is_seen_at_once_and_after_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slots");
        let (slots, found) = Slots::open(&path, &SNAPSHOT, 10_000).unwrap();
        assert_eq!(found, Found::Made { replaced: false });
        slots.set(BlockIndex(9_999), Some(place(1, 2))).unwrap();
        assert_eq!(slots.get(BlockIndex(9_999)), Some(place(1, 2)));
        slots.set(BlockIndex(10_000), Some(place(1, 2))).unwrap_err();
        drop(slots);
        let (slots, found) = Slots::open(&path, &SNAPSHOT, 10_000).unwrap();
        assert_eq!((found, slots.get(BlockIndex(9_999))), (Found::Kept, Some(place(1, 2))));
        assert!(slots.next_written(0).unwrap() <= 9_999);
        slots.set(BlockIndex(9_999), None).unwrap();
        assert_eq!(slots.get(BlockIndex(9_999)), None);
    }

    #[test]
    fn a_table_that_is_cut_off_garbage_or_anothers_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slots");
        let spoil: [&dyn Fn(&File); 3] =
            [&|file| file.set_len(5000).unwrap(), &|file| file.set_len(0).unwrap(), &|file| {
                file.write_all_at(&[1], 20).unwrap()
            }];
        for spoil in spoil {
            let (slots, _) = Slots::open(&path, &SNAPSHOT, 1000).unwrap();
            slots.set(BlockIndex(1), Some(place(1, 1))).unwrap();
            drop(slots);
            spoil(&OpenOptions::new().write(true).open(&path).unwrap());
            let (slots, found) = Slots::open(&path, &SNAPSHOT, 1000).unwrap();
            assert_eq!((found, slots.get(BlockIndex(1))), (Found::Made { replaced: true }, None));
        }
        for (snapshot, blocks) in [(SnapshotId([1; 32]), 1000), (SNAPSHOT, 1001)] {
            Slots::open(&path, &SNAPSHOT, 1000).unwrap();
            assert_eq!(Slots::open(&path, &snapshot, blocks).unwrap().1, Found::Made { replaced: true });
        }
    }
}
