//! Segments: append-only files that hold records, and the table of a dataset's segments. They may be on several disks.
//!
//! ```text
//!  00000001.seg                                      a segment of this snapshot
//!  00000002-<32 hex digits>.seg                      an adopted one: the digits are the key in its records
//! ```
//! An adopted segment was written for another snapshot of the same origin; it is a second link to the other snapshot's
//! file. No part of a file with several links is freed, because other datasets share it. Its disk space is free once
//! the last link is deleted.
//!
//! A segment has one number, whichever disk it is on. Where files on two disks have the same one, because they were
//! written under different tables, the file on the later disk gets another.
//!
//! Invariant: a place in a segment is written at most once, and a segment's number is not reused while a process runs.
//! A late reader therefore finds the record, zeros where it was freed, or no segment, but never another record in its
//! place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom};
use tracing::warn;

use crate::disk::Disk;
use crate::folder::{FileId, is_read_only};
use crate::record::{ALIGN_BYTES, KEY_BYTES, Part};
use crate::slots::Place;
use crate::whole_file::{PRIVATE_FILE, is_damaged, is_refused};

/// The folder of a dataset's segments on one disk.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFolder {
    pub(crate) path: PathBuf,
    pub(crate) disk: Arc<Disk>,
}

/// One segment file. Any number of threads may read and write it at given offsets.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u32,
    /// The key in the segment's records, if it was adopted from another snapshot.
    pub(crate) key: Option<[u8; KEY_BYTES]>,
    pub(crate) disk: Arc<Disk>,
    file: File,
    path: PathBuf,
    /// The number of records that have a slot or are being written. Changes only under the dataset's admission lock, or
    /// in the rebuild.
    live: AtomicU32,
}

impl Segment {
    pub(crate) fn create(folder: &SegmentFolder, number: u32) -> io::Result<Self> {
        let path = folder.path.join(file_name(number, None));
        Self::open_with(OpenOptions::new().create_new(true).mode(PRIVATE_FILE), path, (number, None), &folder.disk)
    }

    /// Links this segment of another snapshot, whose records have `key`, into `folder`, which is on the same disk.
    pub(crate) fn link(&self, folder: &SegmentFolder, number: u32, key: [u8; KEY_BYTES]) -> io::Result<Self> {
        let path = folder.path.join(file_name(number, Some(&key)));
        std::fs::hard_link(&self.path, &path)?;
        Self::open(path, (number, Some(key)), &folder.disk)
    }

    /// Opens a segment of an earlier run, read-only if the disk does not allow writing.
    fn open(path: PathBuf, name: Name, disk: &Arc<Disk>) -> io::Result<Self> {
        // Checked before the open, because opening a device or a pipe can have side effects.
        if !std::fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        match Self::open_with(&mut OpenOptions::new(), path.clone(), name, disk) {
            Err(error) if is_read_only(&error) => {
                let file = OpenOptions::new().read(true).custom_flags(direct_flag(disk)).open(&path)?;
                Ok(Self::new(name, disk, file, path))
            }
            opened => opened,
        }
    }

    fn open_with(options: &mut OpenOptions, path: PathBuf, name: Name, disk: &Arc<Disk>) -> io::Result<Self> {
        let file = options.read(true).write(true).custom_flags(direct_flag(disk)).open(&path)?;
        Ok(Self::new(name, disk, file, path))
    }

    fn new((number, key): Name, disk: &Arc<Disk>, file: File, path: PathBuf) -> Self {
        Self { number, key, disk: Arc::clone(disk), file, path, live: AtomicU32::new(0) }
    }

    /// Gives the file another number. No slot may point to it.
    fn renumber(mut self, number: u32) -> io::Result<Self> {
        let path = self.path.with_file_name(file_name(number, self.key.as_ref()));
        std::fs::rename(&self.path, &path)?;
        (self.number, self.path) = (number, path);
        Ok(self)
    }

    /// Fills `buffer` with the bytes that `part` needs of the record at `place`. False if the file is too short.
    /// Errors: also `TimedOut`, at once, if the disk does not answer.
    pub(crate) fn read(&self, place: Place, part: &Part, buffer: &mut [u8]) -> io::Result<bool> {
        if self.disk.is_silent() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (head, rest) = buffer.split_at_mut(part.head_bytes);
        Ok(self.read_whole(head, place.offset())? && self.read_whole(rest, place.offset() + part.from as u64)?)
    }

    /// Reads the first page of a record. False if the file is too short.
    pub(crate) fn read_head(&self, offset: u64, page: &mut [u8]) -> io::Result<bool> {
        self.read_whole(page, offset)
    }

    /// Where the next part of the file begins, from `offset` on, that has disk space. None if there is none.
    pub(crate) fn next_written(&self, offset: u64) -> Option<u64> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => Some(data / ALIGN_BYTES as u64 * ALIGN_BYTES as u64),
            Err(rustix::io::Errno::NXIO) => None,
            // The file system cannot report holes, so nothing is skipped.
            Err(_) => Some(offset),
        }
    }

    fn read_whole(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<bool> {
        while !buffer.is_empty() {
            match self.file.read_at(buffer, offset) {
                // A direct read returns part of a page only at the end of the file, and the kernel rejects a read that
                // continues there.
                Ok(read) if read == 0 || read % ALIGN_BYTES != 0 => return Ok(false),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Allocates disk space for the next records and extends the file. Writers that neither extend a file nor fill its
    /// holes need not wait for each other; on ext4 that allows two to four times as many writes. If the allocation
    /// fails, nothing changes here and the writes themselves will fail.
    pub(crate) fn prepare(&self, offset: u64, len: u64) {
        let _ = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len);
    }

    /// Frees the space from `offset` on that was allocated and not used. Call it only from the segment's writer, which
    /// knows that no record is there.
    pub(crate) fn cut(&self, offset: u64) -> io::Result<()> {
        self.file.set_len(offset)
    }

    /// Identifies the file across the links of several datasets.
    pub(crate) fn id(&self) -> io::Result<FileId> {
        Ok(FileId::of(&self.file.metadata()?))
    }

    /// True if the file system can free a part of the file.
    pub(crate) fn can_free(&self) -> bool {
        self.disk.abilities.free
    }

    /// True if other datasets may use records of this segment.
    pub(crate) fn is_shared(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 1)
    }

    pub(crate) fn write(&self, offset: u64, record: &[u8]) -> io::Result<()> {
        self.file.write_all_at(record, offset)
    }

    /// True if the file was deleted: bytes written to it disappear when the process closes it.
    pub(crate) fn is_deleted(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() == 0)
    }

    /// Frees the disk space of records, which then read as zeros. Does nothing if the segment is shared.
    pub(crate) fn free(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.is_shared()? {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }

    pub(crate) fn delete(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    pub(crate) fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(crate) fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn add_live(&self, records: u32) {
        self.live.fetch_add(records, Ordering::Relaxed);
    }

    /// Subtracts one live record. True if it was the last.
    pub(crate) fn drop_live(&self) -> bool {
        let before = self.live.load(Ordering::Relaxed);
        // A corrupt slot may name the wrong segment; the count must not wrap below 0.
        self.live.store(before.saturating_sub(1), Ordering::Relaxed);
        before == 1
    }
}

fn direct_flag(disk: &Disk) -> i32 {
    if disk.abilities.direct { libc::O_DIRECT } else { 0 }
}

/// A segment's number, and the key in its records if it was adopted.
type Name = (u32, Option<[u8; KEY_BYTES]>);

fn file_name(number: u32, key: Option<&[u8; KEY_BYTES]>) -> String {
    match key {
        Some(key) => {
            let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{number:08}-{hex}.seg")
        }
        None => format!("{number:08}.seg"),
    }
}

fn parse_name(name: &str) -> Option<Name> {
    let stem = name.strip_suffix(".seg")?;
    let (number, key) = match stem.split_once('-') {
        Some((number, hex)) => (number, Some(parse_key(hex)?)),
        None => (stem, None),
    };
    let number = number.parse().ok().filter(|&number| number <= Place::MAX_SEGMENT)?;
    Some((number, key))
}

fn parse_key(hex: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    if hex.len() != 2 * KEY_BYTES || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in key.iter_mut().zip((0..hex.len()).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(key)
}

/// True if the error of opening a segment means that its records are lost: it is gone, damaged, or, without an error of
/// the system, not a regular file.
fn is_lost(error: &io::Error) -> bool {
    error.raw_os_error().is_none() || error.kind() == io::ErrorKind::NotFound || is_damaged(error)
}

/// A segment file whose records are lost.
#[derive(Debug)]
pub(crate) struct LostSegment {
    pub(crate) number: u32,
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

/// The segments that were found in a dataset's folders.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) table: SegmentTable,
    pub(crate) lost: Vec<LostSegment>,
    /// Segments that have the number of another one, on another disk.
    pub(crate) twins: Vec<Segment>,
}

impl Opened {
    /// Gives twins numbers of their own, and returns the number for the next segment, which is above `highest`; None
    /// when all are used up. A twin that cannot be renamed is left alone: its blocks are fetched again.
    pub(crate) fn number_twins(&mut self, highest: u32) -> Option<u32> {
        let mut next = self.table.next_number(&self.lost, highest);
        for twin in std::mem::take(&mut self.twins) {
            let Some(number) = next else { break };
            match twin.renumber(number) {
                Ok(twin) => {
                    self.table.0.push(Arc::new(twin));
                    next = after(number);
                }
                Err(error) => warn!(%error, "a segment on another disk keeps a number that is taken, and is not used"),
            }
        }
        next
    }
}

/// The number after this one. None if it is the last.
pub(crate) fn after(number: u32) -> Option<u32> {
    (number < Place::MAX_SEGMENT).then_some(number + 1)
}

/// The segments of a dataset, sorted by number. Adding or deleting a segment replaces the whole table.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentTable(Vec<Arc<Segment>>);

impl SegmentTable {
    /// Opens all segments in the folders. Ignores other files. Errors: the first folder cannot be listed, or another
    /// one or a segment cannot be opened for a reason that says nothing about it, such as a lack of descriptors. If a
    /// disk fails to list another folder, it counts as away.
    pub(crate) fn open(folders: &[SegmentFolder]) -> io::Result<Opened> {
        let (mut segments, mut lost) = (Vec::new(), Vec::new());
        for (nth, folder) in folders.iter().enumerate() {
            let entries = match std::fs::read_dir(&folder.path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
                // The dataset was not opened since the disk was added.
                Err(error) if nth > 0 && error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if nth > 0 && !is_refused(&error) => {
                    warn!(dir = ?folder.path, %error, "cannot list blocks on a disk of the cache: they are fetched again");
                    continue;
                }
                entries => entries?,
            };
            for entry in entries {
                let Some(name) = entry.file_name().to_str().and_then(parse_name) else { continue };
                match Segment::open(entry.path(), name, &folder.disk) {
                    Ok(segment) => segments.push((nth, segment)),
                    Err(error) if is_lost(&error) => {
                        lost.push(LostSegment { number: name.0, path: entry.path(), error });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        // Of those with one number, the slot table is taken to mean the one on the earliest disk.
        segments.sort_by_key(|(nth, segment): &(usize, Segment)| (segment.number, *nth, segment.key));
        let (mut table, mut twins): (Vec<Arc<Segment>>, Vec<Segment>) = (Vec::new(), Vec::new());
        for (_, segment) in segments {
            match table.last().filter(|first| first.number == segment.number) {
                // Versions that ignore adopted segments reuse their numbers, so two segments may have the same one.
                Some(first) if Arc::ptr_eq(&first.disk, &segment.disk) => {
                    let error = io::Error::other("another segment has its number");
                    lost.push(LostSegment { number: segment.number, path: segment.path, error });
                }
                Some(_) => twins.push(segment),
                None => table.push(Arc::new(segment)),
            }
        }
        Ok(Opened { table: Self(table), lost, twins })
    }

    /// The segment's position in the table.
    pub(crate) fn position(&self, number: u32) -> Option<usize> {
        // Numbers usually have no gaps; the position is then the difference to the first number.
        let dense = number.checked_sub(self.0.first()?.number)? as usize;
        if self.0.get(dense).is_some_and(|segment| segment.number == number) {
            return Some(dense);
        }
        self.0.binary_search_by_key(&number, |segment| segment.number).ok()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Segment>> {
        self.position(number).map(|at| &self.0[at])
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.0.iter()
    }

    /// The number after the highest of these segments, the `lost` ones and those that are away. None when all numbers
    /// are used up.
    fn next_number(&self, lost: &[LostSegment], highest: u32) -> Option<u32> {
        let numbers = self.0.iter().map(|segment| segment.number).chain(lost.iter().map(|lost| lost.number));
        after(numbers.chain([highest]).max().unwrap_or_default())
    }

    pub(crate) fn with(&self, segment: Arc<Segment>) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        segments.sort_by_key(|segment| segment.number);
        Self(segments)
    }

    pub(crate) fn without(&self, number: u32) -> Self {
        Self(self.0.iter().filter(|segment| segment.number != number).cloned().collect())
    }
}
