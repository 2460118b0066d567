//! The cache folder: its format marker, its lock, and the abilities of its file system.
//!
//! ```text
//!  format                           0 LARDERST 8 | version 9 | zeros 12 | crc32c of 0..12 16, little-endian
//!  LOCK                             held by flock while a process has the store open; contains that process's id
//!  index/                           RocksDB
//!  datasets/<snapshot>/slots        see `slots`
//!  datasets/<snapshot>/reservation  see `reservations`
//!  datasets/<snapshot>/segments/    00000001.seg and so on, see `segment` and `record`
//! ```
//! Invariant: a folder that holds anything else and no marker is refused and left unchanged, because the store deletes
//! files that it has no use for.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use larder_dataset::SnapshotId;
use rustix::fs::{FallocateFlags, FlockOperation};

use crate::buffer;
use crate::error::StoreError;
use crate::record::ALIGN_BYTES;

const MAGIC: [u8; 8] = *b"LARDERST";
const VERSION: u8 = 1;
const MARKER_BYTES: usize = 16;

/// A cache folder that this process owns until the value is dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Folder {
    /// Opens or creates the folder and takes its lock.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        let failed = |step| move |source| StoreError::Folder { dir: dir.to_owned(), step, source };
        std::fs::create_dir_all(dir).map_err(failed("create"))?;
        let marker = match std::fs::read(dir.join("format")) {
            Ok(marker) => Some(marker),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("read the format of")(error)),
        };
        match &marker {
            Some(marker) => check_marker(dir, marker)?,
            None => check_empty(dir)?,
        }
        let lock = take_lock(dir)?;
        if marker.is_none() {
            write_whole(&dir.join("format"), &encode_marker()).map_err(failed("write the format of"))?;
        }
        let folder = Self { dir: dir.to_owned(), _lock: lock };
        std::fs::create_dir_all(folder.datasets()).map_err(failed("create"))?;
        Ok(folder)
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

    /// The snapshots that have a folder.
    pub(crate) fn snapshots(&self) -> io::Result<Vec<SnapshotId>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.datasets())? {
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

fn check_marker(dir: &Path, found: &[u8]) -> Result<(), StoreError> {
    let expected = encode_marker();
    if found == expected {
        return Ok(());
    }
    match found.get(8) {
        Some(&version) if found.len() == MARKER_BYTES && found[..8] == MAGIC && version != VERSION => {
            Err(StoreError::Version { dir: dir.to_owned(), found: version, supported: VERSION })
        }
        _ => Err(StoreError::NotAStore { dir: dir.to_owned() }),
    }
}

/// A new store needs an empty folder. Files that an interrupted start may have left are allowed.
fn check_empty(dir: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Folder { dir: dir.to_owned(), step: "list", source };
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !["LOCK", "format.new", "lost+found"].iter().any(|&own| name == own) {
            return Err(StoreError::NotAStore { dir: dir.to_owned() });
        }
    }
    Ok(())
}

fn take_lock(dir: &Path) -> Result<File, StoreError> {
    let failed = |source| StoreError::Folder { dir: dir.to_owned(), step: "lock", source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("LOCK"))
        .map_err(failed)?;
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
    // The id is for people; a full disk must not keep the store from opening.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
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
