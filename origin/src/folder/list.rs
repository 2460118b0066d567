//! Listing a folder.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use crate::error::OriginError;
use crate::folder::error::failed;
use crate::folder::put::TEMPORARY;
use crate::folder::root::Root;
use crate::folder::stat;
use crate::listing::{Depth, ListedLink, Page, Skipped};

/// The most entries of one directory in a page. Sorting a page takes memory, and a directory can have any number of
/// entries.
const PAGE_ENTRIES: usize = 20_000;

/// One page of the entries below `prefix`, after the key `after`. A directory with more entries than a page can hold is
/// listed in the order of its file system. Each of its pages is sorted by itself, and its `next` is a position in the
/// file system's order.
pub(super) fn list(root: &Root, prefix: &[u8], after: Option<&[u8]>, depth: Depth) -> Result<Page, OriginError> {
    let mut page = Page::default();
    let folder = match root.open_folder(prefix) {
        Ok(folder) => folder,
        // As in a bucket, a prefix that does not exist is empty. A missing root, however, is a mistake.
        Err(OriginError::NotFound { .. }) if !prefix.is_empty() => {
            root.open_folder(b"")?;
            return Ok(page);
        }
        Err(error) => return Err(error),
    };
    let mut pending = Vec::new();
    let place = after.map_or(Some(0), place_of);
    let most = if depth == Depth::One && place.is_some() { PAGE_ENTRIES } else { usize::MAX };
    let rest = read_folder(&folder, prefix, place.unwrap_or(0), most, &mut page, &mut pending)?;
    let after = after.filter(|_| place.is_none());
    page.next = rest.map(|place| [&[0][..], &place.to_be_bytes()].concat());
    match depth {
        Depth::One => page.prefixes = pending,
        Depth::All => {
            while let Some(below) = pending.pop() {
                let result = root
                    .open_folder(&below)
                    .and_then(|folder| read_folder(&folder, &below, 0, usize::MAX, &mut page, &mut pending));
                match result {
                    Ok(_) => {}
                    // The entry was deleted since the directory was read.
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
    page.links.retain(|link| later(&link.key));
    page.files.sort_by(|a, b| a.key.cmp(&b.key));
    page.prefixes.sort();
    page.skipped.sort_by(|a, b| a.key.cmp(&b.key));
    page.links.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(page)
}

/// The position that `next` encodes; no key has its form.
fn place_of(after: &[u8]) -> Option<i64> {
    let place = after.strip_prefix(&[0])?;
    place.try_into().ok().map(i64::from_be_bytes)
}

/// Adds at most `most` entries of one directory, from a position on, to `page`, unsorted. Adds its subdirectories to
/// `below`. Returns the position after the last entry; `None` at the end.
fn read_folder(
    folder: &OwnedFd,
    prefix: &[u8],
    place: i64,
    most: usize,
    page: &mut Page,
    below: &mut Vec<Vec<u8>>,
) -> Result<Option<i64>, OriginError> {
    let fail = |errno| failed(prefix, "list", errno);
    let mut entries = Dir::read_from(folder).map_err(fail)?;
    if place != 0 {
        entries.seek(place).map_err(fail)?;
    }
    let mut after_last = place;
    for nth in 0.. {
        let Some(entry) = entries.read() else { break };
        let entry = entry.map_err(fail)?;
        if nth >= most {
            return Ok(Some(after_last));
        }
        after_last = entry.offset();
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
            FileType::Symlink => match rustix::fs::readlinkat(folder, entry.file_name(), Vec::new()) {
                Ok(target) => {
                    let mtime_ns = stat::mtime_ns(&metadata);
                    page.links.push(ListedLink { key, target: target.into_bytes(), mtime_ns });
                    continue;
                }
                // Somebody replaced or removed it meanwhile.
                Err(Errno::NOENT | Errno::INVAL) => continue,
                Err(_) => "a symbolic link that cannot be read",
            },
            FileType::Fifo => "a pipe",
            FileType::Socket => "a socket",
            FileType::BlockDevice | FileType::CharacterDevice => "a device",
            FileType::Unknown => "neither a file nor a folder",
        };
        page.skipped.push(Skipped { key, reason });
    }
    Ok(None)
}
