//! Files that are reloaded when they change.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Device, inode, modification time (s, ns), size.
type FileVersion = (u64, u64, i64, i64, u64);

/// Identifies the current state of several files; `None` for a file whose metadata cannot be read.
pub(super) type Versions = Vec<Option<FileVersion>>;

pub(super) fn versions<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Versions {
    let version = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
    };
    paths.into_iter().map(version).collect()
}

/// The versions of files at the last checks.
#[derive(Debug)]
pub(super) struct Watched {
    /// The versions taken before the last load: a file that changes during the load is loaded again.
    loaded: Versions,
    /// The versions that could not be loaded and whose error was returned.
    reported: Option<Versions>,
}

impl Watched {
    /// Starts with files that were loaded after the versions in `loaded` were taken.
    pub(super) fn new(loaded: Versions) -> Self {
        Self { loaded, reported: None }
    }

    /// Loads the files if they differ from those loaded last. `None` if they do not differ, or if they still cannot be
    /// loaded and the error was returned before. Blocks on the disk.
    pub(super) fn look<T, E>(&mut self, now: Versions, load: impl FnOnce() -> Result<T, E>) -> Option<Result<T, E>> {
        if now == self.loaded {
            self.reported = None;
            return None;
        }
        let outcome = load();
        if outcome.is_ok() {
            self.loaded = now;
            self.reported = None;
        } else if self.reported.replace(now.clone()) == Some(now) {
            return None;
        }
        Some(outcome)
    }
}
