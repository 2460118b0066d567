//! The CDI files of claims. All of it blocks.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::claim::Uid;
use super::claim_file::{ClaimFile, Prepared};
use crate::names::CLAIM_FILE;
use larder_kubelet::atomic_file;

/// Larger files are none of ours: a claim has 32 devices at most.
const BYTES_MOST: u64 = 1 << 20;

/// The runtime's folder of CDI files.
#[derive(Clone, Debug)]
pub struct Files(PathBuf);

impl Files {
    /// In this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// What was prepared for a claim; `None` if nothing was, or if its file is damaged.
    pub fn read(&self, uid: &Uid) -> Option<Prepared> {
        read(&self.path(uid))
    }

    /// Makes the claim's file this one.
    pub fn write(&self, uid: &Uid, file: &ClaimFile) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        atomic_file::replace(&self.path(uid), &file.encode()?, 0o644)
    }

    /// Removes the claim's file, if there is one, and what a process that was killed has left of it.
    pub fn remove(&self, uid: &Uid) -> io::Result<()> {
        let path = self.path(uid);
        atomic_file::sweep(&path);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All claims that are prepared.
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
