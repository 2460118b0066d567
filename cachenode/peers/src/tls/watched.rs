//! Files that are loaded again when they change.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Device, inode, modification time (s, ns), size.
type FileVersion = (u64, u64, i64, i64, u64);

/// Identifies the present state of files; `None` for a file without metadata.
pub(super) type Versions = Vec<Option<FileVersion>>;

pub(super) fn versions<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Versions {
    let version = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.mtime(), found.mtime_nsec(), found.size()))
    };
    paths.into_iter().map(version).collect()
}

/// Versions of files, as last seen.
#[derive(Debug)]
pub(super) struct Watched {
    /// Before they were loaded last: a file that changes meanwhile is loaded again.
    loaded: Versions,
    /// Those that could not be loaded and were reported.
    reported: Option<Versions>,
}

impl Watched {
    /// Of files that were loaded after their versions were taken.
    pub(super) fn new(loaded: Versions) -> Self {
        Self { loaded, reported: None }
    }

    /// Loads the files if they differ from those that were loaded last. `None`: they do not, or cannot be loaded still,
    /// which was returned before. Blocks.
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
