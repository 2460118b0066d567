//! The filesystems that are measured side by side: Larder, the disk itself, and whatever of Larder's peers is installed.
//!
//! The cast: [`Source`] is the data, as files and as the same objects in an S3 server; a [`System`] serves it through a
//! folder; [`all`] finds those that this machine has. [`child`] runs their daemons, [`mounts`] waits for their mounts and
//! takes them away, [`process`] reads what a daemon used.
//!
//! Invariant: when a system is dropped, its processes are gone and its mount is detached; they end with this process even
//! if it is killed. Keys of the S3 server reach a daemon by its environment or a private file, never by an argument.

pub mod child;
pub mod mounts;
pub mod process;

mod folder;
mod juicefs;
mod larder;
mod mountpoint;
mod rclone;
mod s3fs;
pub(crate) mod source;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::systems::child::Child;
pub use crate::systems::source::{Source, SourceOptions, Stop};

/// What a system is compared as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Not a filesystem over S3, but what bounds one: the disk, or S3 itself.
    Floor,
    /// Larder.
    Larder,
    /// A peer as its documents have one start.
    Shipped,
    /// A peer with documented settings for data that never changes.
    Tuned,
}

/// One filesystem, with one set of options.
pub trait System {
    /// Its name in tables, and for `--only`.
    fn name(&self) -> &str;

    /// What it is compared as.
    fn kind(&self) -> Kind;

    /// The version of its program, as the program says it; empty if it has none.
    fn version(&self) -> String;

    /// How it is set up, in words.
    fn options(&self) -> &str;

    /// Done once and not timed: import, pack, copy the data in.
    fn prepare(&mut self, source: &Source) -> anyhow::Result<()>;

    /// Mounts with an empty local cache and gives the folder that holds the files. Returns once the mount is really there.
    fn mount(&mut self, source: &Source) -> anyhow::Result<PathBuf>;

    /// The processes that serve it now: daemons, and a metadata engine if it has one.
    fn processes(&self) -> Vec<u32>;

    /// Unmounts, ends the daemon and forgets the cache. Does nothing if it is not mounted.
    fn unmount(&mut self) -> anyhow::Result<()>;
}

/// Any of the systems.
pub type AnySystem = Box<dyn System>;

/// The systems of this machine.
#[derive(Default)]
pub struct Found {
    /// Those that can be run, floors and Larder first.
    pub systems: Vec<AnySystem>,
    /// The names of those that cannot, and why.
    pub missing: Vec<(String, String)>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.systems.iter().map(|system| system.name()).collect();
        f.debug_struct("Found").field("systems", &names).field("missing", &self.missing).finish()
    }
}

/// Finds every system. `binary` is the command `larder`; peers are looked for on `PATH`, and where `bench/install-peers`
/// puts them.
pub fn all(binary: &Path) -> Found {
    let mut found = Found::default();
    found.systems.push(Box::new(folder::Folder));
    found.systems.extend(larder::both(binary));
    let mut add = |names: &[&str], needs: &[&str], make: fn(&[PathBuf]) -> Vec<AnySystem>| {
        let programs: Result<Vec<PathBuf>, &str> =
            needs.iter().map(|&program| find_program(program).ok_or(program)).collect();
        match programs {
            Ok(programs) => found.systems.extend(make(&programs)),
            Err(program) => {
                let why = format!("no {program} on PATH (bench/install-peers gets what can be had)");
                found.missing.extend(names.iter().map(|&name| (name.to_owned(), why.clone())));
            }
        }
    };
    add(&juicefs::NAMES, &["juicefs", "redis-server"], |programs| juicefs::both(&programs[0], &programs[1]));
    add(&[mountpoint::NAME], &["mount-s3"], |programs| vec![mountpoint::new(&programs[0])]);
    add(&rclone::NAMES, &["rclone"], |programs| rclone::both(&programs[0]));
    add(&[s3fs::NAME], &["s3fs"], |programs| vec![s3fs::new(&programs[0])]);
    found
}

/// A program on `PATH`, or in the folder of `bench/install-peers`: `$LARDER_CACHE/bench/bin`, by default below
/// `~/.cache/larder`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = set("PATH").unwrap_or_default();
    let cache =
        set("LARDER_CACHE").map(PathBuf::from).or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache/larder")));
    std::env::split_paths(&path)
        .chain(cache.map(|cache| cache.join("bench/bin")))
        .map(|folder| folder.join(name))
        .find(|program| is_executable(program))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// What `program` answers when asked for its version: the first line, or nothing.
fn version_of(program: &Path, argument: &str) -> String {
    let output = Command::new(program).arg(argument).stdin(std::process::Stdio::null()).output();
    output.map_or_else(
        |_| String::new(),
        |output| {
            let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
            String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
        },
    )
}

/// What every FUSE daemon has here: a process, a folder it is mounted on, and a cache to forget.
#[derive(Debug, Default)]
struct Served {
    child: Option<Child>,
    mountpoint: PathBuf,
    cache: PathBuf,
}

impl Served {
    /// Makes a mount point and an empty cache for a system of this name, and gives both.
    fn folders(&mut self, source: &Source, name: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
        anyhow::ensure!(self.child.is_none(), "{name} is mounted already");
        let folder = source.folder_of(name)?;
        (self.mountpoint, self.cache) = (folder.join("mnt"), folder.join("cache"));
        forget(&self.cache)?;
        for folder in [&self.mountpoint, &self.cache] {
            std::fs::create_dir_all(folder).with_context(|| format!("make the folder {}", folder.display()))?;
        }
        Ok((self.mountpoint.clone(), self.cache.clone()))
    }

    /// Starts the daemon and waits until its mount is there.
    fn start(&mut self, source: &Source, name: &str, command: &mut Command) -> anyhow::Result<PathBuf> {
        let log = source.folder_of(name)?.join("log");
        let mut child = Child::spawn(name, command, &log)?;
        let mounted = mounts::wait_for(&self.mountpoint, &mut child, &source.stop);
        // Kept in any case, so that `unmount` ends it.
        self.child = Some(child);
        mounted?;
        Ok(self.mountpoint.clone())
    }

    fn processes(&self) -> Vec<u32> {
        self.child.as_ref().map(|child| process::family(child.id())).unwrap_or_default()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        let Some(child) = self.child.take() else { return Ok(()) };
        let unmounted = mounts::unmount(&self.mountpoint);
        child.end();
        unmounted?;
        forget(&self.cache)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Whoever wanted to know of an error has unmounted before.
        let _ = self.unmount();
    }
}

/// Removes a folder and all in it, if it is there.
fn forget(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once_whether_it_is_installed_or_not() {
        let found = all(Path::new("/nonexistent/larder"));
        let mut names: Vec<String> = found.systems.iter().map(|system| system.name().to_owned()).collect();
        names.extend(found.missing.iter().map(|(name, _)| name.clone()));
        names.sort();
        let expected = [
            "ext4",
            "juicefs",
            "juicefs tuned",
            "larder",
            "larder packed",
            "mountpoint-s3",
            "rclone",
            "rclone tuned",
            "s3fs",
        ];
        assert_eq!(names, expected);
        assert!(find_program("sh").is_some() && find_program("no-such-program-anywhere").is_none());
    }
}
