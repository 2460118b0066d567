//! The slot table: for each block of a snapshot, where its record is. See `table` for the file.
//!
//! ```text
//!  slot: 0 = absent, else  bit 63 = 1 | bits 32..63 = segment number | bits 0..32 = offset in 4 KiB
//! ```
//!
//! A page that the disk cannot read shows no blocks. The first slot that is set in it mends it if the disk takes the
//! write; the other slots of the page are lost until the rebuild of a later start fetches them from the index; `lost`
//! in the file says so until that is done.
//!
//! Invariant: a slot may be stale or wrong: records name their own block.

use std::io;
use std::ops::Range;
use std::path::Path;

use larder_dataset::{BlockIndex, SnapshotId};

use crate::table::{Kind, PAGE_WORDS, Table};

pub(crate) use crate::table::Found;

/// A full disk is an error when the table is made, and an eviction can always be recorded.
const KIND: Kind = Kind { magic: *b"LRDRSLOT", allocate: true };
/// Slots that are read ahead of a walk through the table: 1 MiB.
const AHEAD_SLOTS: u32 = 128 << 10;
const PRESENT: u64 = 1 << 63;

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

/// A snapshot's slot table. Look-ups from any number of threads; changes from one at a time.
#[derive(Debug)]
pub(crate) struct Slots(Table);

impl Slots {
    /// Opens the table at `path`, or creates it if it is missing, unreadable or not this snapshot's. A table on a disk
    /// that is read-only can be read, and no slot of it can be set.
    pub(crate) fn open(path: &Path, snapshot: &SnapshotId, blocks: u32) -> io::Result<(Self, Found)> {
        let (table, found) = Table::open(path, KIND, snapshot, blocks)?;
        Ok((Self(table), found))
    }

    /// The table at `path`, if it is there and this snapshot's.
    pub(crate) fn open_existing(path: &Path, snapshot: &SnapshotId, blocks: u32) -> io::Result<Option<Self>> {
        Ok(Table::open_existing(path, KIND, snapshot, blocks)?.map(Self))
    }

    /// A table without slots, in memory: every look-up finds nothing.
    pub(crate) fn none() -> io::Result<Self> {
        Table::none().map(Self)
    }

    pub(crate) const fn blocks(&self) -> u32 {
        self.0.blocks()
    }

    /// Where the block's record is.
    pub(crate) fn get(&self, block: BlockIndex) -> Option<Place> {
        Place::from_slot(self.0.get(block.0))
    }

    pub(crate) fn set(&self, block: BlockIndex, place: Option<Place>) -> io::Result<()> {
        self.0.set(block.0, place.map_or(0, Place::to_slot))
    }

    /// True if the disk failed to read a part of the table: blocks in it are missing.
    pub(crate) fn is_damaged(&self) -> bool {
        self.0.is_damaged()
    }

    /// True if slots were lost and not looked up in the index since.
    pub(crate) fn has_lost_slots(&self) -> bool {
        self.0.has_lost_words()
    }

    /// Notes that what was lost has been looked up.
    pub(crate) fn found_lost_slots(&self) -> io::Result<()> {
        self.0.found_lost_words()
    }

    /// Loses all slots of a page but this one, as a disk that cannot read the page does.
    #[cfg(test)]
    pub(crate) fn write_page(&self, page: u64, slot_at: usize, slot: [u8; 8]) -> io::Result<()> {
        self.0.write_page(page, slot_at, slot)
    }

    /// The pages of slots from `from` on in which blocks might be present, in order.
    pub(crate) const fn pages(&self, from: u32) -> Pages<'_> {
        Pages { slots: self, next: Some(from) }
    }

    /// The blocks of a page that are present.
    pub(crate) fn present(&self, page: Range<u32>) -> impl Iterator<Item = (BlockIndex, Place)> {
        page.map(BlockIndex).filter_map(|block| Some((block, self.get(block)?)))
    }

    /// Makes all slots set so far outlive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A walk over the pages of a table. The kernel reads ahead of it.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    slots: &'a Slots,
    /// None after the last page.
    next: Option<u32>,
}

impl Pages<'_> {
    /// Where another walk would continue this one; none at its end.
    pub(crate) const fn rest(&self) -> Option<u32> {
        self.next
    }
}

impl Iterator for Pages<'_> {
    type Item = Range<u32>;

    fn next(&mut self) -> Option<Range<u32>> {
        let Self { slots, .. } = *self;
        let from = self.next.take()?;
        if from.is_multiple_of(AHEAD_SLOTS) {
            slots.0.will_read(from, 2 * AHEAD_SLOTS);
        }
        let first = slots.0.next_written(from)?;
        let end = first.saturating_add(PAGE_WORDS - first % PAGE_WORDS).min(slots.blocks());
        self.next = (end < slots.blocks()).then_some(end);
        Some(first..end)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::FileExt;

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
        let present: Vec<_> = slots.pages(0).flat_map(|page| slots.present(page)).collect();
        assert_eq!(present, [(BlockIndex(9_999), place(1, 2))]);
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
