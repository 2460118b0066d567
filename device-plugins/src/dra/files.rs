//! The CDI files of claims. All functions block.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::claim::Uid;
use super::claim_file::{ClaimFile, Prepared};
use crate::names::CLAIM_FILE;
use larder_kubelet::atomic_file;

/// Larger files were not written by this program: a claim has at most 32 devices.
const BYTES_MOST: u64 = 1 << 20;

/// The runtime's folder of CDI files.
#[derive(Clone, Debug)]
pub struct Files(PathBuf);

impl Files {
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The prepared claim; `None` if it is not prepared, or if its file is damaged.
    pub fn read(&self, uid: &Uid) -> Option<Prepared> {
        read(&self.path(uid))
    }

    /// Writes or replaces the claim's file.
    pub fn write(&self, uid: &Uid, file: &ClaimFile) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        atomic_file::replace(&self.path(uid), &file.encode()?, 0o644)
    }

    /// Removes the claim's file if it exists, and temporary files of a process that was killed while it wrote.
    pub fn remove(&self, uid: &Uid) -> io::Result<()> {
        let path = self.path(uid);
        atomic_file::sweep(&path);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All prepared claims.
    pub fn all(&self) -> Vec<Prepared> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().to_str().and_then(uid).is_some());
        ours.filter_map(|entry| read(&entry.path())).collect()
    }

    fn path(&self, uid: &Uid) -> PathBuf {
        self.0.join(format!("{CLAIM_FILE}{}.json", uid.as_str()))
    }
}

fn uid(name: &str) -> Option<Uid> {
    Uid::new(name.strip_prefix(CLAIM_FILE)?.strip_suffix(".json")?)
}

fn read(path: &Path) -> Option<Prepared> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(BYTES_MOST).read_to_end(&mut text).ok()?;
    ClaimFile::decode(&text)
}
