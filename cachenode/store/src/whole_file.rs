//! Small files of a cache folder that are replaced as a whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Only the owner may access the cache's files.
pub(crate) const PRIVATE_FILE: u32 = 0o600;

/// Writes a file atomically: after a power loss, it is complete or absent.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(PRIVATE_FILE).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    sync_parent(path)
}

/// True if an error says that a file is damaged, so that it can be replaced. Any other error, such as a lack of memory,
/// of descriptors or of permission, says nothing about the file.
pub(crate) fn is_damaged(error: &io::Error) -> bool {
    // EUCLEAN and EBADMSG: the file system's own structures of the file are corrupt.
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EUCLEAN | libc::EBADMSG))
        || error.kind() == io::ErrorKind::UnexpectedEof
}

/// True if an error says nothing about the disk: the process lacks memory, descriptors or permission.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    use libc::{EACCES, EAGAIN, EINTR, ELOOP, EMFILE, ENFILE, ENOMEM, EPERM};
    matches!(error.raw_os_error(), Some(EACCES | EAGAIN | EINTR | ELOOP | EMFILE | ENFILE | ENOMEM | EPERM))
}

/// Makes a rename in the folder of `path` survive a power loss.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
