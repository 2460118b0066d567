//! The files of another snapshot's cache, read by the dataset that adopts its blocks. The other dataset may be open and
//! changing: slots and records are read without its lock, and a record that does not verify is ignored.

use std::io;
use std::sync::Arc;

use larder_dataset::BlockIndex;

use crate::aliases::Aliases;
use crate::base::Base;
use crate::buffer;
use crate::config::FileSpan;
use crate::disk::Disk;
use crate::earlier::Earlier;
use crate::large_file::{LargeFile, LargeFiles};
use crate::lookup::PartBytes;
use crate::pages::PagePart;
use crate::record::{Header, KEY_BYTES, Part};
use crate::segment::{Segment, SegmentTable};
use crate::slots::{Place, Slots};

/// Another snapshot's cache.
#[derive(Debug)]
pub(super) struct Ancestor {
    pub(super) earlier: Arc<dyn Earlier>,
    key: [u8; KEY_BYTES],
    slots: Slots,
    segments: SegmentTable,
    pub(super) large: LargeFiles,
    aliases: Option<Aliases>,
}

/// Where a record is, and the key and block in its header.
pub(super) struct Located<'a> {
    pub(super) segment: &'a Arc<Segment>,
    pub(super) place: Place,
    pub(super) key: [u8; KEY_BYTES],
    pub(super) block: BlockIndex,
}

impl Ancestor {
    /// Opens the cache of `earlier`. None if the store has no cache of it.
    pub(super) fn open(base: &Base, earlier: Arc<dyn Earlier>) -> io::Result<Option<Self>> {
        let id = earlier.cache();
        let Some(folder) = base.folder.as_ref().map(|folder| folder.dataset(&id)) else { return Ok(None) };
        let slots = match Slots::open_existing(&folder.join("slots"), &id, earlier.blocks()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let Some(slots) = slots else { return Ok(None) };
        let folders = base.segment_folders(&id);
        let segments = SegmentTable::open(&folders)?.table;
        let large = LargeFiles::open(&folders, &id, earlier.blocks())?;
        let aliases = Aliases::open_existing(&folder.join("aliases"), &id, earlier.blocks())?;
        let key = Header::new(&id, BlockIndex(0), 1).key;
        Ok(Some(Self { earlier, key, slots, segments, large, aliases }))
    }

    /// The blocks of a file of the adopting dataset in the other snapshot.
    pub(super) fn span_of(&self, span: &FileSpan) -> Option<FileSpan> {
        Some(FileSpan { first: self.earlier.find(span.first)?, bytes: span.bytes })
    }

    /// True if a block of the other snapshot is in its large file.
    pub(super) fn is_in_file(&self, block: BlockIndex) -> bool {
        self.slots.get(block).is_some_and(Place::is_in_file)
    }

    /// The other cache's large file with a block of the adopting dataset, and its number there. `span` is the block's.
    fn file_of(&self, span: &FileSpan, block: BlockIndex) -> Option<(Arc<LargeFile>, BlockIndex)> {
        let block = self.earlier.find(block).filter(|&block| self.is_in_file(block))?;
        Some((self.large.find(&self.span_of(span)?).ok()??, block))
    }

    /// Finds the record of a block of the other snapshot.
    pub(super) fn locate(&self, block: BlockIndex) -> Option<Located<'_>> {
        let place = self.slots.get(block)?;
        let segment = self.segments.get(place.segment)?;
        let (key, block) = match segment.key {
            None => (self.key, block),
            Some(key) => (key, self.aliases.as_ref()?.get(block, &key)?),
        };
        Some(Located { segment, place, key, block })
    }

    /// True if the other cache has a copy of this block of the adopting dataset.
    pub(super) fn has(&self, block: BlockIndex) -> bool {
        let is_whole = |block| self.slots.get(block).is_some_and(|place| place.is_in_file() && !place.is_part());
        self.earlier.find(block).is_some_and(|block| is_whole(block) || self.locate(block).is_some())
    }

    /// The disk with the other cache's copy of this block of the adopting dataset.
    pub(super) fn disk_of(&self, block: BlockIndex) -> Option<Arc<Disk>> {
        let block = self.earlier.find(block)?;
        if self.is_in_file(block) {
            return self.large.disk_of(block).cloned();
        }
        let Located { segment, .. } = self.locate(block)?;
        Some(Arc::clone(&segment.disk))
    }

    /// Reads pages of a block of the adopting dataset into newly allocated memory, if they are in the other cache's
    /// large file. `span` is that of the block's file.
    pub(super) fn read_pages(&self, span: &FileSpan, block: BlockIndex, part: &PagePart) -> Option<PartBytes> {
        let (file, block) = self.file_of(span, block)?;
        let mut memory = vec![0; buffer::bytes_for(part.buffer_bytes())];
        let aligned = buffer::aligned(&memory, part.buffer_bytes());
        let begin = aligned.start;
        let found = file.read(block, part, &mut memory[aligned]).ok()?;
        Some(PartBytes::new(memory, begin + found.start..begin + found.end))
    }

    /// Reads bytes of a block of the adopting dataset into newly allocated memory, if the other cache has the block.
    pub(super) fn read(&self, block: BlockIndex, part: &Part) -> Option<PartBytes> {
        let Located { segment, place, key, block } = self.locate(self.earlier.find(block)?)?;
        let mut memory = vec![0; buffer::bytes_for(part.buffer_bytes())];
        let aligned = buffer::aligned(&memory, part.buffer_bytes());
        let begin = aligned.start;
        let buffer = &mut memory[aligned];
        if !segment.read(place, part, buffer).unwrap_or(false) {
            return None;
        }
        let found = part.check(&key, block, buffer).ok()?;
        Some(PartBytes::new(memory, begin + found.start..begin + found.end))
    }
}
