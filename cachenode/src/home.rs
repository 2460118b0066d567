//! The home folder of a process, for files that it can lose: manifests, journals of unfinished work, logs.
//!
//! Invariant: a file whose size others decide (a manifest, an order, a journal, the runs of a sort) takes its space
//! from `Home::take` or `Home::listing_limit` before it is written.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use larder_import::{DiskLimit, DiskRoom};
use larder_store::FreeShare;
use serde::{Deserialize, Serialize};

/// The usual size of a listing that is written whatever is free: that of some 20,000 files.
const SMALL_BYTES: u64 = 4 << 20;

/// A folder of Larder's. Its sub-folders are created on first use.
#[derive(Clone, Debug)]
pub struct Home {
    dir: PathBuf,
    limits: HomeLimits,
    room: Arc<HomeRoom>,
}

/// Limits of what is written to a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeLimits {
    /// The part of the disk that blocks leave free, in percent. A home may take a quarter of it.
    pub keep_free_percent: u8,
    /// The most bytes that the listing of one dataset takes: its manifest, and while it is made, its journal and the
    /// files in which it is sorted.
    pub listing_bytes: u64,
    /// A listing or file of at most this many bytes is written whatever is free: it harms no disk, and a small dataset
    /// is served also without a cache.
    pub small_bytes: u64,
}

impl Default for HomeLimits {
    /// Those of a user's own home: none but the disk's.
    fn default() -> Self {
        Self { keep_free_percent: 0, listing_bytes: u64::MAX, small_bytes: SMALL_BYTES }
    }
}

/// The room on the disk of a home.
#[derive(Debug)]
struct HomeRoom {
    dir: PathBuf,
    share: FreeShare,
}

impl DiskRoom for HomeRoom {
    fn take(&self, bytes: u64) -> io::Result<()> {
        if self.share.try_take(bytes, Instant::now())? {
            return Ok(());
        }
        let what = format!(
            "write to the folder {} (--home): less than {} % of its disk would stay free, which is three quarters of \
             --keep-free: make room, name a folder on another disk, or lower --keep-free",
            self.dir.display(),
            self.share.percent()
        );
        Err(io::Error::new(io::ErrorKind::StorageFull, what))
    }
}

impl Home {
    /// Uses `dir`, which need not exist yet, without limits.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self::limited(dir, HomeLimits::default())
    }

    /// Uses `dir`, which need not exist yet.
    pub fn limited(dir: impl Into<PathBuf>, limits: HomeLimits) -> Self {
        let dir = dir.into();
        let share = FreeShare::beside_blocks(dir.clone(), limits.keep_free_percent);
        Self { room: Arc::new(HomeRoom { dir: dir.clone(), share }), dir, limits }
    }

    /// The limits.
    pub fn limits(&self) -> HomeLimits {
        self.limits
    }

    /// Limits of the disk space for one listing.
    pub fn listing_limit(&self) -> DiskLimit {
        let room = Arc::clone(&self.room) as Arc<dyn DiskRoom>;
        DiskLimit { bytes_most: self.limits.listing_bytes, small_bytes: self.limits.small_bytes, room: Some(room) }
    }

    /// Takes room for a file of `bytes` bytes that is about to be written. Blocks on the disk. Errors: there is too
    /// little; the text says what to do.
    pub(crate) fn take(&self, bytes: u64) -> io::Result<()> {
        if bytes <= self.limits.small_bytes { Ok(()) } else { self.room.take(bytes) }
    }

    /// The home of this user: `$LARDER_HOME`, else `$XDG_CACHE_HOME/larder`, else `~/.cache/larder`. Root without any
    /// of these variables, as in units of systemd, has /var/cache/larder.
    pub fn of_process() -> io::Result<Self> {
        let of_root = || rustix::process::geteuid().is_root().then(|| Self::new("/var/cache/larder"));
        Self::of(|name| std::env::var_os(name)).or_else(of_root).ok_or_else(|| {
            let what = "neither LARDER_HOME nor HOME is set: set LARDER_HOME to a writable folder";
            io::Error::new(io::ErrorKind::NotFound, what)
        })
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("LARDER_HOME")
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("larder")))
            .or_else(|| Some(set("HOME")?.join(".cache/larder")))
            .map(Self::new)
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A sub-folder, created if missing. Errors name it.
    pub fn sub_folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.dir.join(name);
        std::fs::create_dir_all(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("make folder {}: {error}", path.display())))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home_of(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let value = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        Home::of(value).map(|home| home.dir().to_owned())
    }

    #[test]
    fn the_most_specific_variable_that_is_set_names_the_home() {
        let user = [("HOME", "/u"), ("XDG_CACHE_HOME", "/x"), ("LARDER_HOME", "/l")];
        assert_eq!(home_of(&user), Some("/l".into()));
        assert_eq!(home_of(&user[..2]), Some("/x/larder".into()));
        assert_eq!(home_of(&user[..1]), Some("/u/.cache/larder".into()));
        assert_eq!(home_of(&[("HOME", "/u"), ("LARDER_HOME", "")]), Some("/u/.cache/larder".into()));
        assert_eq!(home_of(&[]), None);
    }
}
