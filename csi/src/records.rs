//! The published targets, each in a small file. The file is written before the bind is created, and removed after the
//! bind was removed, so that every mount has a record even if a process is killed between steps.
//!
//! A file that cannot be removed from a failing disk does not block its pod: the target counts as removed, and a later
//! sweep of this process or the next one removes the file. A file that cannot be read may name any mount, so no mount
//! counts as unused while such a file exists.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::json_dir::JsonDir;
use crate::mount_id::MountId;

/// One published target. It never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The CSI volume.
    pub volume_id: String,
    /// The path at which it is published.
    pub target: PathBuf,
    /// The mount that is bound at the target.
    pub mount: MountId,
    /// A hash of the call's arguments, to distinguish a repeated call from a different one.
    pub arguments: String,
    /// The number of files in the dataset.
    pub files: u64,
    /// The size of the dataset.
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
    known: Mutex<Known>,
    /// The targets at which volumes are being published, with the namespaces of their pods. Locked before `known`.
    coming: Arc<Mutex<BTreeMap<PathBuf, String>>>,
}

/// A volume that is being published, until dropped.
#[derive(Debug)]
pub struct Coming {
    all: Arc<Mutex<BTreeMap<PathBuf, String>>>,
    target: PathBuf,
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.target);
    }
}

/// The records in memory.
#[derive(Debug, Default)]
struct Known {
    by_target: BTreeMap<PathBuf, Record>,
    /// Files that cannot be read, or the folder if it cannot be listed.
    unread: BTreeSet<PathBuf>,
    /// Removed targets whose files could not be removed.
    left: BTreeSet<PathBuf>,
}

impl Records {
    /// Loads the records from `dir`, which is created if missing.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let dir = JsonDir::open(dir)?;
        let loaded = dir.load::<Record>();
        let by_target = loaded.values.into_iter().map(|record| (record.target.clone(), record)).collect();
        let known = Known { by_target, unread: loaded.unread, left: BTreeSet::new() };
        Ok(Self { dir, known: Mutex::new(known), coming: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of `target`.
    pub fn at(&self, target: &Path) -> Option<Record> {
        self.lock().by_target.get(target).cloned()
    }

    /// All records.
    pub fn all(&self) -> Vec<Record> {
        self.lock().by_target.values().cloned().collect()
    }

    /// True if there is no record, readable or not.
    pub fn is_empty(&self) -> bool {
        let known = self.lock();
        known.by_target.is_empty() && known.unread.is_empty()
    }

    /// True if a target other than `but` uses `mount`, or may use it because a record cannot be read.
    pub fn uses(&self, mount: &MountId, but: Option<&Path>) -> bool {
        let known = self.lock();
        let names = |record: &Record| record.mount == *mount && Some(record.target.as_path()) != but;
        !known.unread.is_empty() || known.by_target.values().any(names)
    }

    /// Counts the volumes of pods at other targets by the namespaces of the pods, those included whose publishing began
    /// before. Until the guard is dropped, this volume counts for those that begin later: of two that begin at once,
    /// one counts the other. The caller has locked the target.
    pub fn announce(&self, target: &Path, namespace: &str) -> (Coming, HashMap<String, u32>) {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.lock();
        let published = known.by_target.values().filter(|record| record.target != target);
        let announced = coming.iter().filter(|(target, _)| !known.by_target.contains_key(*target));
        let namespaces = published.map(|record| &record.pod_namespace).chain(announced.map(|(_, namespace)| namespace));
        let mut volumes = HashMap::new();
        for namespace in namespaces.filter(|namespace| !namespace.is_empty()) {
            *volumes.entry(namespace.clone()).or_insert(0) += 1;
        }
        drop(known);
        coming.insert(target.to_owned(), namespace.to_owned());
        (Coming { all: Arc::clone(&self.coming), target: target.to_owned() }, volumes)
    }

    /// True if a volume other than `but` uses `mount`, or may use it because a record cannot be read.
    pub fn has_other_volume(&self, mount: &MountId, but: &str) -> bool {
        let known = self.lock();
        let is_other = |record: &Record| record.mount == *mount && record.volume_id != but;
        !known.unread.is_empty() || known.by_target.values().any(is_other)
    }

    /// Writes a record.
    pub fn put(&self, record: Record) -> io::Result<()> {
        self.dir.write(&key(&record.target), &record)?;
        let mut known = self.lock();
        known.left.remove(&record.target);
        known.unread.remove(&self.dir.path(&key(&record.target)));
        known.by_target.insert(record.target.clone(), record);
        Ok(())
    }

    /// Removes the record of `target`, if there is one. If the file cannot be removed, [`left`](Self::left) returns the
    /// target.
    pub fn remove(&self, target: &Path) {
        let file = self.dir.path(&key(target));
        let is_known = {
            let known = self.lock();
            let may_be_unread = known.unread.contains(&file) || known.unread.contains(self.dir.folder());
            may_be_unread || known.by_target.contains_key(target) || known.left.contains(target)
        };
        if !is_known {
            return;
        }
        let removed = self.dir.remove(&key(target));
        let mut known = self.lock();
        known.by_target.remove(target);
        match removed {
            Ok(()) => {
                known.unread.remove(&file);
                known.left.remove(target);
            }
            Err(error) => {
                warn!(
                    %error, file = %file.display(),
                    "cannot remove the record of a target that is gone; the next sweep retries (--state-dir)"
                );
                known.left.insert(target.to_owned());
            }
        }
    }

    /// The removed targets whose files could not be removed. A caller that works on such a target retries the removal.
    pub fn left(&self) -> Vec<PathBuf> {
        self.lock().left.iter().cloned().collect()
    }
}

fn key(target: &Path) -> String {
    target.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(target: &str, mount: &str) -> Record {
        Record {
            volume_id: "v".to_owned(),
            target: target.into(),
            mount: MountId::try_from(mount.to_owned()).expect("hex digits"),
            arguments: String::new(),
            files: 0,
            bytes: 0,
            pod_namespace: String::new(),
            pod_uid: String::new(),
        }
    }

    /// A folder in place of the file can be neither read nor removed as a file, as on a failing disk.
    #[test]
    fn a_record_that_the_disk_keeps_is_gone_and_removed_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::open(folder.path()).expect("open");
        let (one, two) = (record("/one", "0a"), record("/two", "0b"));
        records.put(one.clone()).expect("put");
        records.put(two.clone()).expect("put");
        let file = records.dir.path("/one");
        std::fs::remove_file(&file).expect("remove");
        std::fs::create_dir(&file).expect("a folder");
        records.remove(&one.target);
        assert_eq!((records.all(), records.left()), (vec![two.clone()], vec![one.target.clone()]));
        assert!(!records.uses(&one.mount, None) && records.uses(&two.mount, None));
        records.remove(&one.target);
        assert_eq!(records.left().len(), 1, "still there");
        std::fs::remove_dir(&file).expect("remove");
        records.remove(&one.target);
        assert_eq!((records.all(), records.left().len()), (vec![two], 0));
    }

    #[test]
    fn a_record_that_cannot_be_read_may_name_any_mount_until_it_is_gone_or_written_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (record("/one", "0a"), record("/two", "0b"));
        Records::open(folder.path()).expect("open").put(two.clone()).expect("put");
        let file = JsonDir::open(folder.path()).expect("open").path("/one");
        for written in [false, true] {
            std::fs::create_dir(&file).expect("a folder");
            let records = Records::open(folder.path()).expect("open");
            assert_eq!(records.all(), std::slice::from_ref(&two));
            let other = record("", "0c").mount;
            assert!(
                records.uses(&one.mount, None)
                    && records.uses(&two.mount, Some(&two.target))
                    && records.uses(&other, None)
            );
            std::fs::remove_dir(&file).expect("remove");
            if written {
                records.put(one.clone()).expect("put")
            } else {
                records.remove(&one.target)
            }
            assert_eq!(records.uses(&one.mount, None), written);
            assert!(!records.uses(&two.mount, Some(&two.target)) && !records.uses(&other, None));
        }
    }

    // SEMANTICS: K22
    #[test]
    fn volumes_are_counted_by_the_namespaces_of_their_pods_from_when_they_are_announced() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::open(folder.path()).expect("open");
        let of = |target: &str, namespace: &str| Record { pod_namespace: namespace.to_owned(), ..record(target, "0a") };
        let count = |records: &Records, target: &str| {
            let (_coming, volumes) = records.announce(Path::new(target), "team-c");
            volumes.into_iter().collect::<BTreeMap<_, _>>()
        };
        let counted = |pairs: &[(&str, u32)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        for (target, namespace) in [("/a1", "team-a"), ("/a2", "team-a"), ("/b", "team-b"), ("/unknown", "")] {
            records.put(of(target, namespace)).expect("put");
        }
        let all: BTreeMap<_, _> = counted(&[("team-a", 2), ("team-b", 1)]);
        assert_eq!(count(&records, "/new"), all);
        assert_eq!(count(&records, "/a2"), counted(&[("team-a", 1), ("team-b", 1)]), "it does not count itself");
        // Two that begin at once: the later one counts the earlier one.
        let (first, before_first) = records.announce(Path::new("/first"), "team-b");
        let (second, before_second) = records.announce(Path::new("/second"), "team-b");
        assert_eq!((before_first["team-b"], before_second["team-b"]), (1, 2));
        // One that is published and still announced counts once.
        records.put(of("/first", "team-b")).expect("put");
        assert_eq!(count(&records, "/new")["team-b"], 3);
        drop((first, second));
        assert_eq!(count(&records, "/new")["team-b"], 2);
        // Another process counts the same.
        assert_eq!(count(&Records::open(folder.path()).expect("open"), "/new")["team-b"], 2);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = concat!(
            r#"{"volume_id":"v","target":"/var/lib/kubelet/pods/u/mount","mount":"0a1b","arguments":"00ff","#,
            r#""files":7,"bytes":7000,"pod_namespace":"team-a","pod_uid":"u"}"#
        );
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
