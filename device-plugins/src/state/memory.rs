//! The faults of GPUs, kept in a file, so that a restart of the process makes no GPU healthy and shortens no quiet
//! time. A reboot of the node does: it resets the GPUs, and the driver reports what that did not help.
//!
//! ```json
//! {"version": 1, "boot": "3b7e…",
//!  "faults": [{"gpu": "GPU-…", "action": "drainGpu", "what": "Xid 95: …", "since": 1, "last": 2,
//!              "awaitsReset": true, "repairPending": false}],
//!  "history": [{"gpu": "GPU-…", "begun": [1]}]}
//! ```
//!
//! The file is a help, no necessity: one that is missing, torn or of another version is as if it were empty.
//!
//! Invariant: the file decides which GPUs are given to pods, so no other user can write to its folder, and no symbolic
//! link is followed to the folder or the file.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::health::{History, Memory, Remembered};
use larder_kubelet::atomic_file;

const VERSION: u32 = 1;

/// The pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(30);

/// More than any node's faults take.
const LARGEST: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    boot: String,
    faults: Vec<Remembered>,
    /// Version 0.1 kept none.
    #[serde(default)]
    history: Vec<History>,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another user could change the file.
    #[error("{} {why}: remove it, or choose another one", folder.display())]
    NotOwn {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        why: String,
    },
    /// It cannot be created or opened.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads what an earlier process wrote since the node was booted. `boot` is the kernel's `random/boot_id`. Creates the
/// folder if it is missing.
///
/// # Errors
/// Another user could change the file. If it cannot be read for any other reason, that is only logged.
pub fn load(path: &Path, boot: &str) -> Result<Memory, FolderError> {
    let folder = match open_folder(path) {
        Ok(folder) => folder,
        Err(FolderError::Io(error)) => {
            warn!(path = %path.display(), %error, "cannot keep GPU faults for a restart");
            return Ok(Memory::default());
        }
        Err(error) => return Err(error),
    };
    match read(&folder, path) {
        Ok(Kept { version: VERSION, boot: of, faults, history }) if of == boot => Ok(Memory { faults, history }),
        Ok(_) => Ok(Memory::default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Memory::default()),
        Err(error) => {
            warn!(path = %path.display(), %error, "cannot read the GPU faults of earlier processes");
            Ok(Memory::default())
        }
    }
}

/// Opens the folder of the file. Creates it if it is missing.
fn open_folder(path: &Path) -> Result<OwnedFd, FolderError> {
    let folder = path.parent().ok_or(io::ErrorKind::IsADirectory).map_err(io::Error::from)?;
    let not_own = |why| FolderError::NotOwn { folder: folder.to_owned(), why };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match open(folder, flags, Mode::empty()) {
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
            return Err(not_own("is a symbolic link or no directory".to_owned()));
        }
        opened => opened.map_err(io::Error::from)?,
    };
    match others(&opened)? {
        Some(why) => Err(not_own(why)),
        None => Ok(opened),
    }
}

/// Why users other than that of this process can change the file or folder.
fn others(opened: &OwnedFd) -> io::Result<Option<String>> {
    let (found, own) = (fstat(opened)?, geteuid().as_raw());
    Ok(match found.st_mode & 0o022 {
        _ if found.st_uid != own => Some(format!("belongs to uid {} and not to uid {own}", found.st_uid)),
        0 => None,
        _ => Some(format!("can be written to by others: its mode is {:o}", found.st_mode & 0o7777)),
    })
}

fn read(folder: &OwnedFd, path: &Path) -> io::Result<Kept> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    // NONBLOCK: a FIFO must not hold up the start.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    if !FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if let Some(why) = others(&file)? {
        return Err(io::Error::other(format!("it {why}")));
    }
    let mut text = Vec::new();
    File::from(file).take(LARGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Writes the newest faults whenever they change, until `stop` is cancelled or the state is gone; the last ones are written
/// before it returns. `written` is what [`load`] returned. A write that fails is logged and tried again.
pub async fn keep(
    path: PathBuf,
    boot: String,
    mut written: Memory,
    mut memory: watch::Receiver<Memory>,
    stop: CancellationToken,
) {
    let mut is_last = false;
    while !is_last {
        is_last = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            changed = memory.changed() => changed.is_err(),
            () = tokio::time::sleep(AGAIN), if *memory.borrow() != written => false,
        };
        let newest = memory.borrow_and_update().clone();
        if newest == written {
            continue;
        }
        let Memory { faults, history } = newest.clone();
        let kept = Kept { version: VERSION, boot: boot.clone(), faults, history };
        let target = path.clone();
        let result = tokio::task::spawn_blocking(move || write(&target, &kept)).await;
        match result.unwrap_or_else(|panic| Err(io::Error::other(panic).into())) {
            Ok(()) => written = newest,
            Err(error) => warn!(path = %path.display(), %error, "cannot save GPU faults for a restart"),
        }
    }
}

fn write(path: &Path, kept: &Kept) -> Result<(), FolderError> {
    let mut text = serde_json::to_vec(kept).map_err(io::Error::from)?;
    text.push(b'\n');
    let folder = open_folder(path)?;
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory).map_err(io::Error::from)?;
    // The folder that was checked, whatever its path leads to by now.
    let target = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok(atomic_file::replace(&target, &text, 0o600)?)
}
