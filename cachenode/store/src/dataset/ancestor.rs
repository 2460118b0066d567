//! The files of another snapshot's cache, read by the dataset that adopts its blocks. The other dataset may be open and
//! changing: slots and records are read without its lock, and a record that does not verify is ignored.

use std::io;
use std::sync::Arc;

use larder_dataset::BlockIndex;

use crate::aliases::Aliases;
use crate::base::Base;
use crate::buffer;
use crate::disk::Disk;
use crate::earlier::Earlier;
use crate::lookup::PartBytes;
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
        let segments = SegmentTable::open(&base.segment_folders(&id))?.table;
        let aliases = Aliases::open_existing(&folder.join("aliases"), &id, earlier.blocks())?;
        let key = Header::new(&id, BlockIndex(0), 1).key;
        Ok(Some(Self { earlier, key, slots, segments, aliases }))
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
        self.earlier.find(block).and_then(|block| self.locate(block)).is_some()
    }

    /// The disk with the other cache's copy of this block of the adopting dataset.
    pub(super) fn disk_of(&self, block: BlockIndex) -> Option<&Arc<Disk>> {
        let Located { segment, .. } = self.locate(self.earlier.find(block)?)?;
        Some(&segment.disk)
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
