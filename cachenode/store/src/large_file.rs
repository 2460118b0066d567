//! Large files: those of three blocks or more. The cache has one file for each, with its bytes at their own offsets.
//!
//! ```text
//!  datasets/<cache>/files/000002a8      the file whose first block has this number, in hex; sparse while it fills
//!  datasets/<cache>/pages               see `pages`: which pages of these files are there
//! ```
//! A file is on one disk. Its pages are in the table on that disk, and the slots of its blocks say that they are in it.
//! A snapshot that adopts blocks of another one links the file and copies the words of its pages. Each of the two may
//! then add pages, since both write the same bytes to the same place; neither frees any.
//!
//! Files of one or two blocks are records in segments: a file, an inode and a page of the table of their own would take
//! more of the disk than a record's header does, and more than is counted for a block ([`disk_bytes`]).
//!
//! The kernel may read a file by itself once all of it is there ([`LargeFile::lend`]). The file then has an attribute
//! with the id of the machine's boot, and no part of it is freed before the next one: readers may have the file open
//! for longer than any process of Larder runs.
//!
//! Its parts: [`LargeFile`] is an open one; [`LargeFiles`] are those of a dataset, of which some are open.
//!
//! Invariant: bytes are verified against the page table whenever they are read. A page is written before its word, and
//! a word is cleared before the page is freed. Callers see to it that only one thread changes a block.
//!
//! [`disk_bytes`]: crate::disk_bytes

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, SystemTime};

use larder_dataset::{BlockIndex, CacheId};
use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};
use tracing::warn;

use crate::buffer;
use crate::config::FileSpan;
use crate::disk::{self, Disk};
use crate::folder::{FileId, is_read_only};
use crate::pages::{PAGE_BYTES, PagePart, Pages, page_count};
use crate::record::ALIGN_BYTES;
use crate::segment::SegmentFolder;
use crate::whole_file::{PRIVATE_FILE, is_damaged};

/// The fewest blocks of a large file.
const BLOCKS_LEAST: u64 = 3;

/// The most files of a dataset that are open between two uses.
const OPEN_MOST: usize = 256;

/// The attribute of a file that the kernel reads by itself. Its value is the boot during which it does.
const LENT: &str = "user.larder.lent";

/// The size of a boot's id, in hexadecimal digits and hyphens.
const BOOT_ID_BYTES: usize = 36;

/// The pause between two attempts to make a file while another thread makes one.
const MAKE_PAUSE: Duration = Duration::from_millis(1);

/// The most bytes that a check reads at once.
const CHECKED_BYTES: u32 = 1 << 20;

/// A file as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    id: FileId,
    /// When it was made, if that is known: another file may get the number of one that was deleted.
    made: Option<SystemTime>,
    /// How often it was found cut off by another process: it has its size again, and zeros where bytes were.
    cuts: u32,
}

/// Why pages cannot be read.
#[derive(Debug)]
pub(crate) enum PageTrouble {
    /// A page is not held.
    NotHeld,
    /// The bytes of a page have changed, or the file is cut off.
    Wrong,
    /// The disk failed to read.
    Unreadable(io::Error),
}

/// An open large file. Any number of threads may read it.
#[derive(Debug)]
pub(crate) struct LargeFile {
    pub(crate) span: FileSpan,
    pub(crate) disk: Arc<Disk>,
    pub(crate) pages: Arc<Pages>,
    file: File,
    path: PathBuf,
    /// Set by each use; a file that was not used for a while is closed first.
    was_used: AtomicBool,
}

impl LargeFile {
    /// Opens a file, read-only if the disk does not allow writing. Errors: `NotFound` also if it is not a regular file.
    fn open(path: PathBuf, span: FileSpan, disk: &Arc<Disk>, pages: &Arc<Pages>) -> io::Result<Self> {
        // Checked before the open, because opening a device or a pipe can have side effects.
        if !std::fs::symlink_metadata(&path)?.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let flags = if disk.abilities.direct { libc::O_DIRECT } else { 0 };
        let open = |is_writable: bool| OpenOptions::new().read(true).write(is_writable).custom_flags(flags).open(&path);
        let file = match open(true) {
            Err(error) if is_read_only(&error) => open(false)?,
            opened => {
                let file = opened?;
                // Another process has changed it. Pages that were cut off then fail verification.
                if note_cut(&file, &span, disk)? {
                    file.set_len(span.bytes)?;
                }
                file
            }
        };
        let (disk, pages) = (Arc::clone(disk), Arc::clone(pages));
        Ok(Self { span, disk, pages, file, path, was_used: AtomicBool::new(true) })
    }

    /// Fills `buffer` with the pages of a part of a block and verifies them. Returns the range of the part's bytes.
    pub(crate) fn read(
        &self,
        block: BlockIndex,
        part: &PagePart,
        buffer: &mut [u8],
    ) -> Result<Range<usize>, PageTrouble> {
        if !self.span.contains(block) || self.span.len_of(block) != part.block_len() {
            return Err(PageTrouble::NotHeld);
        }
        if !self.pages.holds(block, part.pages.clone()) {
            return Err(PageTrouble::NotHeld);
        }
        if self.disk.is_silent() {
            return Err(PageTrouble::Unreadable(io::ErrorKind::TimedOut.into()));
        }
        let offset = self.span.offset_of(block) + u64::from(part.begin());
        let filled = self.read_at(&mut buffer[..part.buffer_bytes()], offset).map_err(PageTrouble::Unreadable)?;
        if filled < part.filled_bytes() {
            return Err(PageTrouble::Wrong);
        }
        for page in part.pages.clone() {
            match self.pages.crc(block, page) {
                Some(crc) if crc32fast::hash(&buffer[part.in_buffer(page)]) == crc => {}
                Some(_) => return Err(PageTrouble::Wrong),
                None => return Err(PageTrouble::NotHeld),
            }
        }
        Ok(part.range())
    }

    /// Reads until the buffer is full or the file ends.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                // A direct read returns part of a page only at the end of the file, and the kernel rejects a read that
                // continues there.
                Ok(read) if read == 0 || read % ALIGN_BYTES != 0 => return Ok(filled + read),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Writes pages of a block from `start` on and shows them as held. `bytes` begin at a multiple of 4 KiB of memory;
    /// the first `len` of them are the block's, and as many zeros follow as fill 4 KiB.
    pub(crate) fn write(&self, block: BlockIndex, start: u32, len: usize, bytes: &[u8]) -> io::Result<()> {
        note_cut(&self.file, &self.span, &self.disk)?;
        let offset = self.span.offset_of(block) + u64::from(start);
        if len > PAGE_BYTES as usize {
            // Writers that do not fill a file's holes need not wait for each other. If this fails, so does the write.
            let _ = rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, bytes.len() as u64);
        }
        // The file is never longer than it is to be, since the kernel may be reading it for somebody. A direct write
        // cannot end where the file does.
        let (whole, rest) = bytes[..len].split_at(len / ALIGN_BYTES * ALIGN_BYTES);
        self.file.write_all_at(whole, offset)?;
        if !rest.is_empty() {
            // O_DSYNC, so that an error shows here and no read waits for the write.
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let buffered = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(path)?;
            buffered.write_all_at(rest, offset + whole.len() as u64)?;
        }
        if self.file.metadata()?.nlink() == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the file was deleted"));
        }
        self.pages.set(block, start / PAGE_BYTES, &bytes[..len])
    }

    /// True if all pages of a block are held.
    pub(crate) fn holds_all(&self, block: BlockIndex) -> bool {
        self.pages.holds(block, 0..page_count(self.span.len_of(block)))
    }

    /// Reads each page of a block that is held, and shows those that are wrong as not held. Returns their number.
    /// Blocks on the disk.
    pub(crate) fn clear_wrong(&self, block: BlockIndex) -> io::Result<u32> {
        let len = self.span.len_of(block);
        let check = |start: u32, bytes: u32| {
            let part = PagePart::new(len, start, bytes.min(len - start)).ok_or(PageTrouble::NotHeld)?;
            buffer::with(part.buffer_bytes(), |buffer| self.read(block, &part, buffer).map(|_| ()))
        };
        let mut wrong = 0;
        for start in (0..len).step_by(CHECKED_BYTES as usize) {
            match check(start, CHECKED_BYTES) {
                Ok(()) => continue,
                Err(PageTrouble::NotHeld | PageTrouble::Wrong) => {}
                Err(PageTrouble::Unreadable(error)) => return Err(error),
            }
            for at in (start..len.min(start.saturating_add(CHECKED_BYTES))).step_by(PAGE_BYTES as usize) {
                match check(at, PAGE_BYTES) {
                    Ok(()) | Err(PageTrouble::NotHeld) => {}
                    Err(PageTrouble::Wrong) => {
                        let page = at / PAGE_BYTES;
                        self.pages.clear(block, page..page + 1)?;
                        wrong += 1;
                    }
                    Err(PageTrouble::Unreadable(error)) => return Err(error),
                }
            }
        }
        Ok(wrong)
    }

    /// A descriptor by which the kernel may read the file, through its page cache. No part of the file is freed from
    /// now on until the machine has booted again. Errors: also if the file is not what it should be, or its file system
    /// has no attributes, or takes no writes.
    pub(crate) fn lend(&self, boot_id: &str) -> io::Result<File> {
        // Those who open a file with O_DIRECT do so with the cache's.
        if boot_id.len() != BOOT_ID_BYTES || !self.disk.abilities.direct {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if !self.is_lent(boot_id) {
            // A frozen file system must not hold all threads that answer the kernel.
            let _turn = self.disk.turn_to_mark().ok_or(io::ErrorKind::TimedOut)?;
            rustix::fs::fsetxattr(&self.file, LENT, boot_id.as_bytes(), XattrFlags::empty())?;
        }
        let file = File::open(&self.path)?;
        let about = file.metadata()?;
        if FileId::of(&about) != self.id()? || about.len() != self.span.bytes {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }

    /// True if the kernel may read the file by itself.
    fn is_lent(&self, boot_id: &str) -> bool {
        let mut lent = [0; BOOT_ID_BYTES];
        let read = rustix::fs::fgetxattr(&self.file, LENT, &mut lent[..]);
        read.is_ok_and(|len| &lent[..len.min(BOOT_ID_BYTES)] == boot_id.as_bytes())
    }

    /// Shows no page of a block as held, and frees its disk space unless another dataset links the file or the kernel
    /// may read it. Blocks on the disk.
    pub(crate) fn free(&self, block: BlockIndex, boot_id: &str) -> io::Result<()> {
        self.pages.clear_all(block)?;
        if !self.disk.abilities.free || self.is_shared()? || self.is_lent(boot_id) {
            return Ok(());
        }
        let len = u64::from(self.span.len_of(block)).next_multiple_of(ALIGN_BYTES as u64);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, self.span.offset_of(block), len)?)
    }

    /// True if bytes of a block take disk space.
    pub(crate) fn takes_space(&self, block: BlockIndex) -> bool {
        let offset = self.span.offset_of(block);
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data < offset + u64::from(self.span.len_of(block)),
            Err(rustix::io::Errno::NXIO) => false,
            // The file system cannot report holes.
            Err(_) => true,
        }
    }

    /// True if other datasets may use the file.
    pub(crate) fn is_shared(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.nlink() > 1)
    }

    /// Identifies the file across the links of several datasets.
    fn id(&self) -> io::Result<FileId> {
        Ok(FileId::of(&self.file.metadata()?))
    }

    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let about = self.file.metadata()?;
        let id = FileId::of(&about);
        Ok(Identity { id, made: about.created().ok(), cuts: self.disk.cuts_of(id) })
    }
}

/// Notes if another process has cut a file off, or made it longer. The caller then gives it its size again, or writes
/// its end, which hides that: so it is noted before, for all datasets that link the file. True if it was.
fn note_cut(file: &File, span: &FileSpan, disk: &Disk) -> io::Result<bool> {
    let about = file.metadata()?;
    let is_cut = about.len() != span.bytes;
    if is_cut {
        disk.note_cut(FileId::of(&about));
    }
    Ok(is_cut)
}

/// The large files of a dataset on one disk.
#[derive(Debug)]
struct Folder {
    files: PathBuf,
    table: PathBuf,
    disk: Arc<Disk>,
    /// None until a file is made.
    pages: OnceLock<Arc<Pages>>,
}

impl Folder {
    fn path(&self, first: BlockIndex) -> PathBuf {
        self.files.join(format!("{:08x}", first.0))
    }

    /// Opens a file if it is here.
    fn open(&self, span: FileSpan) -> io::Result<Option<LargeFile>> {
        // Without a table, no page of it is known.
        let Some(pages) = self.pages.get() else { return Ok(None) };
        if self.disk.is_silent() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match LargeFile::open(self.path(span.first), span, &self.disk, pages) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }
}

/// The large files of a dataset. Any number of threads may use them.
#[derive(Debug)]
pub(crate) struct LargeFiles {
    id: CacheId,
    blocks: u32,
    /// Those of the disks that can be used, in their order.
    folders: Vec<Folder>,
    open: RwLock<HashMap<BlockIndex, Arc<LargeFile>>>,
    /// Held while a file is made.
    making: Mutex<()>,
    /// The files, by their first blocks, of which all pages were written or found right since the start.
    checked: Mutex<HashMap<BlockIndex, Identity>>,
}

impl LargeFiles {
    /// The large files beside the segments in `folders`. Errors: the table of the first folder cannot be opened now. If
    /// that of another one cannot be opened, its disk counts as away.
    pub(crate) fn open(folders: &[SegmentFolder], id: &CacheId, blocks: u32) -> io::Result<Self> {
        let mut found = Vec::new();
        for (nth, SegmentFolder { path, disk }) in folders.iter().enumerate() {
            let table = path.with_file_name("pages");
            let pages = match Pages::open_existing(&table, id, blocks) {
                Err(error) if nth == 0 && !is_damaged(&error) => return Err(error),
                Err(error) => {
                    warn!(?table, %error, "no table of pages: large files on a disk are fetched again");
                    if !is_damaged(&error) {
                        continue;
                    }
                    None
                }
                Ok(pages) => pages,
            };
            let pages = pages.map(|pages| OnceLock::from(Arc::new(pages))).unwrap_or_default();
            found.push(Folder { files: path.with_file_name("files"), table, disk: Arc::clone(disk), pages });
        }
        let (open, making, checked) = (RwLock::default(), Mutex::default(), Mutex::default());
        Ok(Self { id: *id, blocks, folders: found, open, making, checked })
    }

    /// True if a new block of this file is kept in a file. A cache that `evicts` must be able to free parts of it.
    pub(crate) fn keeps(&self, span: &FileSpan, evicts: bool) -> bool {
        let can_free = |folder: &Folder| folder.disk.abilities.free;
        span.count() >= BLOCKS_LEAST && !self.folders.is_empty() && (!evicts || self.folders.iter().all(can_free))
    }

    /// True if all pages of a file were written or found right since the start.
    pub(crate) fn is_checked(&self, span: &FileSpan) -> bool {
        self.checked().contains_key(&span.first)
    }

    /// True if that is so of this file. It is not of one that another process has put in its place.
    pub(crate) fn has_checked(&self, file: &LargeFile) -> bool {
        let checked = self.checked().get(&file.span.first).copied();
        checked.is_some_and(|checked| file.identity().is_ok_and(|file| file == checked))
    }

    /// All pages of a file were found right. `identity` is from before they were read.
    pub(crate) fn note_checked(&self, span: &FileSpan, identity: Identity) {
        self.checked().insert(span.first, identity);
    }

    /// Pages of a file may be wrong.
    pub(crate) fn uncheck(&self, first: BlockIndex) {
        self.checked().remove(&first);
    }

    fn checked(&self) -> MutexGuard<'_, HashMap<BlockIndex, Identity>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if there may be large files.
    pub(crate) fn has_some(&self) -> bool {
        self.folders.iter().any(|folder| folder.pages.get().is_some())
    }

    /// True if other datasets may use a file. None if it is not there. Does not open it.
    pub(crate) fn is_shared(&self, span: &FileSpan) -> Option<bool> {
        self.folders.iter().find_map(|folder| {
            folder.pages.get()?;
            match std::fs::symlink_metadata(folder.path(span.first)) {
                Ok(about) => about.is_file().then(|| about.nlink() > 1),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                // It may be there.
                Err(_) => Some(false),
            }
        })
    }

    /// Finds a file. None if it is not there. A file that is open costs a look-up; another one blocks on the disk.
    pub(crate) fn find(&self, span: &FileSpan) -> io::Result<Option<Arc<LargeFile>>> {
        self.look(span).map_err(|(_, error)| error)
    }

    /// A file, if it is open. Does not wait for the disk.
    pub(crate) fn opened(&self, span: &FileSpan) -> Option<Arc<LargeFile>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let file = open.get(&span.first).filter(|file| file.span == *span)?;
        file.was_used.store(true, Ordering::Relaxed);
        Some(Arc::clone(file))
    }

    /// The disk that has pages of a block, as far as the tables show. Opens no file, which could wait for the disk.
    pub(crate) fn disk_of(&self, block: BlockIndex) -> Option<&Arc<Disk>> {
        let has_pages = |folder: &&Folder| folder.pages.get().is_some_and(|pages| pages.holds_any(block));
        self.folders.iter().find(has_pages).map(|folder| &folder.disk)
    }

    /// True if a disk has all of these pages of a block, as far as the tables show. Opens no file.
    pub(crate) fn holds(&self, block: BlockIndex, pages: &Range<u32>) -> bool {
        let has_them = |folder: &Folder| folder.pages.get().is_some_and(|table| table.holds(block, pages.clone()));
        self.folders.iter().any(has_them)
    }

    /// Finds a file. Errors: with the disk that failed and may have the file.
    fn look(&self, span: &FileSpan) -> Result<Option<Arc<LargeFile>>, (Arc<Disk>, io::Error)> {
        if let Some(file) = self.opened(span) {
            return Ok(Some(file));
        }
        let mut failed = None;
        for folder in &self.folders {
            match folder.open(*span) {
                Ok(Some(file)) => return Ok(Some(self.keep_open(file))),
                Ok(None) => {}
                Err(error) => failed = Some((Arc::clone(&folder.disk), error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    fn keep_open(&self, file: LargeFile) -> Arc<LargeFile> {
        let file = Arc::new(file);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_MOST && !open.contains_key(&file.span.first) {
            let unused = open.iter().find(|(_, file)| !file.was_used.swap(false, Ordering::Relaxed));
            // If all were used, each was now marked as not used, and any goes.
            let closed = unused.or_else(|| open.iter().next()).map(|(first, _)| *first);
            if let Some(first) = closed {
                open.remove(&first);
            }
        }
        open.insert(file.span.first, Arc::clone(&file));
        file
    }

    /// Forgets a file: its path is another file's, or none's.
    pub(crate) fn close(&self, first: BlockIndex) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&first);
        self.uncheck(first);
    }

    /// Finds a file, or makes an empty one on the disk that its first block falls to. `is_new`: no slot says that a
    /// block is in it. Blocks on the disk. Errors: with the disk that failed, if it was that.
    pub(crate) fn find_or_make(
        &self,
        span: &FileSpan,
        is_new: impl FnOnce() -> bool,
    ) -> Result<Arc<LargeFile>, (Option<Arc<Disk>>, io::Error)> {
        if let Ok(Some(file)) = self.find(span) {
            if file.file.metadata().is_ok_and(|about| about.nlink() > 0) {
                return Ok(file);
            }
            self.close(span.first);
        }
        let _making = self.turn_to_make().map_err(|(disk, error)| (Some(disk), error))?;
        if let Some(file) = self.look(span).map_err(|(disk, error)| (Some(disk), error))? {
            return Ok(file);
        }
        let disk = disk::choose(self.folders.iter().map(|folder| &folder.disk), span.first.0).cloned();
        let Some((folder, disk)) = disk.as_ref().and_then(|disk| Some((self.folder_on(disk)?, disk))) else {
            return Err((None, io::ErrorKind::NotFound.into()));
        };
        let make = |path: &Path| {
            let file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(path)?;
            file.set_len(span.bytes)
        };
        let file = self.place(folder, span, make).map_err(|error| (Some(Arc::clone(disk)), error))?;
        // All of it will be written by this process, before the slots of all blocks say that they are in it. If another
        // process has deleted the file that was there, they may say so now.
        if let Ok(identity) = file.identity()
            && is_new()
        {
            self.note_checked(span, identity);
        }
        Ok(file)
    }

    /// Waits for the turn to make a file. Errors: with a disk that ends no write, for which the thread whose turn it is
    /// may be waiting.
    pub(crate) fn turn_to_make(&self) -> Result<MutexGuard<'_, ()>, (Arc<Disk>, io::Error)> {
        loop {
            match self.making.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            if let Some(Folder { disk, .. }) = self.folders.iter().find(|folder| folder.disk.holds_writers()) {
                return Err((Arc::clone(disk), io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(MAKE_PAUSE);
        }
    }

    /// The same, however long it takes.
    pub(crate) fn wait_to_make(&self) -> MutexGuard<'_, ()> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a file that is a link to one of another snapshot's cache, or makes it such a link. None if the other one
    /// is not there, or if this dataset has a file of its own. It is the caller's turn to make a file. Blocks on the
    /// disk.
    pub(crate) fn link(
        &self,
        _making: MutexGuard<'_, ()>,
        span: &FileSpan,
        other: &Self,
        other_span: &FileSpan,
    ) -> io::Result<Option<Arc<LargeFile>>> {
        let Some(theirs) = other.find(other_span)? else { return Ok(None) };
        if let Some(ours) = self.find(span)? {
            return Ok((ours.id()? == theirs.id()?).then_some(ours));
        }
        let Some(folder) = self.folder_on(&theirs.disk) else { return Ok(None) };
        self.place(folder, span, |path| std::fs::hard_link(&theirs.path, path)).map(Some)
    }

    /// Calls `make` to make the file in a folder that does not have it, and opens the file. The caller holds `making`.
    fn place(
        &self,
        folder: &Folder,
        span: &FileSpan,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<Arc<LargeFile>> {
        // If the disk hangs, those who wait for `making` see that it does.
        let _writing = folder.disk.write();
        if folder.pages.get().is_none() {
            // Only the holder of `making` sets it, so it cannot be set already.
            let _ = folder.pages.set(Arc::new(Pages::open(&folder.table, &self.id, self.blocks)?));
        }
        if let Some(pages) = folder.pages.get() {
            // Words of a file that was deleted.
            let mut from = span.first;
            while let Some(block) = pages.next_held(from).filter(|&block| span.contains(block)) {
                pages.clear_all(block)?;
                from = BlockIndex(block.0.saturating_add(1));
            }
        }
        match std::fs::create_dir(&folder.files) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // One that was checked is gone.
        self.close(span.first);
        let path = folder.path(span.first);
        // Whatever is there is no regular file, or is of a table that was lost.
        match std::fs::symlink_metadata(&path) {
            Ok(about) if about.is_dir() => std::fs::remove_dir_all(&path)?,
            Ok(_) => std::fs::remove_file(&path)?,
            Err(_) => {}
        }
        make(&path)?;
        let file = folder.open(*span)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(self.keep_open(file))
    }

    fn folder_on(&self, disk: &Arc<Disk>) -> Option<&Folder> {
        self.folders.iter().find(|folder| Arc::ptr_eq(&folder.disk, disk))
    }

    /// The files on the disks, each with whether its disk is the one with the tables.
    pub(crate) fn all(&self) -> Vec<(BlockIndex, bool, Arc<Disk>)> {
        let mut found = Vec::new();
        for (nth, folder) in self.folders.iter().enumerate() {
            for entry in std::fs::read_dir(&folder.files).into_iter().flatten().flatten() {
                let first = entry.file_name().to_str().and_then(|name| u32::from_str_radix(name, 16).ok());
                found.extend(first.map(|first| (BlockIndex(first), nth == 0, Arc::clone(&folder.disk))));
            }
        }
        found
    }

    /// Deletes the file with this first block on a disk unless it `is_used`. Always deletes one that is none of the
    /// dataset's, that another disk has, too, or whose table was lost. A thread that has just found the file makes it
    /// again. Blocks on the disk.
    pub(crate) fn delete_unless(
        &self,
        first: BlockIndex,
        span: Option<&FileSpan>,
        disk: &Arc<Disk>,
        is_used: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let _making = self.wait_to_make();
        let Some(folder) = self.folder_on(disk) else { return Ok(()) };
        let found = span.map(|span| self.find(span)).transpose()?.flatten();
        if found.is_some_and(|file| Arc::ptr_eq(&file.disk, disk)) {
            if is_used() {
                return Ok(());
            }
            self.close(first);
        }
        let _writing = disk.write();
        std::fs::remove_file(folder.path(first))
    }

    /// Makes the pages survive a power loss. Errors: the disk with the tables fails. Another disk that fails loses its
    /// own pages only.
    pub(crate) fn sync(&self) -> io::Result<()> {
        for (nth, folder) in self.folders.iter().enumerate().filter(|(_, folder)| !folder.disk.is_silent()) {
            let Some(pages) = folder.pages.get() else { continue };
            let entries = std::fs::read_dir(&folder.files).into_iter().flatten().flatten();
            // To open a pipe could take forever.
            let mut files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
            let synced = files.try_for_each(|entry| File::open(entry.path())?.sync_data());
            match synced.and_then(|()| pages.sync()) {
                Err(error) if nth > 0 => {
                    warn!(dir = ?folder.files, %error, "cannot sync the large files on a disk of the cache");
                }
                synced => synced?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::BLOCK_BYTES;

    use super::*;
    use crate::folder::Abilities;
    use crate::health::Health;

    /// The disk space of a whole file, and of the pages of the table that have its words.
    fn taken(span: &FileSpan) -> u64 {
        let words_of = |block: u64| block * BLOCK_BYTES / u64::from(PAGE_BYTES) * 8;
        let first = u64::from(span.first.0);
        let (from, to) = (words_of(first) / 4096 * 4096, words_of(first + span.count()).next_multiple_of(4096));
        span.bytes.next_multiple_of(4096) + to - from
    }

    /// `is_only`: the store has no other disk.
    fn files_in(dir: &Path, direct: bool, is_only: bool) -> LargeFiles {
        let health = Health::new(Duration::from_secs(1), Duration::from_secs(1));
        let disk = Disk::new(dir, Abilities { direct, free: true }, health, 0, is_only);
        let folder = SegmentFolder { path: dir.join("segments"), disk };
        LargeFiles::open(&[folder], &CacheId([1; 32]), 3).unwrap()
    }

    // SEMANTICS: C22
    #[test]
    fn a_file_that_another_process_changes_while_it_is_closed_is_to_be_checked_again() {
        let span = FileSpan { first: BlockIndex(0), bytes: 3 * BLOCK_BYTES };
        let changes: [&dyn Fn(&Path); 3] = [
            &|path| File::options().write(true).open(path).unwrap().set_len(100_000).unwrap(),
            &|path| {
                let copy = path.with_extension("copy");
                std::fs::copy(path, &copy).unwrap();
                std::fs::rename(copy, path).unwrap();
            },
            &|_| {},
        ];
        for (nth, change) in changes.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let files = files_in(dir.path(), false, true);
            let made = files.find_or_make(&span, || true).unwrap();
            assert!(files.has_checked(&made));
            // As others are opened, it is closed.
            files.open.write().unwrap().clear();
            change(&made.path);
            let found = files.find(&span).unwrap().unwrap();
            assert_eq!(files.has_checked(&found), nth == 2, "{nth}");
        }
    }

    // SEMANTICS: C22
    #[test]
    fn a_file_is_lent_only_where_it_can_be_read_past_the_page_cache() {
        for direct in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let files = files_in(dir.path(), direct, true);
            let file = files.find_or_make(&FileSpan { first: BlockIndex(0), bytes: 3 * BLOCK_BYTES }, || true).unwrap();
            assert_eq!(file.lend(&"0".repeat(BOOT_ID_BYTES)).is_ok(), direct);
        }
    }

    // SEMANTICS: C20, C21
    #[test]
    fn a_disk_that_hangs_while_a_file_is_made_or_linked_is_known_to_hold_writers() {
        let dir = tempfile::tempdir().unwrap();
        let files = files_in(dir.path(), false, false);
        let (folder, span) = (&files.folders[0], FileSpan { first: BlockIndex(0), bytes: 3 * BLOCK_BYTES });
        let make = |path: &Path| {
            folder.disk.stall();
            assert!(folder.disk.holds_writers());
            File::create_new(path)?.set_len(span.bytes)
        };
        files.place(folder, &span, make).unwrap();
        assert!(!folder.disk.holds_writers());
    }

    #[test]
    fn a_large_file_takes_no_more_of_the_disk_than_is_counted_for_its_blocks() {
        for first in [0, 1].map(BlockIndex) {
            for bytes in (BLOCKS_LEAST..40).flat_map(|count| [(count - 1) * BLOCK_BYTES + 1, count * BLOCK_BYTES]) {
                let span = FileSpan { first, bytes };
                let counted = crate::disk_bytes(bytes, span.count());
                assert!(taken(&span) <= counted, "{span:?}: {} of {counted}", taken(&span));
            }
        }
        // This is why smaller files are records.
        let span = FileSpan { first: BlockIndex(1), bytes: (BLOCKS_LEAST - 2) * BLOCK_BYTES + 1 };
        assert!(taken(&span) > crate::disk_bytes(span.bytes, span.count()));
    }
}
