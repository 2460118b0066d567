//! What is published where: one small file per target, written before the bind and removed after the bind is gone. So no
//! mount is ever without a record, whatever dies.

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
    /// The path at which it is published.
    pub target: PathBuf,
    /// The mount that is bound there.
    pub mount: MountId,
    /// A hash of the call's arguments, to distinguish a repeated call from a different one.
    pub arguments: String,
    /// Files of the dataset.
    pub files: u64,
    /// Bytes of the dataset.
    pub bytes: u64,
    /// The pod's namespace, if the kubelet reported it.
    pub pod_namespace: String,
    /// The pod's uid, if the kubelet reported it.
    pub pod_uid: String,
}

/// All records, in memory and on disk. Calls that change them block.
#[derive(Debug)]
pub struct Records {
    dir: JsonDir,
    by_target: Mutex<BTreeMap<PathBuf, Record>>,
}

impl Records {
    /// Loads them from `dir`, which is created if missing.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let dir = JsonDir::open(dir)?;
        let all = dir.load::<Record>()?;
        Ok(Self { dir, by_target: Mutex::new(all.into_iter().map(|record| (record.target.clone(), record)).collect()) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Record>> {
        self.by_target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of `target`.
    pub fn at(&self, target: &Path) -> Option<Record> {
        self.lock().get(target).cloned()
    }

    /// All records.
    pub fn all(&self) -> Vec<Record> {
        self.lock().values().cloned().collect()
    }

    /// True if a target other than `but` shows `mount`.
    pub fn uses(&self, mount: &MountId, but: Option<&Path>) -> bool {
        self.lock().values().any(|record| record.mount == *mount && Some(record.target.as_path()) != but)
    }

    /// Writes a record.
    pub fn put(&self, record: Record) -> io::Result<()> {
        self.dir.write(&key(&record.target), &record)?;
        self.lock().insert(record.target.clone(), record);
        Ok(())
    }

    /// Removes the record of `target`, if there is one.
    pub fn remove(&self, target: &Path) -> io::Result<()> {
        self.dir.remove(&key(target))?;
        self.lock().remove(target);
        Ok(())
    }
}

fn key(target: &Path) -> String {
    target.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = r#"{"volume_id":"v","target":"/var/lib/kubelet/pods/u/mount","mount":"0a1b","arguments":"00ff","files":7,"bytes":7000,"pod_namespace":"team-a","pod_uid":"u"}"#;
        std::fs::write(folder.path().join("record.json"), text).expect("write");
        let expected = Record {
            volume_id: "v".to_owned(),
            target: "/var/lib/kubelet/pods/u/mount".into(),
            mount: MountId::try_from("0a1b".to_owned()).expect("hex digits"),
            arguments: "00ff".to_owned(),
            files: 7,
            bytes: 7_000,
            pod_namespace: "team-a".to_owned(),
            pod_uid: "u".to_owned(),
        };
        assert_eq!(Records::open(folder.path()).expect("open").all(), std::slice::from_ref(&expected));
        assert_eq!(serde_json::to_string(&expected).expect("JSON"), text);
    }
}
