//! The common parts of every FUSE daemon: a process, a mount point and a cache folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::child::Child;
use super::corpus::Corpus;
use larder_epochs::process;

use super::mounts;

/// A FUSE daemon, running or not.
#[derive(Debug, Default)]
pub(super) struct Served {
    child: Option<Child>,
    mountpoint: PathBuf,
    cache: PathBuf,
}

impl Served {
    /// Makes a mount point and an empty cache for a system of this name, and returns both.
    pub(super) fn folders(&mut self, corpus: &Corpus, name: &str) -> anyhow::Result<(PathBuf, PathBuf)> {
        anyhow::ensure!(self.child.is_none(), "{name} is mounted already");
        let folder = corpus.folder_of(name)?;
        (self.mountpoint, self.cache) = (folder.join("mnt"), folder.join("cache"));
        remove(&self.cache)?;
        for folder in [&self.mountpoint, &self.cache] {
            std::fs::create_dir_all(folder).with_context(|| format!("create the directory {}", folder.display()))?;
        }
        Ok((self.mountpoint.clone(), self.cache.clone()))
    }

    /// Starts the daemon and waits until the kernel shows its mount.
    pub(super) fn start(&mut self, corpus: &Corpus, name: &str, command: &mut Command) -> anyhow::Result<PathBuf> {
        let log = corpus.folder_of(name)?.join("log");
        let mut child = Child::spawn(name, command, &log)?;
        let mounted = mounts::wait_for(&self.mountpoint, &mut child, &corpus.stop);
        // The child is kept even after a failure, so that `unmount` ends it.
        self.child = Some(child);
        mounted?;
        Ok(self.mountpoint.clone())
    }

    pub(super) fn processes(&self) -> Vec<u32> {
        self.child.as_ref().map(|child| process::family(child.id())).unwrap_or_default()
    }

    pub(super) fn unmount(&mut self) -> anyhow::Result<()> {
        let Some(child) = self.child.take() else { return Ok(()) };
        let unmounted = mounts::unmount(&self.mountpoint);
        child.end();
        unmounted?;
        remove(&self.cache)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A caller that needs the error calls `unmount` first.
        let _ = self.unmount();
    }
}

/// Removes a folder and everything in it, if it exists.
fn remove(folder: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
