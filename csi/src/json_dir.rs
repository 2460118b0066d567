//! A folder of small JSON files. Each file is there whole or not at all, whatever dies.
//!
//! Calls block. Different keys may be written concurrently; callers must not write one key concurrently.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tracing::error;

/// The folder.
#[derive(Debug)]
pub(crate) struct JsonDir(PathBuf);

impl JsonDir {
    /// Opens the folder, and creates it if missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self(path.to_owned()))
    }

    /// Loads all values. A broken file is renamed and logged: it must not prevent the use of all others.
    pub(crate) fn load<T: DeserializeOwned>(&self) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => match serde_json::from_slice(&fs::read(&path)?) {
                    Ok(value) => all.push(value),
                    Err(error) => {
                        error!(path = %path.display(), %error, "set aside a broken file");
                        fs::rename(&path, path.with_extension("broken"))?;
                    }
                },
                // A process was killed before the rename.
                Some("tmp") => fs::remove_file(&path)?,
                _ => {}
            }
        }
        Ok(all)
    }

    /// Writes `value` for `key`. Once this returns, the value survives a crash of the machine.
    pub(crate) fn write<T: Serialize>(&self, key: &str, value: &T) -> io::Result<()> {
        let path = self.path(key);
        let temporary = path.with_extension("tmp");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        self.sync()
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

    /// Keys are paths and names of any length; the file is named after their hash.
    fn path(&self, key: &str) -> PathBuf {
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
        assert_eq!(JsonDir::open(&path).expect("open").load::<u32>().expect("load"), [22]);
        assert!(path.join("torn.broken").exists() && !path.join("half.tmp").exists());
    }
}
