//! A folder of small JSON files. Each file is either complete or absent, even after a crash.
//!
//! Calls block. Different keys may be written concurrently. If two calls write one key concurrently, one may fail.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use larder_kubelet::atomic_file;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tracing::error;

#[derive(Debug)]
pub(crate) struct JsonDir(PathBuf);

/// The contents of the folder.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    pub(crate) values: Vec<T>,
    /// The files that cannot be read, or the folder itself if it cannot be listed.
    pub(crate) unread: BTreeSet<PathBuf>,
}

impl JsonDir {
    /// Opens the folder, and creates it if missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self(path.to_owned()))
    }

    /// Loads all values. A corrupt file is renamed, and an unreadable file stays. Both are logged, and do not affect
    /// other files.
    pub(crate) fn load<T: DeserializeOwned>(&self) -> Loaded<T> {
        let mut loaded = Loaded { values: Vec::new(), unread: BTreeSet::new() };
        let mut unread = |path: PathBuf, error: io::Error| {
            error!(
                path = %path.display(), %error,
                "cannot read a record: repair the disk, or remove the file (--state-dir)"
            );
            loaded.unread.insert(path);
        };
        let entries = fs::read_dir(&self.0).map_err(|error| unread(self.0.clone(), error));
        for entry in entries.into_iter().flatten() {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    unread(self.0.clone(), error);
                    break;
                }
            };
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => match fs::read(&path).map(|bytes| serde_json::from_slice(&bytes)) {
                    Ok(Ok(value)) => loaded.values.push(value),
                    Ok(Err(error)) => {
                        error!(path = %path.display(), %error, "set aside a corrupt record");
                        // On a read-only disk the rename fails; a later start renames the file.
                        let _ = fs::rename(&path, path.with_extension("broken"));
                    }
                    Err(error) => unread(path, error),
                },
                // A process was killed before the rename.
                Some("tmp") => _ = fs::remove_file(&path),
                _ => {}
            }
        }
        loaded
    }

    /// Writes `value` for `key`. Once this returns, the value survives a crash of the machine.
    pub(crate) fn write<T: Serialize>(&self, key: &str, value: &T) -> io::Result<()> {
        atomic_file::replace(&self.path(key), &serde_json::to_vec(value)?, 0o600)
    }

    /// Removes the value of `key`, if there is one.
    pub(crate) fn remove(&self, key: &str) -> io::Result<()> {
        match fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.sync(),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Keys are paths and names of any length, so the file is named by the key's hash.
    pub(crate) fn path(&self, key: &str) -> PathBuf {
        self.0.join(format!("{}.json", hex_hash(key.as_bytes())))
    }
}

/// SHA-256 in hex digits.
pub(crate) fn hex_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_loaded_and_a_broken_file_is_set_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b");
        let dir = JsonDir::open(&path).expect("open");
        dir.write("one/../..", &1).expect("write");
        dir.write("two", &2).expect("write");
        dir.write("two", &22).expect("write again");
        dir.remove("one/../..").expect("remove");
        dir.remove("never").expect("remove what is not there");
        fs::write(path.join("torn.json"), b"{").expect("write");
        fs::write(path.join("half.tmp"), b"{").expect("write");
        let loaded = JsonDir::open(&path).expect("open").load::<u32>();
        assert_eq!((loaded.values, loaded.unread.len()), (vec![22], 0));
        assert!(path.join("torn.broken").exists() && !path.join("half.tmp").exists());
    }

    /// A folder in place of a file, or a file in place of the folder, causes a read error, as a bad sector does.
    #[test]
    fn what_cannot_be_read_is_named_and_all_else_is_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("dir");
        let dir = JsonDir::open(&path).expect("open");
        dir.write("one", &1).expect("write");
        fs::create_dir(dir.path("two")).expect("a folder");
        let loaded = dir.load::<u32>();
        assert_eq!((loaded.values, loaded.unread), (vec![1], BTreeSet::from([dir.path("two")])));
        fs::remove_dir_all(&path).expect("remove");
        fs::write(&path, b"").expect("write");
        let loaded = dir.load::<u32>();
        assert_eq!((loaded.values, loaded.unread), (vec![], BTreeSet::from([path])));
    }
}
