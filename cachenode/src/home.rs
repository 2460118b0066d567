//! Where a process keeps what it may lose: manifests it has found, journals of unfinished listings, logs.

use std::io;
use std::path::{Path, PathBuf};

/// A folder of Larder's own. Its sub-folders are made when they are asked for.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// Uses `dir`, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// The folder itself.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// A sub-folder, made if need be. Errors name it.
    pub fn sub_folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("make folder {}: {error}", path.display())))?;
        Ok(path)
    }
}
