//! What is published where: one small file per target, written before the bind and removed after it is gone. So whatever
//! dies, no mount is without a record.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::json_dir::JsonDir;
use crate::mount_id::MountId;

/// One published target. It never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The CSI volume.
    pub volume_id: String,
    /// Where it is published.
    pub target: PathBuf,
    /// What is bound there.
    pub mount: MountId,
    /// Hash of what it was asked with, to tell a repeated call from a different one.
    pub arguments: String,
    /// Files of the dataset.
    pub files: u64,
    /// Bytes of the dataset.
    pub bytes: u64,
    /// The pod, as far as the kubelet told.
    pub pod_namespace: String,
    /// Its uid.
    pub pod_uid: String,
}

/// All records, in memory and on disk. Calls that change them block.
#[derive(Debug)]
pub struct Records {
    dir: JsonDir,
    by_target: Mutex<BTreeMap<PathBuf, Record>>,
}

impl Records {
    /// Loads them from `dir`, which is made.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let dir = JsonDir::open(dir)?;
        let all = dir.load::<Record>()?;
        Ok(Self { dir, by_target: Mutex::new(all.into_iter().map(|record| (record.target.clone(), record)).collect()) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Record>> {
        self.by_target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is published at `target`.
    pub fn at(&self, target: &Path) -> Option<Record> {
        self.lock().get(target).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Record> {
        self.lock().values().cloned().collect()
    }

    /// True if a target other than `but` shows `mount`.
    pub fn uses(&self, mount: &MountId, but: Option<&Path>) -> bool {
        self.lock().values().any(|record| record.mount == *mount && Some(record.target.as_path()) != but)
    }

    /// Writes one.
    pub fn put(&self, record: Record) -> io::Result<()> {
        self.dir.write(&key(&record.target), &record)?;
        self.lock().insert(record.target.clone(), record);
        Ok(())
    }

    /// Removes one, if it is there.
    pub fn remove(&self, target: &Path) -> io::Result<()> {
        self.dir.remove(&key(target))?;
        self.lock().remove(target);
        Ok(())
    }
}

fn key(target: &Path) -> String {
    target.to_string_lossy().into_owned()
}
