//! A temporary folder that may contain mounts.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::systems::mounts;

/// A folder that is removed on drop, after all mounts in it are detached.
pub(crate) struct Scratch(Option<tempfile::TempDir>);

impl Scratch {
    /// Makes one in `parent`, and returns it with its path.
    pub(crate) fn new(parent: &Path, prefix: &str) -> anyhow::Result<(Self, PathBuf)> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
        let folder = folder.with_context(|| format!("create a directory in {}", parent.display()))?;
        let path = folder.path().canonicalize().context("resolve the scratch directory")?;
        Ok((Self(Some(folder)), path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = self.0.take() {
            match mounts::detach_below(folder.path()) {
                Ok(()) => drop(folder),
                // Removing it would remove the files of the mounted filesystem.
                Err(_) => drop(folder.keep()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_is_removed_with_its_contents() {
        let parent = tempfile::tempdir().unwrap();
        let (scratch, folder) = Scratch::new(parent.path(), "test-").unwrap();
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        drop(scratch);
        assert!(!folder.exists());
    }
}
