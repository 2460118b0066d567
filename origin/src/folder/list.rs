//! Listing a folder.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::error::OriginError;
use crate::folder::error::failed;
use crate::folder::put::TEMPORARY;
use crate::folder::root::Root;
use crate::folder::stat;
use crate::listing::{Depth, Page, Skipped};

/// One page with everything below `prefix`, after the key `after`.
pub(super) fn list(root: &Root, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
    let mut page = Page::default();
    let folder = match root.open_folder(prefix) {
        Ok(folder) => folder,
        // As in a bucket, a prefix that does not exist is empty; but a missing root is a mistake.
        Err(OriginError::NotFound { .. }) if !prefix.is_empty() => {
            root.open_folder(b"")?;
            return Ok(page);
        }
        Err(error) => return Err(error),
    };
    let mut pending = Vec::new();
    read_folder(&folder, prefix, &mut page, &mut pending)?;
    match depth {
        Depth::One => page.prefixes = pending,
        Depth::All => {
            while let Some(below) = pending.pop() {
                let result =
                    root.open_folder(&below).and_then(|folder| read_folder(&folder, &below, &mut page, &mut pending));
                match result {
                    Ok(()) => {}
                    // Deleted since it was listed.
                    Err(OriginError::NotFound { .. }) => {}
                    Err(OriginError::Denied { .. }) => {
                        page.skipped.push(Skipped { key: below, reason: "a folder without read permission" });
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    let later = |key: &[u8]| after.is_none_or(|after| key > after);
    page.files.retain(|file| later(&file.key));
    page.prefixes.retain(|prefix| later(prefix));
    page.skipped.retain(|skipped| later(&skipped.key));
    page.files.sort_by(|a, b| a.key.cmp(&b.key));
    page.prefixes.sort();
    page.skipped.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(page)
}

/// Adds the entries of one directory to `page`, unsorted, and its subdirectories to `below`.
fn read_folder(folder: &OwnedFd, prefix: &[u8], page: &mut Page, below: &mut Vec<Vec<u8>>) -> Result<(), OriginError> {
    let fail = |errno| failed(prefix, "list", errno);
    for entry in Dir::read_from(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || name.starts_with(TEMPORARY) {
            continue;
        }
        let mut key = [prefix, name].concat();
        let metadata = match rustix::fs::statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(metadata) => metadata,
            Err(Errno::NOENT) => continue,
            Err(_) => {
                page.skipped.push(Skipped { key, reason: "an entry whose metadata cannot be read" });
                continue;
            }
        };
        let reason = match FileType::from_raw_mode(metadata.st_mode) {
            FileType::RegularFile => {
                page.files.push(stat::object_info(key, &metadata));
                continue;
            }
            FileType::Directory => {
                key.push(b'/');
                below.push(key);
                continue;
            }
            FileType::Symlink => "a symbolic link",
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::BlockDevice | FileType::CharacterDevice => "a device",
            FileType::Unknown => "neither a file nor a folder",
        };
        page.skipped.push(Skipped { key, reason });
    }
    Ok(())
}
