//! The listing of an origin that this machine keeps, under the hash of its URL and server.
//!
//! ```text
//!   HASH.manifest         what was listed, replaced by renaming
//!   HASH.lock             locked while the origin is listed: a process that waits for it uses the other's listing
//!   HASH.refresh-failed   why the manifest could not be renewed, as long as that is so
//! ```
//!
//! Invariant: one process of a machine lists an origin at a time; the others wait for its listing and use it (ADR 18).

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_import::{DraftManifest, PublishError};

/// Interval between two attempts to lock: the holder may be another process.
const LOCK_RETRY: Duration = Duration::from_millis(100);

/// The listing of one origin.
#[derive(Clone, Debug)]
pub struct KeptListing(PathBuf);

/// Tells a file from the one that replaces it. A file that gets another name keeps its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// That of the file at `path`; `None`: there is none.
    pub fn of(path: &Path) -> Option<Self> {
        let about = std::fs::metadata(path).ok()?;
        Some(Self { device: about.dev(), inode: about.ino(), changed: (about.mtime(), about.mtime_nsec()) })
    }
}

impl KeptListing {
    /// That of the manifest at `path`.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The path of its manifest.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Which manifest is there now; `None`: none.
    pub fn stamp(&self) -> Option<Stamp> {
        Stamp::of(&self.0)
    }

    /// Waits until no other process on this machine lists the origin. The lock ends with the file. Cancel-safe.
    pub async fn lock(&self) -> io::Result<File> {
        let path = self.0.with_extension("lock");
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("lock {}: {error}", path.display()));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_RETRY).await,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }

    /// Stores a new listing.
    pub fn store(&self, manifest: DraftManifest) -> Result<(), PublishError> {
        manifest.write(&self.0)?;
        self.note_failure(None);
        Ok(())
    }

    /// Notes why it could not be renewed, for all that open it later; `None`: it was.
    pub fn note_failure(&self, why: Option<&str>) {
        let note = self.0.with_extension("refresh-failed");
        // The note is lost on a disk that fails. The log has it.
        let _ = match why {
            Some(why) => std::fs::write(note, why),
            None => std::fs::remove_file(note),
        };
    }

    /// Why it could not be renewed, if that is so.
    pub fn failure(&self) -> Option<String> {
        std::fs::read_to_string(self.0.with_extension("refresh-failed")).ok()
    }
}

/// Now, in nanoseconds since the epoch.
pub fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// How long ago that was; nothing if it is yet to come by this machine's clock.
pub fn age_of(listed_ns: i64) -> Duration {
    Duration::from_nanos(u64::try_from(i128::from(now_ns()) - i128::from(listed_ns)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listing_is_made_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let listing = KeptListing::at(folder.path().join("a.manifest"));
        let other = KeptListing::at(folder.path().join("b.manifest"));
        let first = listing.lock().await.unwrap();
        other.lock().await.unwrap();
        let waits = tokio::time::timeout(Duration::from_millis(300), listing.lock()).await;
        assert!(waits.is_err(), "the first still lists");
        drop(first);
        listing.lock().await.unwrap();
    }

    /// The listing of an empty folder.
    async fn draft(folder: &Path) -> DraftManifest {
        let empty = folder.join("empty");
        std::fs::create_dir_all(&empty).unwrap();
        let url = larder_origin::OriginUrl::folder(&empty).unwrap();
        let origin = larder_origin::open(&url, &larder_origin::OriginConfig::default()).unwrap();
        let options = larder_import::ImportOptions::new("n", folder.join("imports"));
        larder_import::import(origin, options, &larder_import::Silent).await.unwrap().manifest
    }

    #[tokio::test]
    async fn a_replaced_manifest_has_another_stamp_and_a_failure_is_noted_until_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let listing = KeptListing::at(folder.path().join("a.manifest"));
        assert_eq!(listing.stamp(), None);
        listing.store(draft(folder.path()).await).unwrap();
        let first = listing.stamp();
        listing.note_failure(Some("denied"));
        assert_eq!((listing.stamp(), listing.failure().as_deref()), (first, Some("denied")));
        listing.store(draft(folder.path()).await).unwrap();
        assert!(listing.stamp() != first && listing.failure().is_none());
    }
}
