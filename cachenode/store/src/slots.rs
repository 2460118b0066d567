//! The slot table: the place of each block's record. The file's layout is described in `table`.
//!
//! ```text
//!  slot: 0 = absent, else  bit 63 = 1 | bits 32..63 = segment number | bits 0..32 = offset in 4 KiB
//! ```
//!
//! If the disk cannot read a page of the table, its blocks appear absent. Setting a slot rewrites the whole page, which
//! repairs it if the disk accepts the write. The page's other slots are then lost until the rebuild after a later start
//! restores them from the index. Until then, `lost` in the file records the loss, as it does in a new table.
//!
//! Invariant: a slot may be stale or wrong, and does no harm: each record names its own block.

use std::io;
use std::ops::Range;
use std::path::Path;

use larder_dataset::{BlockIndex, CacheId};

use crate::table::{Kind, PAGE_WORDS, Table};

pub(crate) use crate::table::Found;

/// The file is fully allocated when it is created. A full disk is an error then, and later an eviction can always be
/// recorded.
const KIND: Kind = Kind { magic: *b"LRDRSLOT", allocate: true };
/// The number of slots that are read ahead of a walk through the table: 1 MiB.
const AHEAD_SLOTS: u32 = 128 << 10;
const PRESENT: u64 = 1 << 63;

/// The place of a record: where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The segment's number, below 2^31.
    pub(crate) segment: u32,
    /// The record's offset in the segment, in units of 4 KiB.
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
        // The casts truncate on purpose: they split the word into its halves.
        if slot & PRESENT == 0 {
            None
        } else {
            Some(Self { segment: (slot >> 32) as u32 & Self::MAX_SEGMENT, page: slot as u32 })
        }
    }
}

/// A snapshot's slot table. Any number of threads may look up and change slots.
#[derive(Debug)]
pub(crate) struct Slots(pub(crate) Table);

impl Slots {
    /// Opens the table at `path`. Creates it if it is missing, damaged or belongs to another snapshot. On a read-only
    /// disk the table can be read, but no slot can be set.
    pub(crate) fn open(path: &Path, id: &CacheId, blocks: u32) -> io::Result<(Self, Found)> {
        let (table, found) = Table::open(path, KIND, id, blocks)?;
        Ok((Self(table), found))
    }

    /// Opens the table at `path` if it exists and belongs to this snapshot.
    pub(crate) fn open_existing(path: &Path, id: &CacheId, blocks: u32) -> io::Result<Option<Self>> {
        Ok(Table::open_existing(path, KIND, id, blocks)?.map(Self))
    }

    /// An empty table in memory: every look-up finds nothing.
    pub(crate) fn none() -> io::Result<Self> {
        Table::none().map(Self)
    }

    pub(crate) const fn blocks(&self) -> u32 {
        self.0.blocks()
    }

    /// The place of the block's record. None if the block is not cached.
    pub(crate) fn get(&self, block: BlockIndex) -> Option<Place> {
        Place::from_slot(self.0.get(block.0))
    }

    /// Sets the slot of a block. Blocks on the disk.
    pub(crate) fn set(&self, block: BlockIndex, place: Option<Place>) -> io::Result<()> {
        self.0.set(block.0, place.map_or(0, Place::to_slot))
    }

    /// True if the disk failed to read a part of the table. The blocks in that part appear absent.
    pub(crate) fn is_damaged(&self) -> bool {
        self.0.is_damaged()
    }

    /// True if slots were lost and the index was not yet searched for them.
    pub(crate) fn has_lost_slots(&self) -> bool {
        self.0.has_lost_words()
    }

    /// Notes that the lost slots were restored from the index.
    pub(crate) fn found_lost_slots(&self) -> io::Result<()> {
        self.0.found_lost_words()
    }

    /// The highest number that a segment has had. Its file may be on a disk that is away now.
    pub(crate) fn highest_segment(&self) -> u32 {
        u32::try_from(self.0.highest()).ok().filter(|&number| number <= Place::MAX_SEGMENT).unwrap_or_default()
    }

    /// Records the number of a new segment. Blocks on the disk.
    pub(crate) fn raise_highest_segment(&self, number: u32) -> io::Result<()> {
        self.0.raise_highest(number.into())
    }

    /// Overwrites a page with a single slot, which loses its other slots as an unreadable page does.
    #[cfg(test)]
    pub(crate) fn write_page(&self, page: u64, slot_at: usize, slot: [u8; 8]) -> io::Result<()> {
        self.0.write_page(page, slot_at, slot)
    }

    /// The pages of slots from `from` on that may contain blocks, in order.
    pub(crate) const fn pages(&self, from: u32) -> Pages<'_> {
        Pages { slots: self, next: Some(from) }
    }

    /// The blocks of a page that have a slot, with their places.
    pub(crate) fn present(&self, page: Range<u32>) -> impl Iterator<Item = (BlockIndex, Place)> {
        page.map(BlockIndex).filter_map(|block| Some((block, self.get(block)?)))
    }

    /// Makes all slots set so far survive a power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A walk over the pages of a table. The kernel reads ahead of the walk.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    slots: &'a Slots,
    /// The next slot to visit; None after the last page.
    next: Option<u32>,
}

impl Pages<'_> {
    /// Where a later walk can continue this one. None at the end of the table.
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

    const SNAPSHOT: CacheId = CacheId([0x5a; 32]);

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
        assert!(slots.has_lost_slots(), "nobody has looked for them yet");
        slots.found_lost_slots().unwrap();
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
        assert_eq!(found, Found::Made);
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
    fn the_highest_segment_is_the_highest_one_in_whatever_order_they_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slots");
        let (slots, _) = Slots::open(&path, &SNAPSHOT, 1000).unwrap();
        for (number, highest) in [(1, 1), (3, 3), (2, 3), (4, 4)] {
            slots.raise_highest_segment(number).unwrap();
            assert_eq!(slots.highest_segment(), highest);
        }
        assert_eq!(Slots::open(&path, &SNAPSHOT, 1000).unwrap().0.highest_segment(), 4);
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
            assert_eq!((found, slots.get(BlockIndex(1))), (Found::Made, None));
            assert!(slots.has_lost_slots());
        }
        for (id, blocks) in [(CacheId([1; 32]), 1000), (SNAPSHOT, 1001)] {
            Slots::open(&path, &SNAPSHOT, 1000).unwrap();
            assert_eq!(Slots::open(&path, &id, blocks).unwrap().1, Found::Made);
        }
    }

    #[test]
    fn a_table_that_cannot_be_opened_for_another_reason_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let [path, itself] = ["slots", "itself"].map(|name| dir.path().join(name));
        let (slots, _) = Slots::open(&path, &SNAPSHOT, 1000).unwrap();
        slots.set(BlockIndex(1), Some(place(1, 1))).unwrap();
        // Opening a link to itself fails with ELOOP, which says nothing about the table behind it.
        std::os::unix::fs::symlink(&itself, &itself).unwrap();
        let error = Slots::open(&itself, &SNAPSHOT, 1000).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        assert!(std::fs::symlink_metadata(&itself).unwrap().is_symlink(), "nothing was put in its place");
        for (errno, replaces) in [
            (libc::EIO, true),
            (libc::EUCLEAN, true),
            (libc::ENOMEM, false),
            (libc::EMFILE, false),
            (libc::ENFILE, false),
            (libc::EAGAIN, false),
            (libc::EPERM, false),
            (libc::EACCES, false),
            (libc::EINTR, false),
        ] {
            assert_eq!(crate::whole_file::is_damaged(&io::Error::from_raw_os_error(errno)), replaces, "{errno}");
        }
        assert!(!crate::whole_file::is_damaged(&io::Error::other("too many mapped files")));
    }
}
