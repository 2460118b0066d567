//! Folders that must be writable, and what to do about one that is not.

use std::io;
use std::path::{Path, PathBuf};

use larder_store::probe::try_to_write;

/// The flag and the variable that name the home.
pub(crate) const HOME_FLAG: &str = "--home or LARDER_HOME";

/// Nothing can be written to a folder. The message names the flag, and says what to do.
#[derive(Debug, thiserror::Error)]
#[error("write to the folder {} ({flag}): {}", .folder.display(), remedy(.source))]
pub struct FolderRefused {
    folder: PathBuf,
    flag: &'static str,
    source: io::Error,
}

impl FolderRefused {
    /// Wraps the error of an attempt to write to `folder`, which `flag` names.
    pub(crate) fn new(source: io::Error, folder: &Path, flag: &'static str) -> Self {
        Self { folder: folder.to_owned(), flag, source }
    }

    /// True if the disk has not answered in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.source.kind() == io::ErrorKind::TimedOut
    }
}

/// Creates a folder if it is missing, and writes a file in it. Blocks on the disk.
pub(crate) fn check_writable(folder: &Path, flag: &'static str) -> Result<(), FolderRefused> {
    try_to_write(folder).map_err(|source| FolderRefused::new(source, folder, flag))
}

/// True if an error means that a folder or its disk takes no writes. Its files may still be readable.
pub(crate) fn is_unwritable(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), ReadOnlyFilesystem | PermissionDenied | StorageFull | QuotaExceeded)
}

fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "its disk is read-only: mount it writable, or name a folder on another disk".to_owned()
        }
        io::ErrorKind::PermissionDenied => format!("it must belong to user {}", rustix::process::geteuid().as_raw()),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "its disk is full: make room, or name a folder on another disk".to_owned()
        }
        io::ErrorKind::TimedOut => "its disk does not answer: repair it, or name a folder on another disk".to_owned(),
        _ => "repair its disk, or name another folder".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use larder_dataset::Chain;
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_folder_that_cannot_be_used_says_why_what_to_do_and_which_flag() {
        for (errno, remedy) in [
            (Errno::ROFS, "read-only"),
            (Errno::ACCESS, "must belong to user"),
            (Errno::NOSPC, "full"),
            (Errno::TIMEDOUT, "does not answer"),
            (Errno::IO, "repair its disk"),
        ] {
            let message = Chain(&FolderRefused::new(errno.into(), Path::new("/f"), "--home")).to_string();
            assert!(message.contains("/f (--home)") && message.contains(remedy), "{message}");
        }
    }
}
