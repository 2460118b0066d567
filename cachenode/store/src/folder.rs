//! A cache folder: its format marker, its lock, and the abilities of its file system. A store may have several, each on
//! a disk of its own.
//!
//! ```text
//!  format                           0 LARDERST 8 | version 9 | zeros 12 | crc32c of 0..12 16, little-endian
//!  LOCK                             held by flock while a process has the store open; contains that process's id
//!  index/                           RocksDB
//!  index.damaged, dropped/          content that was replaced or released, and is being removed
//!  promises                         see `promises`; absent if none was made
//!  quotas                           see `quotas`; absent if there was none
//!  datasets/<cache>/key             see `key_file`
//!  datasets/<cache>/slots           see `slots`
//!  datasets/<cache>/reservation     see `reservations`
//!  datasets/<cache>/payer           see `reservations`; absent if none is known
//!  datasets/<cache>/used            see `reservations`; absent while it is open
//!  datasets/<cache>/aliases         see `aliases`; absent if no block was adopted from another snapshot
//!  datasets/<cache>/segments/       00000001.seg and so on, see `segment` and `record`
//!  datasets/<cache>/files/, pages   see `large_file`; absent if no large file was cached
//! ```
//! Of several folders, the first has all of this. The others have a marker, a lock, `dropped`, and of each dataset
//! `key`, `segments/`, `files/` and `pages`; whatever else is in them is left from a time when they were the first, and
//! not used.
//!
//! A cache of an earlier version is emptied, and its blocks are fetched again. One of a later version is rejected and
//! left unchanged, so that an upgrade that is undone costs nothing once it is done again: every version has the marker's
//! layout. A marker that is damaged or lost is rewritten: slot tables, records and rows each carry their own checks, so
//! their content remains usable.
//!
//! Invariant: a folder without a marker that holds anything else is rejected and left unchanged. The store deletes
//! files that it has no use for, and those must be its own.

use std::fs::{DirBuilder, DirEntry, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use larder_dataset::{CacheId, SnapshotId};
use rustix::fs::{FallocateFlags, FlockOperation};
use tracing::{debug, warn};

use crate::buffer;
use crate::error::StoreError;
use crate::key_file;
use crate::probe;
use crate::record::ALIGN_BYTES;
use crate::whole_file::write_whole;

/// Only the owner may access the cache's folders and files.
const PRIVATE_DIR: u32 = 0o700;

const MAGIC: [u8; 8] = *b"LARDERST";
const VERSION: u8 = 1;
const MARKER_BYTES: usize = 16;

/// Files that an interrupted start may leave in an empty folder, and those that a new file system contains.
const LEFT_OVER: [&str; 3] = ["LOCK", "format.new", "lost+found"];
/// The other entries of a cache folder.
const CONTENT: [&str; 10] =
    ["format", "index", "index.damaged", DATASETS, "dropped", "probe", PROMISES, "promises.new", QUOTAS, "quotas.new"];
const PROMISES: &str = "promises";
const QUOTAS: &str = "quotas";
const DATASETS: &str = "datasets";

/// A cache folder that this process owns until the value is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    read_only: bool,
    /// Held while the files that were moved aside are removed.
    pub(crate) removing: Arc<Mutex<()>>,
    /// Keeps the folder's lock; closing the file releases it.
    _lock: File,
}

/// The state of a folder, by its format marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// The marker of this version.
    Valid,
    /// The marker of an earlier version.
    Earlier(u8),
    /// The marker is damaged or lost, but everything else in the folder belongs to a cache.
    Damaged,
    /// The folder holds no cache yet.
    Empty,
}

impl Folder {
    /// Opens or creates the folder and takes its lock. An existing cache on a read-only disk can be opened too.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        let failed = |step| move |source| StoreError::Folder { dir: dir.to_owned(), step, source };
        make_private(dir).map_err(failed("create"))?;
        let marker = read_marker(dir)?;
        let (lock, read_only) = take_lock(dir)?;
        let folder = Self { dir: dir.to_owned(), read_only, removing: Arc::default(), _lock: lock };
        match marker {
            Marker::Valid | Marker::Empty => {}
            Marker::Damaged => warn!(?dir, "the format marker of the cache is damaged and is written anew"),
            Marker::Earlier(found) => {
                warn!(
                    ?dir,
                    found,
                    supported = VERSION,
                    "the cache has an earlier format and is emptied: its blocks are fetched again"
                );
                folder.empty().map_err(failed("empty"))?;
            }
        }
        if marker != Marker::Valid {
            write_whole(&dir.join("format"), &encode_marker(VERSION)).map_err(failed("write the format of"))?;
        }
        make_private(&folder.datasets()).map_err(failed("create"))?;
        folder.remove_dropped();
        folder.caches().map_err(failed("list"))?;
        Ok(folder)
    }

    /// Moves all content aside, to be removed.
    fn empty(&self) -> io::Result<()> {
        [self.datasets(), self.index()].iter().try_for_each(|content| match self.move_away(content) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }

    fn dropped(&self) -> PathBuf {
        self.dir.join("dropped")
    }

    fn move_away(&self, content: &Path) -> io::Result<()> {
        loop {
            std::fs::create_dir_all(self.dropped())?;
            let free = (0..).map(|number| self.dropped().join(number.to_string())).find(|name| !name.exists());
            match std::fs::rename(content, free.unwrap_or_default()) {
                // The remover deleted the `dropped` folder between its creation and the rename: try again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && content.exists() => {}
                moved => return moved,
            }
        }
    }

    /// Removes a dataset's folder. Returns before its disk space is free, since the folder may hold terabytes.
    pub(crate) fn remove(&self, id: &CacheId) -> io::Result<()> {
        let folder = self.dataset(id);
        ["segments", "files"].into_iter().for_each(|files| unlink_shared(&folder.join(files)));
        match self.move_away(&folder) {
            Ok(()) => self.remove_dropped(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            // The disk may be too full to create the `dropped` folder.
            Err(_) => std::fs::remove_dir_all(folder)?,
        }
        Ok(())
    }

    /// Removes the files that were moved aside, on a thread of its own.
    fn remove_dropped(&self) {
        let (dropped, removing) = (self.dropped(), Arc::clone(&self.removing));
        if dropped.exists() {
            let thread = std::thread::Builder::new().name("larder-drop".into());
            // If no thread starts, the files are removed after the next start.
            let _ = thread.spawn(move || remove_content(&dropped, &removing));
        }
    }

    /// Removes the files that were moved aside. Returns once their disk space is free.
    pub(crate) fn finish_removing(&self) {
        remove_content(&self.dropped(), &self.removing);
    }

    /// Disk bytes of files that were moved aside: they belong to no dataset and are free once removed.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        let used = disk_use(vec![self.dropped()]);
        used.bytes - used.shared.iter().map(|file| file.bytes).sum::<u64>()
    }

    /// True if the disk is read-only: cached blocks can be read, and nothing can be written.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    pub(crate) fn promises(&self) -> PathBuf {
        self.dir.join(PROMISES)
    }

    pub(crate) fn quotas(&self) -> PathBuf {
        self.dir.join(QUOTAS)
    }

    pub(crate) fn datasets(&self) -> PathBuf {
        self.dir.join(DATASETS)
    }

    pub(crate) fn dataset(&self, id: &CacheId) -> PathBuf {
        self.datasets().join(id.to_string())
    }

    /// The caches that have a folder. None if the folder of all datasets was deleted by another process.
    pub(crate) fn caches(&self) -> io::Result<Vec<CacheId>> {
        caches_in(&self.datasets())
    }

    /// Reads from the disk, past the page cache if possible. Errors: the disk fails.
    pub(crate) fn try_to_read(&self) -> io::Result<()> {
        let path = self.dir.join("format");
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        let file = direct.or_else(|_| File::open(path))?;
        buffer::with(ALIGN_BYTES, |page| file.read_at(page, 0)).map(|_| ())
    }

    /// Tests the abilities that segments need. An ability that cannot be tested, for example on a full disk, is
    /// assumed.
    pub(crate) fn probe(&self) -> Abilities {
        let refused = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP));
        let free = |file: &File| {
            file.set_len(ALIGN_BYTES as u64)?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(file, flags, 0, ALIGN_BYTES as u64)?)
        };
        let works = |tried: io::Result<()>| !tried.is_err_and(|error| refused(&error));
        Abilities { direct: works(probe::try_direct(&self.dir)), free: works(probe::with_file(&self.dir, 0, free)) }
    }
}

/// True if the cache folder `dir` holds files of a snapshot, whoever they are for, even while a process has the folder
/// open. False if `dir` does not exist. Errors: the disk cannot be read.
pub fn has_snapshot(dir: &Path, snapshot: &SnapshotId) -> io::Result<bool> {
    let datasets = dir.join(DATASETS);
    if datasets.join(snapshot.to_string()).try_exists()? {
        return Ok(true);
    }
    for id in caches_in(&datasets)? {
        if key_file::read(&datasets.join(id.to_string()), id)?.is_some_and(|key| key.snapshot() == *snapshot) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The caches that have a folder in the folder of all datasets.
fn caches_in(datasets: &Path) -> io::Result<Vec<CacheId>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(datasets) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        found.extend(entry?.file_name().to_str().and_then(parse_id));
    }
    Ok(found)
}

/// Removes the links to files that other datasets share. This happens before the rest is removed, so that the other
/// datasets know immediately which space is theirs alone. It frees no space and takes little time.
fn unlink_shared(files: &Path) {
    for file in std::fs::read_dir(files).into_iter().flatten().flatten() {
        if file.metadata().is_ok_and(|found| found.nlink() > 1) {
            // A link that cannot be removed here is removed with the rest of the folder.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

fn remove_content(dropped: &Path, removing: &Mutex<()>) {
    let _one_at_a_time = removing.lock().unwrap_or_else(PoisonError::into_inner);
    for content in std::fs::read_dir(dropped).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir_all(content.path());
    }
    // Fails if more content was moved here since; another thread is waiting to remove it.
    let _ = std::fs::remove_dir(dropped);
}

/// Creates a folder that only its owner may enter, since a cache holds the data of all its readers. An existing folder,
/// from an earlier version or an administrator, is closed to other users if this process may change its mode. If it
/// belongs to another user, only the entries created in it are private.
fn make_private(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(PRIVATE_DIR).create(dir) {
        Err(error) if !dir.is_dir() => return Err(error),
        _ => {}
    }
    let mut permissions = std::fs::metadata(dir)?.permissions();
    if permissions.mode() & 0o777 & !PRIVATE_DIR != 0 {
        permissions.set_mode(PRIVATE_DIR);
        if let Err(error) = std::fs::set_permissions(dir, permissions) {
            debug!(?dir, %error, "the folder stays open to other users");
        }
    }
    Ok(())
}

/// Disk use of the files below folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUse {
    pub(crate) bytes: u64,
    /// The files that have links outside the folders.
    pub(crate) shared: Vec<SharedFile>,
}

/// A file that several datasets link to: it contains blocks that one dataset adopted from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedFile {
    /// The file, the same for all links to it.
    pub id: FileId,
    /// Bytes that the file occupies on the disk.
    pub bytes: u64,
}

/// Identifies a file, whatever its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The number of the file system.
    pub device: u64,
    /// The inode number in it.
    pub inode: u64,
}

impl FileId {
    pub(crate) fn of(about: &Metadata) -> Self {
        Self { device: about.dev(), inode: about.ino() }
    }
}

/// Measures the disk use of the files below folders. Files that vanish during the walk count as 0.
pub(crate) fn disk_use(mut folders: Vec<PathBuf>) -> DiskUse {
    let mut found = DiskUse::default();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(file) if file.is_dir() => folders.push(entry.path()),
                Ok(file) => {
                    let bytes = file.blocks() * 512;
                    found.bytes += bytes;
                    if file.nlink() > 1 {
                        found.shared.push(SharedFile { id: FileId::of(&file), bytes });
                    }
                }
                Err(_) => {}
            }
        }
    }
    found
}

/// Abilities of the folder's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// The file system supports reads and writes that bypass the page cache.
    pub(crate) direct: bool,
    /// The file system can free the space of a part of a file.
    pub(crate) free: bool,
}

fn parse_id(name: &str) -> Option<CacheId> {
    name.parse().ok()
}

fn encode_marker(version: u8) -> [u8; MARKER_BYTES] {
    let mut marker = [0; MARKER_BYTES];
    marker[..8].copy_from_slice(&MAGIC);
    marker[8] = version;
    let crc = larder_dataset::crc32c(&marker[..12]);
    marker[12..].copy_from_slice(&crc.to_le_bytes());
    marker
}

/// Errors: the folder cannot be read, is neither empty nor a cache, or is the cache of a later version.
fn read_marker(dir: &Path) -> Result<Marker, StoreError> {
    let failed = |step| move |source| StoreError::Folder { dir: dir.to_owned(), step, source };
    let found = match std::fs::read(dir.join("format")) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut entries = std::fs::read_dir(dir).map_err(failed("list"))?;
            if entries.all(|entry| entry.and_then(|entry| is_ignored(&entry)).unwrap_or(false)) {
                return Ok(Marker::Empty);
            }
            Vec::new()
        }
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Vec::new(),
        Err(error) => return Err(failed("read the format of")(error)),
    };
    match found.get(8) {
        _ if found == encode_marker(VERSION) => Ok(Marker::Valid),
        Some(&version) if version > VERSION && found == encode_marker(version) => {
            Err(StoreError::Newer { dir: dir.to_owned(), found: version, known: VERSION })
        }
        Some(&version) if version < VERSION && found[..8] == MAGIC => Ok(Marker::Earlier(version)),
        _ if is_cache(dir).map_err(failed("list"))? => Ok(Marker::Damaged),
        _ => Err(StoreError::NotAStore { dir: dir.to_owned() }),
    }
}

fn is_left_over(name: &str) -> bool {
    LEFT_OVER.contains(&name) || name.starts_with(probe::PREFIX)
}

/// True for an entry that an empty cache folder may have. Sockets are allowed: the process that has the folder open, and
/// the keeper of its mounts, may have theirs in it.
fn is_ignored(entry: &DirEntry) -> io::Result<bool> {
    Ok(is_left_over(&entry.file_name().to_string_lossy()) || entry.file_type()?.is_socket())
}

/// True if the folder holds datasets of a cache and no foreign entry.
fn is_cache(dir: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let known = name.to_str().is_some_and(|name| CONTENT.contains(&name));
        if !known && !is_ignored(&entry)? {
            return Ok(false);
        }
    }
    match names_in(&dir.join(DATASETS)) {
        Ok(mut names) => Ok(names.all(|name| name.is_ok_and(|name| parse_id(&name).is_some()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The names in a folder. A name that is not valid UTF-8 is converted lossily and then matches no file of a cache.
fn names_in(dir: &Path) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    let entries = std::fs::read_dir(dir)?;
    Ok(entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())))
}

/// Takes the folder's lock. Also returns whether the disk is read-only.
fn take_lock(dir: &Path) -> Result<(File, bool), StoreError> {
    let failed = |source| StoreError::Folder { dir: dir.to_owned(), step: "lock", source };
    let path = dir.join("LOCK");
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let (mut file, read_only) = match opened {
        Ok(file) => (file, false),
        // flock needs no write permission.
        Err(error) if is_read_only(&error) => (File::open(&path).map_err(|_| failed(error))?, true),
        Err(error) => return Err(failed(error)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // If the id cannot be read, the message only becomes less specific.
            let _ = (&file).take(32).read_to_string(&mut text);
            return Err(StoreError::InUse { dir: dir.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(error) => return Err(failed(error.into())),
    }
    // The id is for the error message of another process. A full or read-only disk must not keep the store from
    // opening.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok((file, read_only))
}

/// True if a file cannot be opened for writing because the disk is read-only or another user owns the file.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    // SEMANTICS: C13
    #[test]
    fn a_cache_is_its_owners_alone_also_one_that_an_earlier_version_left_open() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("parent/cache");
        for _ in 0..2 {
            let folder = Folder::open(&dir).unwrap();
            assert_eq!((mode(&dir), mode(&folder.datasets())), (0o700, 0o700));
            assert_eq!(mode(&dir.join("format")), 0o600);
            for open in [&dir, &folder.datasets()] {
                std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        assert_ne!(mode(&temp.path().join("parent")), 0o700, "what is above the cache is not Larder's alone");
    }
}
