//! [`Dataset`]: a tree in the bucket, its mount, and the model of both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use larder_e2e::{BUCKET, Lab, Larderd, Mount};
use larder_testkit::seeded_bytes;
use rustix::io::Errno;

use super::drawn::{Pick, Tree};
use super::model::FileModel;

/// A tree in the bucket, its mount, and the model of both.
pub(super) struct Dataset {
    name: String,
    source: String,
    dir: PathBuf,
    pub(super) mount: Mount,
    pub(super) packed: bool,
    pub(super) files: Vec<FileModel>,
    /// The names in each folder.
    pub(super) folders: BTreeMap<String, BTreeSet<String>>,
    replaced: u64,
}

/// The deadline is far away, so that a slow machine is no fault. The attempts are short, so that a stall passes.
const FLAGS: [&str; 4] = ["--attempt-timeout", "500ms", "--read-deadline", "60s"];

fn mount(lab: &Lab, larderd: &Larderd, source: &str, dir: &std::path::Path, policy: &str, more: &[&str]) -> Mount {
    std::fs::create_dir_all(dir).ok();
    let (dir, cache) = (dir.to_str().unwrap(), larderd.run_dir().to_str().unwrap());
    lab.larder_ok(&[&["mount", source, dir, "--cache-dir", cache, "--policy", policy][..], &FLAGS, more].concat());
    Mount::standing(dir.into())
}

/// The names in each folder.
fn folders(files: &[FileModel]) -> BTreeMap<String, BTreeSet<String>> {
    let mut folders = BTreeMap::<String, BTreeSet<String>>::new();
    for file in files {
        let mut path = file.key.as_str();
        loop {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            folders.entry(folder.to_owned()).or_default().insert(name.to_owned());
            if folder.is_empty() {
                break;
            }
            path = folder;
        }
    }
    folders
}

impl Dataset {
    /// Puts the tree into the bucket and mounts it. No other dataset has one of its names or bytes.
    pub(super) fn new(lab: &Lab, larderd: &Larderd, nth: usize, tree: &Tree, policy: &str) -> Self {
        let name = format!("data{nth}");
        let mut kept = BTreeMap::<&str, u64>::new();
        for (key, size) in &tree.files {
            let shadows = |other: &str| {
                other == key || other.starts_with(&format!("{key}/")) || key.starts_with(&format!("{other}/"))
            };
            if !kept.keys().any(|other| shadows(other)) {
                kept.insert(key, *size);
            }
        }
        let mut files = Vec::new();
        for (file, (key, size)) in kept.into_iter().enumerate() {
            let bytes = seeded_bytes((nth as u64) << 32 | file as u64, size);
            let etag = lab.server.put(BUCKET, &format!("{name}/{key}"), bytes.clone());
            files.push(FileModel { key: key.to_owned(), bytes, etag, lost: None, replacement: None });
        }
        let mut source = format!("s3://{BUCKET}/{name}");
        if tree.packed {
            let packed = format!("s3://{BUCKET}/packed{nth}");
            lab.larder_ok(&["pack", &source, &packed, "--pack-size", "1MiB"]);
            source = packed;
        }
        let dir = lab.folder().join(format!("mnt-{name}"));
        let mount = mount(lab, larderd, &source, &dir, policy, &[]);
        let folders = folders(&files);
        Self { name, source, dir, mount, packed: tree.packed, files, folders, replaced: 0 }
    }

    /// Mounts it again where it was.
    pub(super) fn mount_again(&mut self, lab: &Lab, larderd: &Larderd, policy: &str) {
        self.mount_with(lab, larderd, policy, &[]);
    }

    /// Lists the bucket again, and mounts what is there now where the old snapshot was.
    pub(super) fn mount_newest(&mut self, lab: &Lab, larderd: &Larderd, policy: &str) {
        self.files.retain(|file| file.lost != Some(Errno::NOENT));
        for file in &mut self.files {
            file.lost = None;
            if let Some((bytes, etag)) = file.replacement.take() {
                (file.bytes, file.etag) = (bytes, etag);
            }
        }
        self.folders = folders(&self.files);
        self.mount_with(lab, larderd, policy, &["--refresh=best-effort"]);
    }

    fn mount_with(&mut self, lab: &Lab, larderd: &Larderd, policy: &str, more: &[&str]) {
        let mount = mount(lab, larderd, &self.source, &self.dir, policy, more);
        // Dropping the old one would unmount the new one.
        std::mem::forget(std::mem::replace(&mut self.mount, mount));
    }

    /// Ends its mount in order.
    pub(super) fn unmount(&self, lab: &Lab) {
        lab.larder_ok(&["umount", self.dir.to_str().unwrap()]);
    }

    /// Replaces or deletes the object of a file, so that reading what is not cached fails with `errno`.
    pub(super) fn lose(&mut self, lab: &Lab, file: Pick, errno: Errno) {
        let (which, packed) = (file.of(self.files.len() as u64) as usize, self.packed);
        let exists = |file: &&FileModel| file.lost != Some(Errno::NOENT);
        let is_last = self.files.iter().filter(exists).count() == 1;
        let file = &mut self.files[which];
        // Of a bucket without objects there is no snapshot.
        if errno == Errno::NOENT && is_last {
            return;
        }
        // A pack still has the bytes of an object that was packed, and an empty object is never requested.
        if packed || file.bytes.is_empty() {
            return;
        }
        let key = format!("{}/{}", self.name, file.key);
        if errno == Errno::NOENT {
            lab.server.delete(BUCKET, &key);
        } else {
            self.replaced += 1;
            let bytes = seeded_bytes(u64::MAX - self.replaced, file.bytes.len() as u64);
            let etag = lab.server.put(BUCKET, &key, bytes.clone());
            file.replacement = Some((bytes, etag));
        }
        file.lost = Some(errno);
    }
}
