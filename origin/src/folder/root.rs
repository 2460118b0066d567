//! Opening files and folders below a root.
//!
//! The invariant: no path follows a symbolic link below the root or leaves the root.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::error::OriginError;
use crate::folder::error::failed;
use crate::key::Key;

/// The root folder, used by blocking calls.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    /// Set once the kernel reports that it has no openat2. Old container sandboxes report that too.
    pub(super) no_openat2: AtomicBool,
    puts: AtomicU64,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, no_openat2: AtomicBool::new(false), puts: AtomicU64::new(0) }
    }

    /// Returns a new number for each put of this origin.
    pub(super) fn next_put(&self) -> u64 {
        self.puts.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens the root itself, whose own path may contain symbolic links.
    pub(super) fn open(&self) -> Result<OwnedFd, OriginError> {
        let key = self.path.as_os_str().as_bytes();
        rustix::fs::openat(CWD, &self.path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| failed(key, "open", errno))
    }

    /// Opens a regular file for reading.
    pub(super) fn open_file(&self, key: &[u8]) -> Result<(OwnedFd, Stat), OriginError> {
        let root = self.open()?;
        // NONBLOCK: without it, opening a pipe would block until a writer opens it.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_beneath(root.as_fd(), key, flags).map_err(|errno| failed(key, "open", errno))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| failed(key, "stat", errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(OriginError::NotFound { key: Key::from(key) });
        }
        Ok((file, stat))
    }

    /// Opens the directory of a prefix. The prefix must be empty or end with `/`.
    pub(super) fn open_folder(&self, prefix: &[u8]) -> Result<OwnedFd, OriginError> {
        let root = self.open()?;
        match prefix.strip_suffix(b"/") {
            Some(path) => self
                .open_beneath(root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY)
                .map_err(|errno| failed(prefix, "open", errno)),
            None if prefix.is_empty() => Ok(root),
            None => Err(OriginError::Invalid { what: format!("{}: a prefix must end with '/'", Key::from(prefix)) }),
        }
    }

    fn open_beneath(&self, root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if !is_plain(path) {
            return Err(Errno::NOENT);
        }
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if !self.no_openat2.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(root, OsStr::from_bytes(path), flags, Mode::empty(), resolve) {
                Err(Errno::NOSYS | Errno::PERM) => self.no_openat2.store(true, Ordering::Relaxed),
                // A concurrent rename or mount affected the path; the kernel requests a retry.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
        open_by_parts(root, path, flags)
    }
}

/// Opens a path part by part. Fails if any part is a symbolic link.
fn open_by_parts(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    let mut folder: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        let at = folder.as_ref().map_or(root, AsFd::as_fd);
        let part_flags = match parts.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            None => flags,
        };
        folder = Some(rustix::fs::openat(at, OsStr::from_bytes(part), part_flags, Mode::empty())?);
    }
    folder.ok_or(Errno::NOENT)
}

/// True if a key is a path without empty parts, `.`, `..` or NUL bytes.
pub(super) fn is_plain(key: &[u8]) -> bool {
    !key.contains(&0) && key.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}
