//! Tests whether files can be created and written in a folder, by creating one. Also measures how much disk space a
//! cache may take there. All programs use these functions, so their results agree.
//!
//! Invariant: a file left behind by a killed process has a name that only this module uses. A folder that contains one
//! still counts as empty, or as a cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::buffer;
use crate::record::ALIGN_BYTES;

/// The prefix of a probe file's name.
pub(crate) const PREFIX: &str = ".larder-probe-";

/// Creates the folder if it is missing, writes a file in it, and removes the file. Errors: the disk or the permissions
/// of the folder do not allow one of these steps.
pub fn try_to_write(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    with_file(dir, 0, |file| {
        write_page(file)?;
        file.sync_all()
    })
}

/// Writes and reads a file in an existing folder past the page cache, then removes it. Errors: `InvalidInput` or
/// `Unsupported` if the file system has no direct I/O.
pub fn try_direct(dir: &Path) -> io::Result<()> {
    with_file(dir, libc::O_DIRECT, |file| {
        write_page(file)?;
        buffer::with(ALIGN_BYTES, |page| file.read_exact_at(page, 0))
    })
}

/// Calls `f` with a new file in the folder, and removes the file.
pub(crate) fn with_file<T>(dir: &Path, flags: i32, f: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
    let path = dir.join(format!("{PREFIX}{}", std::process::id()));
    // A killed process with the same id may have left this file.
    let _ = std::fs::remove_file(&path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).custom_flags(flags).open(&path)?;
    let outcome = f(&file);
    // A file that stays is harmless: its name is known.
    let _ = std::fs::remove_file(&path);
    outcome
}

fn write_page(file: &File) -> io::Result<()> {
    buffer::with(ALIGN_BYTES, |page| {
        page.fill(0);
        file.write_all_at(page, 0)
    })
}

/// Free bytes on a folder's disk.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Free bytes on a folder's disk in excess of `keep_free_percent` of the whole disk.
pub fn spare_bytes(dir: &Path, keep_free_percent: u8) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    let stays = u128::from(disk.f_blocks) * u128::from(keep_free_percent) / 100;
    let spare = disk.f_bavail.saturating_sub(u64::try_from(stays).unwrap_or(u64::MAX));
    Ok(spare.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_tried_by_writing_a_file_that_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        try_to_write(&dir).unwrap();
        std::fs::write(dir.join(format!("{PREFIX}{}", std::process::id())), b"of a killed process").unwrap();
        try_to_write(&dir).unwrap();
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        // A folder that cannot be made, and one in which nothing can.
        std::fs::write(dir.join("file"), b"").unwrap();
        assert_eq!(try_to_write(&dir.join("file/c")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert!(try_to_write(Path::new("/proc")).is_err());
    }
}
