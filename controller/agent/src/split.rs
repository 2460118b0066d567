//! `split`: lists the files of a dataset that one pod of several is to read.
//!
//! All pods walk the same snapshot. A mount lists the entries of a folder always in the same order, so their walks are
//! equal, and the shares are disjoint and together complete. The walk keeps one open folder per level and no names.

use std::fs::{File, ReadDir};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder of a mount that is not part of the dataset.
const OWN_FOLDER: &str = ".larder";

/// Why the files could not be listed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SplitError {
    #[error("list {path}: {source}")]
    List { path: PathBuf, source: std::io::Error },
    #[error("write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{0:?} has a line break in its name, and the list has a file in each line")]
    LineBreak(PathBuf),
    #[error("the share {index} of {count} does not exist: give INDEX from 0 and a COUNT that is greater")]
    NoShare { index: u64, count: u64 },
}

/// Writes the paths of every `count`th file below `from`, beginning with the file `index`, to the file `to`.
pub(crate) fn split(from: &Path, index: u64, count: u64, to: &Path) -> Result<(), SplitError> {
    if index >= count {
        return Err(SplitError::NoShare { index, count });
    }
    let failed = |source| SplitError::Write { path: to.to_owned(), source };
    let mut list = BufWriter::new(File::create(to).map_err(failed)?);
    let mut folders = vec![open(from)?];
    let mut files: u64 = 0;
    while let Some((folder, entries)) = folders.last_mut() {
        let listed = |source| SplitError::List { path: folder.clone(), source };
        let Some(entry) = entries.next().transpose().map_err(listed)? else {
            folders.pop();
            continue;
        };
        let (kind, path) = (entry.file_type().map_err(listed)?, entry.path());
        if kind.is_dir() {
            if folders.len() > 1 || entry.file_name() != OWN_FOLDER {
                folders.push(open(&path)?);
            }
        } else if kind.is_file() || path.is_file() {
            if files % count == index {
                if path.as_os_str().as_bytes().contains(&b'\n') {
                    return Err(SplitError::LineBreak(path));
                }
                list.write_all(path.as_os_str().as_bytes()).and_then(|()| list.write_all(b"\n")).map_err(failed)?;
            }
            files += 1;
        }
    }
    list.flush().map_err(failed)
}

fn open(folder: &Path) -> Result<(PathBuf, ReadDir), SplitError> {
    let listed = |source| SplitError::List { path: folder.to_owned(), source };
    Ok((folder.to_owned(), std::fs::read_dir(folder).map_err(listed)?))
}
