//! The segments of a dataset and the space in them.
//!
//! Its parts: [`Space`] is shared by readers and writers; it holds the table of segments, the folder, and the sizes.
//! [`Allocator`] is behind the admission lock; it decides where the next record goes and tracks the space that is no
//! longer needed. Each disk has a segment that is written to, so that disks are written to at the same time.
//!
//! Invariant, whenever the lock is free: a segment's live count is the number of its slots plus its writes in flight. A
//! segment with a live count of 0 that is not a current segment is being deleted.
//!
//! Freeing a part of a file locks the whole file in the kernel: the call waits for all direct reads and writes of that
//! file in flight, later ones wait for the call, and some file systems also wait for the disk. The write path avoids
//! that in three ways. Nothing is freed in the segment that is being written to while the amount is small. Evicting
//! policies have small segments, so that most evicted records lie in other segments. Records are freed in batches,
//! adjacent records in one call. FIFO evicts records in the order of their places, and so does LRU within an epoch, so
//! most of their segments are deleted whole.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use arc_swap::{ArcSwap, Guard};
use larder_dataset::BlockIndex;
use tracing::warn;

use crate::aliases::Aliases;
use crate::disk::Disk;
use crate::record::{self, Flaw, KEY_BYTES, Part};
use crate::segment::{LostSegment, Segment, SegmentFolder, SegmentTable, after};
use crate::slots::Place;

const PAGE: u64 = record::ALIGN_BYTES as u64;

/// The least space that is allocated ahead of the records. Otherwise it is a 16th of the reservation, so that a small
/// cache does not take many times its size.
const AHEAD_LEAST: u64 = 1 << 20;
const AHEAD_MOST: u64 = 64 << 20;

/// The least space that is freed in one batch. Otherwise a batch is a 64th of the reservation.
const BATCH_LEAST: u64 = 64 << 10;
const BATCH_MOST: u64 = 4 << 20;

/// Why a cached block cannot be read.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The record fails verification.
    Flaw(Flaw),
    /// The disk failed to read the record.
    Unreadable(io::Error),
}

/// The segments, as readers see them.
#[derive(Debug)]
pub(super) struct Space {
    segments: ArcSwap<SegmentTable>,
    /// None until a block is adopted.
    aliases: OnceLock<Aliases>,
    /// The segments that could not be opened.
    lost: Vec<LostSegment>,
    /// The folders, each on a disk of its own.
    folders: Vec<SegmentFolder>,
    /// A segment of this size is full.
    segment_bytes: u64,
    ahead_bytes: u64,
    batch_bytes: u64,
    /// One for each folder, held while dead records in it are freed.
    freeing: Vec<Mutex<()>>,
    /// One for each folder, held while a writer creates the next segment in it. Others that need one there wait for it.
    creating: Vec<Mutex<()>>,
}

/// Decides where the next record goes and tracks what must be freed. Only its methods change live counts.
#[derive(Debug)]
pub(super) struct Allocator {
    /// The segments being written to, at most one on each disk. None from a start until the first record is written.
    current: Vec<Current>,
    /// None when all numbers are used up.
    next_segment: Option<u32>,
    dead: Dead,
    garbage: Vec<Garbage>,
}

#[derive(Debug)]
struct Current {
    segment: Arc<Segment>,
    next_page: u32,
    /// Up to this offset, the file has its disk space, or a writer is allocating it.
    prepared_bytes: u64,
    dead: Dead,
}

/// Records that have left the cache and still occupy disk space.
#[derive(Debug, Default)]
struct Dead {
    records: Vec<(Place, u64)>,
    bytes: u64,
}

/// Where a record goes.
pub(super) struct Allotment {
    pub(super) segment: Arc<Segment>,
    pub(super) place: Place,
    /// The part of the file that the record's writer allocates before it writes.
    pub(super) prepare: Option<Range<u64>>,
}

/// Unused disk space, freed without holding the lock.
#[derive(Debug)]
pub(super) enum Garbage {
    /// Adjacent dead records.
    Records { segment: Arc<Segment>, offset: u64, bytes: u64 },
    /// Space that was allocated ahead and not used.
    Tail { segment: Arc<Segment>, offset: u64 },
    /// A whole segment without live records.
    Segment(Arc<Segment>),
}

impl Space {
    /// Opens the segments in `folders`. Without a folder there are no segments and no space. A cache that `evicts` gets
    /// small segments. `highest`: the highest number that a segment has had, even if its disk is away now.
    pub(super) fn open(
        folders: Vec<SegmentFolder>,
        aliases: Option<Aliases>,
        highest: u32,
        segment_bytes: u64,
        reservation_bytes: u64,
        evicts: bool,
    ) -> io::Result<(Self, Allocator)> {
        let mut opened = SegmentTable::open(&folders)?;
        let next_segment = if folders.is_empty() { None } else { opened.number_twins(highest) };
        let share = reservation_bytes / 16 / folders.len().max(1) as u64;
        let space = Self {
            segments: ArcSwap::from_pointee(opened.table),
            aliases: aliases.map(OnceLock::from).unwrap_or_default(),
            lost: opened.lost,
            freeing: folders.iter().map(|_| Mutex::new(())).collect(),
            creating: folders.iter().map(|_| Mutex::new(())).collect(),
            folders,
            segment_bytes: if evicts { segment_bytes.min(share.max(AHEAD_LEAST)) } else { segment_bytes },
            ahead_bytes: share.clamp(AHEAD_LEAST, AHEAD_MOST),
            batch_bytes: (reservation_bytes / 64).clamp(BATCH_LEAST, BATCH_MOST),
        };
        Ok((space, Allocator { current: Vec::new(), next_segment, dead: Dead::default(), garbage: Vec::new() }))
    }

    /// The segments that could not be opened. The blocks in them are lost.
    pub(super) fn lost(&self) -> &[LostSegment] {
        &self.lost
    }

    pub(super) fn segments(&self) -> Guard<Arc<SegmentTable>> {
        self.segments.load()
    }

    /// The disks of the folders, in their order.
    pub(super) fn disks(&self) -> impl Iterator<Item = &Arc<Disk>> + Clone {
        self.folders.iter().map(|folder| &folder.disk)
    }

    /// True if the disk with the tables also has this segment.
    pub(super) fn is_beside_tables(&self, segment: &Segment) -> bool {
        self.folders.first().is_some_and(|first| Arc::ptr_eq(&first.disk, &segment.disk))
    }

    /// Waits until no other thread frees dead records on a disk, which bounds the dead space. None if there are other
    /// disks, and this one holds writers or is busy with that: a writer for another must not wait for it.
    pub(super) fn turn_to_free(&self, disk: &Arc<Disk>) -> Option<MutexGuard<'_, ()>> {
        let freeing = self.freeing.get(self.position(disk)?)?;
        match freeing.try_lock() {
            _ if disk.holds_writers() => None,
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if self.folders.len() > 1 => None,
            Err(TryLockError::WouldBlock) => Some(freeing.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    pub(super) fn creating(&self, disk: &Arc<Disk>) -> Option<&Mutex<()>> {
        self.creating.get(self.position(disk)?)
    }

    fn position(&self, disk: &Arc<Disk>) -> Option<usize> {
        self.disks().position(|other| Arc::ptr_eq(other, disk))
    }

    /// Fills `buffer` as `part` requires and returns the range of the part's bytes in it. `segment` is the one that
    /// `place` names.
    pub(super) fn read(
        &self,
        segment: Option<&Arc<Segment>>,
        key: &[u8; KEY_BYTES],
        block: BlockIndex,
        place: Place,
        part: &Part,
        buffer: &mut [u8],
    ) -> Result<Range<usize>, Trouble> {
        // A missing segment was deleted with the last of its records.
        let segment = segment.ok_or(Trouble::Flaw(Flaw::Torn))?;
        let (key, block) = match &segment.key {
            None => (key, block),
            Some(other) => (other, self.alias(block, other).ok_or(Trouble::Flaw(Flaw::Foreign))?),
        };
        match segment.read(place, part, buffer) {
            Ok(true) => part.check(key, block, buffer).map_err(Trouble::Flaw),
            Ok(false) => Err(Trouble::Flaw(Flaw::Torn)),
            Err(error) => Err(Trouble::Unreadable(error)),
        }
    }

    /// Makes the records of this run survive a power loss. Only these: records of earlier runs were written long ago.
    /// Errors: the disk with the tables fails. Another disk that fails loses its own blocks only.
    pub(super) fn sync(&self) -> io::Result<()> {
        let segments = self.segments.load();
        let mut unsynced = None;
        for segment in segments.iter().filter(|segment| !segment.disk.is_silent()) {
            match segment.sync() {
                Err(error) if !self.is_beside_tables(segment) => unsynced = Some((segment.disk.dir(), error)),
                synced => synced?,
            }
        }
        if let Some((dir, error)) = unsynced {
            warn!(?dir, %error, "cannot sync the blocks on a disk of the cache");
        }
        self.aliases.get().map_or(Ok(()), Aliases::sync)
    }

    /// The block that the record of an adopted block names in its header.
    pub(super) fn alias(&self, block: BlockIndex, key: &[u8; KEY_BYTES]) -> Option<BlockIndex> {
        self.aliases.get()?.get(block, key)
    }

    /// Returns the aliases; `open` opens or creates them on the first call.
    pub(super) fn aliases(&self, open: impl FnOnce() -> io::Result<Aliases>) -> io::Result<&Aliases> {
        if self.aliases.get().is_none() {
            // Only the adoption thread sets the aliases, so the value cannot be set already.
            let _ = self.aliases.set(open()?);
        }
        self.aliases.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// True if the record at this place was written for another snapshot.
    pub(super) fn is_adopted(&self, place: Place) -> bool {
        self.segments.load().get(place.segment).is_some_and(|segment| segment.key.is_some())
    }

    /// Calls `create` to make the file of a segment in the folder on a disk. Blocks on the disk.
    pub(super) fn create(
        &self,
        disk: &Arc<Disk>,
        number: u32,
        create: impl Fn(&SegmentFolder, u32) -> io::Result<Segment>,
    ) -> io::Result<Segment> {
        let folder = self.folders.iter().find(|folder| Arc::ptr_eq(&folder.disk, disk));
        create(folder.ok_or(io::ErrorKind::NotFound)?, number)
    }
}

impl Allocator {
    /// True if the current segment on a disk has room for a record of `extent` bytes.
    pub(super) fn has_room(&self, space: &Space, disk: &Arc<Disk>, extent: usize) -> bool {
        self.current.iter().any(|current| current.is_on(disk) && current.fits(space, extent))
    }

    /// Allocates a place for a record of `extent` bytes on a disk. The record counts as live from now on. None if a
    /// segment must be started for it.
    pub(super) fn allocate(&mut self, space: &Space, disk: &Arc<Disk>, extent: usize) -> Option<Allotment> {
        let current = self.current.iter_mut().find(|current| current.is_on(disk) && current.fits(space, extent))?;
        let (place, end) = (Place { segment: current.segment.number, page: current.next_page }, current.end(extent));
        let prepare = (end > current.prepared_bytes).then(|| {
            let to = (current.prepared_bytes + space.ahead_bytes).min(space.segment_bytes / PAGE * PAGE).max(end);
            std::mem::replace(&mut current.prepared_bytes, to)..to
        });
        // The cast cannot truncate: a record is at most 4 MiB and 8 KiB, and a segment ends long before 2^32 pages.
        current.next_page += (extent as u64 / PAGE) as u32;
        current.segment.add_live(1);
        Some(Allotment { segment: Arc::clone(&current.segment), place, prepare })
    }

    /// Takes the number of the next segment. Errors: all are used up.
    pub(super) fn take_number(&mut self) -> io::Result<u32> {
        let number = self.next_segment.ok_or_else(|| io::Error::other("all segment numbers are used up"))?;
        self.next_segment = after(number);
        Ok(number)
    }

    /// Makes an empty segment the current one on its disk.
    pub(super) fn start(&mut self, space: &Space, segment: Arc<Segment>) {
        self.leave(space, |current| current.is_on(&segment.disk));
        self.add(space, &segment);
        self.current.push(Current { segment, next_page: 0, prepared_bytes: 0, dead: Dead::default() });
    }

    /// Adds a segment to those that readers see.
    pub(super) fn add(&mut self, space: &Space, segment: &Arc<Segment>) {
        space.segments.store(Arc::new(space.segments.load().with(Arc::clone(segment))));
    }

    /// True if new records go to this segment.
    pub(super) fn is_current(&self, segment: u32) -> bool {
        self.current.iter().any(|current| current.segment.number == segment)
    }

    /// Stops writing to the segment with this number, if it is current.
    pub(super) fn leave_current(&mut self, space: &Space, segment: u32) {
        self.leave(space, |current| current.segment.number == segment);
    }

    /// Stops writing to all current segments.
    pub(super) fn leave_all(&mut self, space: &Space) {
        self.leave(space, |_| true);
    }

    fn leave(&mut self, space: &Space, is_left: impl Fn(&Current) -> bool) {
        let (left, current): (Vec<Current>, Vec<Current>) =
            std::mem::take(&mut self.current).into_iter().partition(is_left);
        self.current = current;
        for Current { segment, next_page, prepared_bytes, dead } in left {
            let offset = Place { segment: segment.number, page: next_page }.offset();
            if segment.live() == 0 {
                self.delete(space, segment);
                continue;
            }
            self.dead.append(dead);
            if prepared_bytes > offset {
                self.garbage.push(Garbage::Tail { segment, offset });
            }
        }
    }

    /// Retires a record that is no longer needed. Its space is freed soon if the length of its block is certain, and
    /// otherwise with its segment.
    pub(super) fn retire(&mut self, space: &Space, place: Place, len: Option<u32>) {
        let Some(segment) = space.segments.load().get(place.segment).cloned() else { return };
        let is_current = self.is_current(place.segment);
        if segment.drop_live() && !is_current {
            self.delete(space, segment);
            return;
        }
        let Some(len) = len.filter(|_| segment.can_free()) else { return };
        match self.current.iter_mut().find(|current| current.segment.number == place.segment) {
            Some(current) => {
                current.dead.push(place, len);
                if current.dead.bytes >= space.ahead_bytes {
                    self.dead.append(std::mem::take(&mut current.dead));
                }
            }
            None => self.dead.push(place, len),
        }
    }

    /// Deletes a segment without live records.
    pub(super) fn delete(&mut self, space: &Space, segment: Arc<Segment>) {
        space.segments.store(Arc::new(space.segments.load().without(segment.number)));
        self.garbage.push(Garbage::Segment(segment));
    }

    /// Takes the tails and whole segments to free, except for those on disks that hold writers; freeing these blocks no
    /// writer. Also returns whether a batch of dead records is due.
    pub(super) fn take_whole(&mut self, space: &Space) -> (Vec<Garbage>, bool) {
        let (waiting, whole): (Vec<Garbage>, Vec<Garbage>) =
            std::mem::take(&mut self.garbage).into_iter().partition(|garbage| garbage.disk().holds_writers());
        self.garbage = waiting;
        (whole, self.dead.bytes >= space.batch_bytes)
    }

    /// Takes the dead records on a disk if the dead records fill a batch, or `all` of them. Adjacent records are merged.
    pub(super) fn take_dead(&mut self, space: &Space, disk: &Arc<Disk>, all: bool) -> Vec<Garbage> {
        if all {
            for current in self.current.iter_mut().filter(|current| current.is_on(disk)) {
                self.dead.append(std::mem::take(&mut current.dead));
            }
        }
        if !all && self.dead.bytes < space.batch_bytes {
            return Vec::new();
        }
        let segments = space.segments.load();
        let is_here = |(place, _): &(Place, u64)| {
            segments.get(place.segment).is_none_or(|segment| Arc::ptr_eq(&segment.disk, disk))
        };
        let (mut records, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.dead).records.into_iter().partition(is_here);
        self.dead = Dead::of(others);
        records.sort_unstable();
        let mut garbage: Vec<Garbage> = Vec::new();
        for (place, len) in records {
            if let Some(Garbage::Records { segment, offset, bytes }) = garbage.last_mut()
                && segment.number == place.segment
                && *offset + *bytes == place.offset()
            {
                *bytes += len;
            } else if let Some(segment) = segments.get(place.segment) {
                garbage.push(Garbage::Records { segment: Arc::clone(segment), offset: place.offset(), bytes: len });
            }
        }
        garbage
    }
}

impl Current {
    /// Where the next record would end.
    fn end(&self, extent: usize) -> u64 {
        u64::from(self.next_page) * PAGE + extent as u64
    }

    fn is_on(&self, disk: &Arc<Disk>) -> bool {
        Arc::ptr_eq(&self.segment.disk, disk)
    }

    fn fits(&self, space: &Space, extent: usize) -> bool {
        self.next_page == 0 || self.end(extent) <= space.segment_bytes
    }
}

impl Dead {
    fn of(records: Vec<(Place, u64)>) -> Self {
        let bytes = records.iter().map(|(_, bytes)| bytes).sum();
        Self { records, bytes }
    }

    fn push(&mut self, place: Place, len: u32) {
        let bytes = record::extent_bytes(len) as u64;
        self.records.push((place, bytes));
        self.bytes += bytes;
    }

    fn append(&mut self, mut more: Self) {
        self.records.append(&mut more.records);
        self.bytes += more.bytes;
    }
}

impl Garbage {
    /// The disk with the space.
    pub(super) fn disk(&self) -> &Arc<Disk> {
        match self {
            Self::Records { segment, .. } | Self::Tail { segment, .. } | Self::Segment(segment) => &segment.disk,
        }
    }

    /// Frees the space. Blocks on the disk.
    pub(super) fn free(&self) -> io::Result<()> {
        match self {
            Self::Records { segment, offset, bytes } => segment.free(*offset, *bytes),
            Self::Tail { segment, offset } => segment.cut(*offset),
            Self::Segment(segment) => match segment.delete() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                deleted => deleted,
            },
        }
    }
}
