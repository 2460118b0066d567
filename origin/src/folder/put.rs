//! Writing a file: under a temporary name, synced, then renamed. Removing a file.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::OriginError;
use crate::folder::error::{failed, write_failed};
use crate::folder::root::{Root, is_plain};
use crate::folder::stat;
use crate::key::Key;
use crate::version::Version;

/// The prefix of the temporary names of unfinished files. Listings omit these files.
pub(super) const TEMPORARY: &[u8] = b".larder-put-";

/// A file that is being written under a temporary name. Dropping it before `finish` removes it.
pub(super) struct UnfinishedFile {
    key: Vec<u8>,
    folder: OwnedFd,
    file: File,
    temporary: Vec<u8>,
    name: Vec<u8>,
    renamed: bool,
}

impl UnfinishedFile {
    /// Creates the file and its parent folders.
    pub(super) fn create(root: &Root, key: &[u8]) -> Result<Self, OriginError> {
        if !is_plain(key) {
            return Err(OriginError::Invalid { what: format!("{}: not a valid file name", Key::from(key)) });
        }
        let fail = |errno| failed(key, "write", errno);
        std::fs::create_dir_all(&root.path).map_err(|error| write_failed(key, error))?;
        let mut folder = root.open()?;
        let mut parts: Vec<&[u8]> = key.split(|byte| *byte == b'/').collect();
        let name = parts.pop().unwrap_or_default().to_vec();
        for part in parts {
            let part = OsStr::from_bytes(part);
            match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                Ok(()) => rustix::fs::fsync(&folder).map_err(fail)?,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(fail(errno)),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = rustix::fs::openat(&folder, part, flags, Mode::empty()).map_err(fail)?;
        }
        // The nonce is needed: another process, or one with the same id in another container, may write here too.
        let (nonce, number): (u64, u64) = (rand::random(), root.next_put());
        let temporary = [TEMPORARY, format!("{nonce:016x}-{number}").as_bytes()].concat();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, OsStr::from_bytes(&temporary), flags, Mode::from_raw_mode(0o666))
            .map_err(fail)?;
        Ok(Self { key: key.to_vec(), folder, file: File::from(file), temporary, name, renamed: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), OriginError> {
        self.file.write_all(bytes).map_err(|error| write_failed(&self.key, error))
    }

    /// Makes the file visible under its name and returns its version.
    pub(super) fn finish(mut self) -> Result<Version, OriginError> {
        self.file.sync_all().map_err(|error| write_failed(&self.key, error))?;
        let (from, to) = (OsStr::from_bytes(&self.temporary), OsStr::from_bytes(&self.name));
        rustix::fs::renameat(&self.folder, from, &self.folder, to)
            .map_err(|errno| failed(&self.key, "write", errno))?;
        self.renamed = true;
        rustix::fs::fsync(&self.folder).map_err(|errno| failed(&self.key, "write", errno))?;
        let metadata = rustix::fs::fstat(&self.file).map_err(|errno| failed(&self.key, "stat", errno))?;
        Ok(stat::version(&metadata))
    }
}

/// Removes a file, if it exists, and leaves its folder.
pub(super) fn remove(root: &Root, key: &[u8]) -> Result<(), OriginError> {
    if !is_plain(key) {
        return Err(OriginError::Invalid { what: format!("{}: not a valid file name", Key::from(key)) });
    }
    let name_at = key.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (prefix, name) = key.split_at(name_at);
    let removed = root.open_folder(prefix).and_then(|folder| {
        rustix::fs::unlinkat(&folder, OsStr::from_bytes(name), AtFlags::empty())
            .map_err(|errno| failed(key, "remove", errno))
    });
    match removed {
        Err(OriginError::NotFound { .. }) => Ok(()),
        removed => removed,
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.renamed {
            // If this fails too, the remaining file is harmless: listings omit it.
            let _ = rustix::fs::unlinkat(&self.folder, OsStr::from_bytes(&self.temporary), AtFlags::empty());
        }
    }
}
