//! The cache folder: its format marker, its lock, and the abilities of its file system.
//!
//! ```text
//!  format                           0 LARDERST 8 | version 9 | zeros 12 | crc32c of 0..12 16, little-endian
//!  LOCK                             held by flock while a process has the store open; contains that process's id
//!  index/                           RocksDB
//!  index.damaged, dropped/          what was replaced and is being removed
//!  datasets/<snapshot>/slots        see `slots`
//!  datasets/<snapshot>/reservation  see `reservations`
//!  datasets/<snapshot>/segments/    00000001.seg and so on, see `segment` and `record`
//! ```
//! A cache of another version is emptied: its blocks are fetched again. A marker that is damaged or lost is written anew, since
//! slot tables, records and rows each prove themselves.
//!
//! Invariant: a folder that holds anything else and no marker is refused and left unchanged, because the store deletes
//! files that it has no use for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use larder_dataset::SnapshotId;
use rustix::fs::{FallocateFlags, FlockOperation};
use tracing::warn;

use crate::buffer;
use crate::error::StoreError;
use crate::record::ALIGN_BYTES;

const MAGIC: [u8; 8] = *b"LARDERST";
const VERSION: u8 = 1;
const MARKER_BYTES: usize = 16;

/// What an interrupted start may leave in an empty folder, or the making of a file system.
const LEFT_OVER: [&str; 3] = ["LOCK", "format.new", "lost+found"];
/// What a cache holds besides.
const CONTENT: [&str; 6] = ["format", "index", "index.damaged", "datasets", "dropped", "probe"];

/// A cache folder that this process owns until the value is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    read_only: bool,
    /// Holds the lock.
    _lock: File,
}

/// What the format marker of a folder says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    /// A cache of this version.
    Valid,
    /// A cache of another version.
    Version(u8),
    /// A cache, by all that it holds, whose marker is damaged or lost.
    Damaged,
    /// No cache yet.
    Empty,
}

impl Folder {
    /// Opens or creates the folder and takes its lock. On a disk that is read-only an existing cache can be opened.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        let failed = |step| move |source| StoreError::Folder { dir: dir.to_owned(), step, source };
        std::fs::create_dir_all(dir).map_err(failed("create"))?;
        let marker = read_marker(dir)?;
        let (lock, read_only) = take_lock(dir)?;
        let folder = Self { dir: dir.to_owned(), read_only, _lock: lock };
        match marker {
            Marker::Valid | Marker::Empty => {}
            Marker::Damaged => warn!(?dir, "the format marker of the cache is damaged and is written anew"),
            Marker::Version(found) => {
                warn!(
                    ?dir,
                    found,
                    supported = VERSION,
                    "the cache has another format and is emptied: its blocks are fetched again"
                );
                folder.empty().map_err(failed("empty"))?;
            }
        }
        if marker != Marker::Valid {
            write_whole(&dir.join("format"), &encode_marker()).map_err(failed("write the format of"))?;
        }
        std::fs::create_dir_all(folder.datasets()).map_err(failed("create"))?;
        folder.remove_dropped();
        folder.snapshots().map_err(failed("list"))?;
        Ok(folder)
    }

    /// Moves all content out of the way.
    fn empty(&self) -> io::Result<()> {
        let dropped = self.dir.join("dropped");
        std::fs::create_dir_all(&dropped)?;
        for content in [self.datasets(), self.index()] {
            let name = (0..).map(|number| dropped.join(number.to_string())).find(|name| !name.exists());
            match std::fs::rename(&content, name.unwrap_or_default()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes what was moved out of the way, on a thread of its own: that may be terabytes.
    fn remove_dropped(&self) {
        let dropped = self.dir.join("dropped");
        if dropped.exists() {
            let thread = std::thread::Builder::new().name("larder-drop".into());
            // What is left is removed after the next start.
            let _ = thread.spawn(move || std::fs::remove_dir_all(dropped));
        }
    }

    /// True if the disk is read-only: cached blocks can be read, and nothing can be changed.
    pub(crate) const fn is_read_only(&self) -> bool {
        self.read_only
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.dir.join("index")
    }

    pub(crate) fn datasets(&self) -> PathBuf {
        self.dir.join("datasets")
    }

    pub(crate) fn dataset(&self, snapshot: &SnapshotId) -> PathBuf {
        self.datasets().join(snapshot.to_string())
    }

    /// The snapshots that have a folder. None if somebody has deleted all of them.
    pub(crate) fn snapshots(&self) -> io::Result<Vec<SnapshotId>> {
        let mut found = Vec::new();
        let entries = match std::fs::read_dir(self.datasets()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            entries => entries?,
        };
        for entry in entries {
            if let Some(snapshot) = entry?.file_name().to_str().and_then(parse_snapshot) {
                found.push(snapshot);
            }
        }
        Ok(found)
    }

    /// Tests what segments need. What cannot be tested, for example on a full disk, is assumed to work.
    pub(crate) fn probe(&self) -> Abilities {
        let path = self.dir.join("probe");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let refused = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP));
        let direct = || {
            let file = options.clone().custom_flags(libc::O_DIRECT).open(&path)?;
            buffer::with(ALIGN_BYTES, |page| {
                page.fill(0);
                file.write_all_at(page, 0)?;
                file.read_exact_at(page, 0)
            })
        };
        let free = || {
            let file = options.open(&path)?;
            file.set_len(ALIGN_BYTES as u64)?;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(&file, flags, 0, ALIGN_BYTES as u64)?)
        };
        let works = |tried: io::Result<()>| !tried.is_err_and(|error| refused(&error));
        let abilities = Abilities { direct: works(direct()), free: works(free()) };
        // Nothing depends on its removal.
        let _ = std::fs::remove_file(&path);
        abilities
    }
}

/// Bytes that the files below a folder take on the disk. What vanishes meanwhile counts as nothing.
pub(crate) fn bytes_on_disk(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(found) if found.is_dir() => folders.push(entry.path()),
                Ok(found) => bytes += found.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Abilities of the folder's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Reads and writes that bypass the page cache.
    pub(crate) direct: bool,
    /// Frees the room of a part of a file.
    pub(crate) free: bool,
}

fn parse_snapshot(name: &str) -> Option<SnapshotId> {
    let mut id = [0; 32];
    if name.len() != 64 || !name.is_ascii() {
        return None;
    }
    for (byte, at) in id.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&name[at..at + 2], 16).ok()?;
    }
    Some(SnapshotId(id))
}

fn encode_marker() -> [u8; MARKER_BYTES] {
    let mut marker = [0; MARKER_BYTES];
    marker[..8].copy_from_slice(&MAGIC);
    marker[8] = VERSION;
    let crc = larder_dataset::crc32c(&marker[..12]);
    marker[12..].copy_from_slice(&crc.to_le_bytes());
    marker
}

/// Errors: the folder cannot be read, or holds something else.
fn read_marker(dir: &Path) -> Result<Marker, StoreError> {
    let failed = |step| move |source| StoreError::Folder { dir: dir.to_owned(), step, source };
    let found = match std::fs::read(dir.join("format")) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut names = names_in(dir).map_err(failed("list"))?;
            if names.all(|name| name.is_ok_and(|name| LEFT_OVER.contains(&&*name))) {
                return Ok(Marker::Empty);
            }
            Vec::new()
        }
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Vec::new(),
        Err(error) => return Err(failed("read the format of")(error)),
    };
    match found.get(8) {
        _ if found == encode_marker() => Ok(Marker::Valid),
        Some(&version) if found[..8] == MAGIC && version != VERSION => Ok(Marker::Version(version)),
        _ if is_cache(dir).map_err(failed("list"))? => Ok(Marker::Damaged),
        _ => Err(StoreError::NotAStore { dir: dir.to_owned() }),
    }
}

/// True if the folder holds datasets of a cache, and nothing that a cache does not hold.
fn is_cache(dir: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let known = LEFT_OVER.iter().chain(&CONTENT).any(|&known| name == known);
        // The sockets of the process that has the folder open.
        if !known && !entry.file_type()?.is_socket() {
            return Ok(false);
        }
    }
    match names_in(&dir.join("datasets")) {
        Ok(mut names) => Ok(names.all(|name| name.is_ok_and(|name| parse_snapshot(&name).is_some()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The names in a folder. One that is not text is shown as text that no file of a cache has.
fn names_in(dir: &Path) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    let entries = std::fs::read_dir(dir)?;
    Ok(entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())))
}

/// Takes the lock. True if the disk is read-only.
fn take_lock(dir: &Path) -> Result<(File, bool), StoreError> {
    let failed = |source| StoreError::Folder { dir: dir.to_owned(), step: "lock", source };
    let path = dir.join("LOCK");
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let (mut file, read_only) = match opened {
        Ok(file) => (file, false),
        // A lock needs no right to write.
        Err(error) if is_read_only(&error) => (File::open(&path).map_err(|_| failed(error))?, true),
        Err(error) => return Err(failed(error)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            // Without a readable id the message is only less specific.
            let _ = (&file).take(32).read_to_string(&mut text);
            return Err(StoreError::InUse { dir: dir.to_owned(), pid: text.trim().parse().ok() });
        }
        Err(error) => return Err(failed(error.into())),
    }
    // The id is for people; a full or read-only disk must not keep the store from opening.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok((file, read_only))
}

/// True if a file cannot be opened for writing because of its disk or its owner.
pub(crate) fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// Writes a file so that after a power loss it is complete or absent.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    sync_parent(path)
}

/// Makes a rename in the folder of `path` outlive a power loss.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
