//! The home of a process whose home folder cannot be written to: a temporary one, which shows the manifests of the
//! other.
//!
//! ```text
//!   larder-home-HASH-RANDOM/   in the temporary folder; HASH is that of the home's path
//!     manifests/, mounts/      what is new, and links to what is in the home
//! ```
//! The cast: [`choose`] decides where the home of a process is; [`Temporary`] is a temporary one, of this process or of
//! a killed one. [`bring_home`] copies what is new to the home as soon as that can be written to, so that every other
//! process finds it there. The next process uses what it finds of those that were killed, or takes it to the home: a
//! mount outlives the process, and needs its manifest again.
//!
//! Invariant: a temporary home is locked by the process that uses it, and removed only when all that is new in it is
//! elsewhere.

use std::collections::HashMap;
use std::fs::{DirBuilder, DirEntry, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use larder_store::probe::try_to_write;
use rustix::fs::{FlockOperation, Mode, OFlags};
use tracing::{debug, info, warn};

use crate::home::Home;
use crate::kept_listing::Stamp;
use crate::kept_manifests::{DRAFTS, lock as lock_kept};
use crate::source::short_hash;

/// The folders whose files outlive a process.
const FOLDERS: [&str; 2] = ["manifests", "mounts"];

/// How the names of temporary homes begin.
const PREFIX: &str = "larder-home-";

/// A temporary home.
#[derive(Debug)]
pub(crate) struct Temporary {
    home: Home,
    /// Closed by the kernel when the process ends.
    _lock: OwnedFd,
}

/// The home of this process: `home` if it can be written to, which was `tried`, or could be but for a full disk;
/// otherwise a temporary one in the folder `temporary`. Errors: there can be none.
pub(crate) fn choose(home: &Home, tried: anyhow::Result<()>, temporary: &Path) -> anyhow::Result<Option<Temporary>> {
    let mut left = Temporary::left(home.dir(), temporary);
    let mut refusal = tried.err();
    if refusal.as_ref().is_none_or(|error| is_full(error) && home.dir().is_dir()) {
        let mut stayed = Vec::new();
        for left in left {
            match left.move_to(home) {
                Ok(()) => {
                    info!(
                        from = %left.home.dir().display(),
                        "manifests of an earlier process were brought to the home folder"
                    )
                }
                Err(error) => {
                    refusal.get_or_insert(error.into());
                    stayed.push(left);
                }
            }
        }
        if stayed.is_empty() {
            if let Some(error) = refusal {
                warn!(
                    error = format!("{error:#}"),
                    "no new manifest can be kept in the home folder until there is room"
                );
            }
            return Ok(None);
        }
        left = stayed;
    }
    let used = match left.pop() {
        Some(left) => left,
        None => Temporary::make(home.dir(), temporary)?,
    };
    for other in left {
        if let Err(error) = other.move_to(&used.home) {
            warn!(%error, from = %other.home.dir().display(), "manifests of an earlier process cannot be moved");
        }
    }
    used.show(home)?;
    warn!(
        error = refusal.map(|error| format!("{error:#}")),
        instead = %used.home.dir().display(),
        "no manifest can be written to the home folder: new ones are kept elsewhere until it can be"
    );
    Ok(Some(used))
}

impl Temporary {
    pub(crate) const fn home(&self) -> &Home {
        &self.home
    }

    /// A new one, for this user alone, with a name that nobody can guess.
    fn make(home: &Path, temporary: &Path) -> anyhow::Result<Self> {
        let name = format!("{}{:016x}", prefix(home), RandomState::new().hash_one(()));
        let folder = temporary.join(name);
        let made = DirBuilder::new().mode(0o700).create(&folder).and_then(|()| lock(&folder));
        let lock = made.with_context(|| {
            let temporary = temporary.display();
            format!(
                "make a folder in {temporary} in place of the home folder: make --home or {temporary} (TMPDIR) writable"
            )
        })?;
        Ok(Self { home: Home::new(folder), _lock: lock })
    }

    /// Those that processes with this home left when they ended.
    fn left(home: &Path, temporary: &Path) -> Vec<Self> {
        let own = rustix::process::geteuid().as_raw();
        let prefix = prefix(home);
        // The name first: what else is in the temporary folder may be a mount that waits for this very process.
        let is_ours = |entry: &DirEntry| {
            entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes())
                && entry.metadata().is_ok_and(|found| found.uid() == own && found.mode() & 0o077 == 0)
        };
        let found = std::fs::read_dir(temporary).into_iter().flatten().flatten().filter(is_ours);
        let taken = |entry: DirEntry| Some(Self { _lock: lock(&entry.path()).ok()?, home: Home::new(entry.path()) });
        found.filter_map(taken).collect()
    }

    /// Shows what is in the home beside what is new here.
    fn show(&self, home: &Home) -> io::Result<()> {
        for name in FOLDERS {
            let here = self.home.sub_folder(name)?;
            for path in files_in(&home.dir().join(name)) {
                let link = here.join(path.file_name().unwrap_or_default());
                // Notes about a manifest that was replaced here are void. A lock must be of a file that can be written.
                let is_replaced = is_new(&link.with_extension("manifest")) && has_extension(&path, "refresh-failed");
                if !is_replaced && !has_extension(&path, "lock") {
                    // A failure is harmless: the file is there already, or is fetched again.
                    let _ = std::os::unix::fs::symlink(&path, link);
                }
            }
        }
        Ok(())
    }

    /// Moves what is new here to `to`, and removes the rest.
    fn move_to(&self, to: &Home) -> io::Result<()> {
        self.copy_to(to, &mut HashMap::new())?;
        // The next process tries again to remove the rest.
        let _ = std::fs::remove_dir_all(self.home.dir());
        Ok(())
    }

    /// Copies what is new here and not among what was `brought` to `to`, where it replaces what is older. Returns the
    /// number of files.
    fn copy_to(&self, to: &Home, brought: &mut HashMap<PathBuf, Stamp>) -> io::Result<usize> {
        // Mounts share the file of a manifest.
        let mut copied: HashMap<u64, PathBuf> = HashMap::new();
        let mut count = 0;
        for name in FOLDERS {
            let new = self.new_in(name, brought);
            if new.is_empty() {
                continue;
            }
            let there = to.sub_folder(name)?;
            for (path, stamp) in new {
                let target = there.join(path.file_name().unwrap_or_default());
                let from = std::fs::metadata(&path)?;
                let is_newer = |found: std::fs::Metadata| found.modified().ok() > from.modified().ok();
                if !std::fs::metadata(&target).is_ok_and(is_newer) {
                    // A leftover of a killed process is collected by its name.
                    let fresh = there.join(format!("{DRAFTS}{}", std::process::id()));
                    let _ = std::fs::remove_file(&fresh);
                    match copied.get(&from.ino()) {
                        Some(same) => std::fs::hard_link(same, &fresh)?,
                        None => copy(&path, &fresh)?,
                    }
                    // Kept and removed under this lock.
                    let _lock = lock_kept(to)?;
                    std::fs::rename(&fresh, &target)?;
                    // Both names may have been links to one file, which a rename leaves.
                    let _ = std::fs::remove_file(&fresh);
                    if has_extension(&path, "manifest") {
                        // It is of the manifest that was there. The new one's file, if any, follows.
                        let _ = std::fs::remove_file(target.with_extension("refresh-failed"));
                    }
                    copied.insert(from.ino(), target);
                    count += 1;
                }
                brought.insert(path, stamp);
            }
            File::open(there)?.sync_all()?;
        }
        Ok(count)
    }

    /// The files of a folder that are new here and not among what was `brought`, by name.
    fn new_in(&self, name: &str, brought: &HashMap<PathBuf, Stamp>) -> Vec<(PathBuf, Stamp)> {
        let files = files_in(&self.home.dir().join(name)).into_iter();
        let new = files.filter(|path| is_new(path) && !has_extension(path, "lock"));
        let stamped = new.filter_map(|path| Stamp::of(&path).map(|stamp| (path, stamp)));
        stamped.filter(|(path, stamp)| brought.get(path) != Some(stamp)).collect()
    }

    /// Copies what is new here to `home`, if that can be written to by now.
    fn bring_to(&self, home: &Home, brought: &mut HashMap<PathBuf, Stamp>) {
        if FOLDERS.iter().all(|name| self.new_in(name, brought).is_empty()) || try_to_write(home.dir()).is_err() {
            return;
        }
        match self.copy_to(home, brought) {
            Ok(0) => {}
            Ok(files) => {
                info!(
                    files, home = %home.dir().display(),
                    "the home folder can be written to again: it has the new manifests too"
                )
            }
            // A process that starts says why.
            Err(error) => debug!(%error, "new manifests cannot be brought to the home folder yet"),
        }
    }
}

/// Keeps `home` supplied with what is new in the temporary home that stands for it, whenever it can be written to. This
/// process goes on with the temporary one. Does not return.
pub(crate) async fn bring_home(temporary: Temporary, home: Home, every: Duration) {
    let mut state = (temporary, HashMap::new());
    loop {
        tokio::time::sleep(every).await;
        let home = home.clone();
        let bring = move || {
            let (temporary, mut brought) = state;
            temporary.bring_to(&home, &mut brought);
            (temporary, brought)
        };
        match tokio::task::spawn_blocking(bring).await {
            Ok(after) => state = after,
            // The runtime is going.
            Err(_) => return,
        }
    }
}

/// How the names of temporary homes in the place of this one begin.
fn prefix(home: &Path) -> String {
    format!("{PREFIX}{}-", short_hash(&[&home.to_string_lossy()]))
}

fn lock(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

/// The files in a folder, by name: a manifest comes before what is said of it. Without locks and what is being written.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let is_being_kept =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension.as_encoded_bytes().starts_with(b"new-"));
    let paths = entries.map(|entry| entry.path());
    let mut files: Vec<_> = paths.filter(|path| !is_hidden(path) && !is_being_kept(path)).collect();
    files.sort_unstable();
    files
}

/// True if a file of a temporary home is there, and no link.
fn is_new(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Copies a file, with the time of its last change, which tells the newer of two.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut copy) = (File::open(from)?, File::create_new(to)?);
    io::copy(&mut from, &mut copy)?;
    copy.set_modified(from.metadata()?.modified()?)?;
    copy.sync_all()
}

/// True if nothing but a lack of room prevents a write.
fn is_full(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bed {
        folder: tempfile::TempDir,
        home: Home,
    }

    impl Bed {
        /// A home with one manifest, of two mounts.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let home = Home::new(folder.path().join("home"));
            let bed = Self { folder, home };
            std::fs::create_dir(bed.temporary()).unwrap();
            bed.write(&bed.home, "manifests/old.manifest", "old rows");
            bed.write(&bed.home, "manifests/old.lock", "");
            bed.write(&bed.home, "manifests/old.refresh-failed", "denied");
            bed
        }

        fn temporary(&self) -> PathBuf {
            self.folder.path().join("tmp")
        }

        fn choose(&self, error: Option<io::ErrorKind>) -> Option<Temporary> {
            let tried = error.map_or(Ok(()), |kind| Err(anyhow::Error::from(io::Error::from(kind)).context("write")));
            choose(&self.home, tried, &self.temporary()).unwrap()
        }

        fn write(&self, home: &Home, file: &str, text: &str) {
            let path = home.dir().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let fresh = path.with_extension("fresh");
            std::fs::write(&fresh, text).unwrap();
            std::fs::rename(fresh, path).unwrap();
        }

        fn homes(&self) -> usize {
            std::fs::read_dir(self.temporary()).unwrap().count()
        }
    }

    fn read(home: &Home, file: &str) -> Option<String> {
        std::fs::read_to_string(home.dir().join(file)).ok()
    }

    // SEMANTICS: C4
    #[test]
    fn what_a_killed_process_kept_in_a_temporary_home_is_there_for_the_next_ones() {
        let bed = Bed::new();
        let first = bed.choose(Some(io::ErrorKind::ReadOnlyFilesystem)).unwrap();
        assert_eq!(read(first.home(), "manifests/old.manifest").unwrap(), "old rows");
        assert_eq!(read(first.home(), "manifests/old.lock"), None, "it could not be locked");
        bed.write(first.home(), "mounts/a.manifest", "a");
        bed.write(first.home(), "manifests/old.manifest", "new rows");
        std::fs::remove_file(first.home().dir().join("manifests/old.refresh-failed")).unwrap();
        // As long as it lives, another one has its own.
        let other = bed.choose(Some(io::ErrorKind::PermissionDenied)).unwrap();
        assert_eq!(read(other.home(), "mounts/a.manifest"), None);
        bed.write(other.home(), "mounts/b.manifest", "b");
        drop((first, other));
        bed.write(&bed.home, "mounts/c.manifest", "c");
        for _ in 0..2 {
            let next = bed.choose(Some(io::ErrorKind::ReadOnlyFilesystem)).unwrap();
            for (id, rows) in [("a", "a"), ("b", "b"), ("c", "c")] {
                assert_eq!(read(next.home(), &format!("mounts/{id}.manifest")).as_deref(), Some(rows));
            }
            assert_eq!(read(next.home(), "manifests/old.manifest").unwrap(), "new rows");
            assert_eq!(read(next.home(), "manifests/old.refresh-failed"), None);
            assert_eq!(bed.homes(), 1);
        }
    }

    // SEMANTICS: C4
    #[test]
    fn a_home_that_can_be_written_to_again_gets_what_was_kept_elsewhere() {
        let bed = Bed::new();
        let first = bed.choose(Some(io::ErrorKind::ReadOnlyFilesystem)).unwrap();
        bed.write(first.home(), "manifests/old.manifest", "new rows");
        bed.write(first.home(), "manifests/old.lock", "");
        std::fs::create_dir_all(first.home().dir().join("mounts")).unwrap();
        let link = first.home().dir().join("mounts/a.manifest");
        std::fs::hard_link(first.home().dir().join("manifests/old.manifest"), link).unwrap();
        drop(first);
        assert!(bed.choose(None).is_none());
        assert_eq!(read(&bed.home, "manifests/old.manifest").unwrap(), "new rows");
        assert_eq!(read(&bed.home, "manifests/old.refresh-failed"), None, "the new one was not refused");
        let inode = |file: &str| std::fs::metadata(bed.home.dir().join(file)).unwrap().ino();
        assert_eq!(inode("mounts/a.manifest"), inode("manifests/old.manifest"), "one file, as before");
        assert_eq!(bed.homes(), 0);
        assert!(bed.choose(None).is_none());
    }

    // SEMANTICS: C4
    #[test]
    fn a_home_on_a_full_disk_stays_the_home() {
        let bed = Bed::new();
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert!(bed.choose(Some(kind)).is_none());
        }
        assert_eq!(bed.homes(), 0);
        // A file that does not fit there, because another is in its way, is shown from where it is.
        let first = bed.choose(Some(io::ErrorKind::ReadOnlyFilesystem)).unwrap();
        bed.write(first.home(), "mounts/a.manifest", "a");
        drop(first);
        std::fs::write(bed.home.dir().join("mounts"), "").unwrap();
        for tried in [Some(io::ErrorKind::StorageFull), None] {
            let next = bed.choose(tried).unwrap();
            assert_eq!(read(next.home(), "mounts/a.manifest").as_deref(), Some("a"));
            assert_eq!(read(next.home(), "manifests/old.manifest").as_deref(), Some("old rows"));
        }
        std::fs::remove_file(bed.home.dir().join("mounts")).unwrap();
        assert!(bed.choose(None).is_none());
        assert_eq!(read(&bed.home, "mounts/a.manifest").as_deref(), Some("a"));
        // A home that a full disk has no room for is no home.
        std::fs::remove_dir_all(bed.home.dir()).unwrap();
        assert!(bed.choose(Some(io::ErrorKind::StorageFull)).is_some());
    }

    // SEMANTICS: C4
    #[tokio::test]
    async fn a_home_that_becomes_writable_gets_new_manifests_while_the_process_runs() {
        let bed = Bed::new();
        let held = bed.choose(Some(io::ErrorKind::ReadOnlyFilesystem)).unwrap();
        let used = held.home().clone();
        // A file is in the way of one of its folders: nothing can be brought to it yet.
        std::fs::write(bed.home.dir().join("mounts"), "").unwrap();
        bed.write(&used, "mounts/a.manifest", "a");
        let bringing = tokio::spawn(bring_home(held, bed.home.clone(), Duration::from_millis(1)));
        let appears = async |file: &str, rows: &str| {
            let there = async {
                while read(&bed.home, file).as_deref() != Some(rows) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(60), there).await.expect("it is brought to the home");
        };
        std::fs::remove_file(bed.home.dir().join("mounts")).unwrap();
        appears("mounts/a.manifest", "a").await;
        bed.write(&used, "manifests/old.manifest", "new rows");
        appears("manifests/old.manifest", "new rows").await;
        // A newer listing of another process stays.
        bed.write(&bed.home, "manifests/old.manifest", "newer rows");
        bed.write(&used, "mounts/b.manifest", "b");
        appears("mounts/b.manifest", "b").await;
        assert_eq!(read(&bed.home, "manifests/old.manifest").as_deref(), Some("newer rows"));
        bringing.abort();
        let _ = bringing.await;
        let taken_over = async {
            // The task may still be looking, with the lock.
            while bed.homes() > 0 {
                assert!(bed.choose(None).is_none(), "the next process uses the home");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), taken_over).await.expect("nothing is left");
        assert_eq!(read(&bed.home, "manifests/old.manifest").as_deref(), Some("newer rows"));
    }
}
