//! The manifests that a node keeps of the datasets that it has found: the next process opens mounts with them that
//! outlive this one, and the next snapshot of an origin adopts blocks by them.
//!
//! ```text
//!   mounts/ID.manifest          the manifest of the dataset ID
//!   mounts/ID.manifest.order    what is warmed first, if it has an order
//!   mounts/ID.refresh-failed    why its listing could not be renewed
//!   mounts/ID.new-RANDOM        a manifest that is being kept, or was when its process was killed
//!   mounts/.lock                locked while a manifest is kept, and while one is removed
//!   caches/HASH                 the path of a cache folder whose processes keep manifests here
//! ```
//! [`KeptManifests::collect`] removes manifests that nothing needs.
//!
//! Invariant: a manifest is removed only if no cache that uses this home had anything of its snapshot shortly before,
//! and if under the lock no mount of this process needs it and it was kept longer ago than a mount takes to be made. A
//! mount that needs it again keeps it anew, which makes it too young to remove. A process that keeps one holds the lock
//! until all of it is there. So what was found for a mount stays until the mount is open and then for as long as it is
//! mounted or cached, whichever process is killed meanwhile.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_dataset::SnapshotId;
use larder_import::remove_old_journals;
use larder_store::has_snapshot;
use tracing::warn;

use crate::home::Home;
use crate::kept_listing::KeptListing;
use crate::manifest_file::{ManifestFileError, link_manifest, open_manifest, order_of, put_order};
use crate::source::{IMPORTS, ResolvedSource, short_hash};

/// The folder of the manifests.
pub(crate) const MOUNTS: &str = "mounts";

/// The folder of the paths of caches.
const CACHES: &str = "caches";

/// How the names of files begin that are being written, and how long that can take. An older one was left by a killed
/// process.
const DRAFTS: &str = ".larder-";
const DRAFT_MOST: Duration = Duration::from_secs(24 * 3600);

/// An import does not continue an older journal.
const JOURNAL_MOST: Duration = Duration::from_secs(24 * 3600);

/// How long to wait for another process that keeps or removes a manifest, which takes it milliseconds.
const LOCK_MOST: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// How long a cache whose folder is not there counts as one on a disk that will be mounted again.
const CACHE_MISSING_MOST: Duration = Duration::from_secs(30 * 24 * 3600);

/// How often the note of a cache is written again, so that it shows that the cache is used.
const NOTE_EVERY: Duration = Duration::from_secs(24 * 3600);

/// The kept manifests of a home.
#[derive(Clone, Debug)]
pub(crate) struct KeptManifests {
    home: Home,
    /// The folders of this process's cache.
    cache_dirs: Vec<PathBuf>,
}

impl KeptManifests {
    /// Those in `home`, for the process that has the cache in `cache_dirs`.
    pub(crate) fn new(home: Home, cache_dirs: Vec<PathBuf>) -> Self {
        Self { home, cache_dirs }
    }

    /// Where the manifest of a dataset is kept.
    pub(crate) fn path(&self, id: &str) -> io::Result<PathBuf> {
        Ok(self.home.sub_folder(MOUNTS)?.join(format!("{id}.manifest")))
    }

    /// Keeps the manifest under the dataset's id too: the next snapshot will replace the one under its URL's hash.
    /// Blocks on the disk.
    pub(crate) fn keep(&self, id: &str, source: &ResolvedSource) -> io::Result<()> {
        let kept = self.path(id)?;
        let _lock = lock(&self.home)?;
        if let Err(error) = self.register() {
            // A full disk may still have room for a link.
            warn!(
                %error, home = %self.home.dir().display(),
                "cannot register this cache in the home folder: other processes may remove manifests that its \
                next snapshot needs"
            );
        }
        let fresh = kept.with_extension(format!("new-{:016x}", RandomState::new().hash_one(())));
        // A new link changes the time that a file was kept at, even if it has that name already.
        let kept_now = link_manifest(&source.manifest, &fresh, |bytes| self.home.take(bytes))
            .and_then(|()| std::fs::rename(&fresh, &kept));
        // If both names are links to one file, the rename does nothing and leaves the second.
        let _ = std::fs::remove_file(&fresh);
        kept_now?;
        let order = order_of(&source.path);
        self.home.take(std::fs::metadata(&order).map_or(0, |about| about.len()))?;
        put_order(&order, &kept)?;
        KeptListing::at(kept).note_failure(source.refresh_failed.as_deref());
        Ok(())
    }

    /// True if this manifest is kept under the dataset's id already. Blocks on the disk.
    pub(crate) fn has(&self, id: &str, snapshot: SnapshotId) -> bool {
        let kept = self.path(id).ok().and_then(|path| open_manifest(&path).ok());
        kept.is_some_and(|kept| kept.snapshot() == snapshot)
    }

    /// Notes that the cache of this process uses this home.
    fn register(&self) -> io::Result<()> {
        self.cache_dirs.iter().try_for_each(|cache_dir| self.register_folder(cache_dir))
    }

    fn register_folder(&self, cache_dir: &Path) -> io::Result<()> {
        let cache_dir = cache_dir.canonicalize().unwrap_or_else(|_| cache_dir.to_owned());
        let path = cache_dir.as_os_str().as_bytes();
        let note = self.home.sub_folder(CACHES)?.join(short_hash(&[&cache_dir.to_string_lossy()]));
        if std::fs::read(&note).is_ok_and(|noted| noted == path) && !is_older(&note, NOTE_EVERY) {
            return Ok(());
        }
        let mut draft = tempfile::Builder::new().prefix(DRAFTS).tempfile_in(self.home.sub_folder(CACHES)?)?;
        draft.write_all(path)?;
        // Half a path would be that of a cache that is not there.
        draft.persist(note).map_err(|error| error.error)?;
        Ok(())
    }

    /// The datasets whose manifests are kept, and their snapshots. Blocks on the disk.
    pub(crate) fn all(&self) -> Vec<(String, SnapshotId)> {
        let folder = self.home.sub_folder(MOUNTS).and_then(std::fs::read_dir);
        let kept = folder.into_iter().flatten().flatten().filter_map(|entry| {
            let path = entry.path();
            let id = path.file_name()?.to_str()?.strip_suffix(".manifest")?.to_owned();
            Some((id, open_manifest(&path).ok()?.snapshot()))
        });
        kept.collect()
    }

    /// Removes the manifests that nothing needs: those kept longer ago than `kept_least` of which `is_mounted` is false
    /// and of whose snapshots no cache has anything. Also removes journals that no import would continue. Returns how
    /// many manifests were removed. Blocks on the disk. May be killed anywhere: what it leaves is removed by the next
    /// call. Errors: the folder cannot be listed or locked.
    pub(crate) fn collect(&self, kept_least: Duration, is_mounted: impl Fn(&str) -> bool) -> io::Result<usize> {
        remove_drafts(&self.home.sub_folder("manifests")?, DRAFT_MOST);
        remove_old_journals(&self.home.dir().join(IMPORTS), JOURNAL_MOST);
        let folder = self.home.sub_folder(MOUNTS)?;
        remove_drafts(&folder, DRAFT_MOST);
        let mut ids = BTreeSet::new();
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some((id, what)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            if what.starts_with("new-") && is_older(&entry.path(), kept_least) {
                // It was being kept when its process was killed.
                let _ = std::fs::remove_file(entry.path());
            } else if !id.is_empty() {
                ids.insert(id.to_owned());
            }
        }
        let mut removed = 0;
        for id in ids {
            let manifest = folder.join(format!("{id}.manifest"));
            // Without the lock: the disk of a cache may take for ever. A manifest that is kept anew meanwhile is not
            // old any more.
            if !is_removable(&manifest, kept_least) || self.may_be_cached(&manifest) {
                continue;
            }
            // Locked for one manifest at a time, so that a caller that keeps one does not wait for long.
            let _lock = lock(&self.home)?;
            removed += usize::from(remove_unless_needed(&manifest, &id, kept_least, &is_mounted));
        }
        Ok(removed)
    }

    /// False if no cache that uses this home has anything of the manifest's snapshot.
    fn may_be_cached(&self, manifest: &Path) -> bool {
        let snapshot = match open_manifest(manifest) {
            Ok(manifest) => manifest.snapshot(),
            Err(ManifestFileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return false,
            // The disk may give it again.
            Err(ManifestFileError::Io { .. }) => return true,
            // It is damaged, and nothing can be opened with it.
            Err(ManifestFileError::Manifest { .. }) => return false,
        };
        let Ok(caches) = self.caches() else { return true };
        let is_missing = |cache: &Path| !cache.try_exists().unwrap_or(true);
        self.cache_dirs.iter().any(|cache| has_snapshot(cache, &snapshot).unwrap_or(true))
            || caches.iter().any(|cache| is_missing(cache) || has_snapshot(cache, &snapshot).unwrap_or(true))
    }

    /// The caches whose processes said that they use this home. Those whose folder has long been missing are forgotten.
    fn caches(&self) -> io::Result<Vec<PathBuf>> {
        let mut caches = Vec::new();
        for note in std::fs::read_dir(self.home.sub_folder(CACHES)?)? {
            let note = note?;
            if note.file_name().as_encoded_bytes().starts_with(DRAFTS.as_bytes()) {
                continue;
            }
            let cache = PathBuf::from(OsString::from_vec(std::fs::read(note.path())?));
            if is_older(&note.path(), CACHE_MISSING_MOST) && matches!(cache.try_exists(), Ok(false)) {
                let _ = std::fs::remove_file(note.path());
            } else {
                caches.push(cache);
            }
        }
        Ok(caches)
    }
}

/// False if a manifest is there that was kept less long ago than `kept_least`.
fn is_removable(manifest: &Path, kept_least: Duration) -> bool {
    manifest.symlink_metadata().is_err() || is_older(manifest, kept_least)
}

/// Removes a manifest and what is kept with it, unless it was kept anew or is mounted. True if there was a manifest.
/// The caller has the lock.
fn remove_unless_needed(manifest: &Path, id: &str, kept_least: Duration, is_mounted: &impl Fn(&str) -> bool) -> bool {
    let companions = [order_of(manifest), manifest.with_extension("refresh-failed")];
    let is_there = manifest.symlink_metadata().is_ok();
    if is_there && (!is_older(manifest, kept_least) || is_mounted(id)) {
        return false;
    }
    // The manifest first: the next collection removes companions that have no manifest.
    if is_there && let Err(error) = std::fs::remove_file(manifest) {
        warn!(%error, path = %manifest.display(), "cannot remove an unused manifest");
        return false;
    }
    for companion in companions {
        let _ = std::fs::remove_file(companion);
    }
    is_there
}

/// Waits until no other process keeps or removes a manifest of this home. The lock ends with the file. Blocks. Errors:
/// `TimedOut` if another process does not let go.
fn lock(home: &Home) -> io::Result<File> {
    let path = home.sub_folder(MOUNTS)?.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_MOST => std::thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => {
                let path = path.display();
                let why = format!(
                    "another process has held {path} for {LOCK_MOST:?}: find it with fuser(1), and check \
                    whether it hangs"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// True if a file got its name longer ago than `least`, and no other name since.
fn is_older(path: &Path, least: Duration) -> bool {
    let Ok(file) = path.symlink_metadata() else { return false };
    let (Ok(seconds), Ok(nanos)) = (file.ctime().try_into(), file.ctime_nsec().try_into()) else { return false };
    // A file from the future was just made: the clock was set back since.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::new(seconds, nanos)) >= least
}

/// Removes what killed processes were writing in a folder.
fn remove_drafts(folder: &Path, least: Duration) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_draft = entry.file_name().as_encoded_bytes().starts_with(DRAFTS.as_bytes());
        if is_draft && is_older(&entry.path(), least) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
