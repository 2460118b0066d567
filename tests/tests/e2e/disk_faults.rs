//! A cache disk in trouble costs hits and never fails a read, and a part of a manifest that it cannot read fails
//! nothing else.
//!
//! `space`: a disk without room. `read_only`: one that takes no writes. `bad_sectors`: one with sectors that cannot be
//! read or written. `damage`: files with other contents than they had. `stalls`: a disk that takes writes slowly, or
//! not for a while. `several`: a cache on two disks, of which one dies.

mod bad_sectors;
mod damage;
mod read_only;
mod several;
mod space;
mod stalls;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larder_e2e::{Lab, Mount};
use larder_testkit::seeded_bytes;

const MIB: u64 = 1 << 20;

/// The log message when the disk starts to fail.
const COMPLAINT: &str = "admissions to the cache pause";

fn put_files(lab: &Lab, count: u64, size: u64) -> Vec<(String, Vec<u8>)> {
    let files: Vec<_> = (0..count).map(|n| (format!("f{n:03}"), seeded_bytes(n, size))).collect();
    for (key, bytes) in &files {
        lab.put(key, bytes.clone());
    }
    files
}

fn assert_reads_right(mount: &Mount, files: &[(String, Vec<u8>)]) {
    for (key, bytes) in files {
        assert!(mount.read_fresh(key).unwrap() == *bytes, "wrong bytes in {key}");
    }
    mount.settle();
}

/// `larder umount`, and waits for the end of its process.
fn unmount(lab: &Lab, mount: Mount) {
    lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
    let started = Instant::now();
    let proc = format!("/proc/{}/stat", mount.pid());
    while std::fs::read_to_string(&proc).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(started.elapsed() < Duration::from_secs(30), "the unmounted process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The files of a cache whose paths end like this, such as `/slots` or `.seg`.
pub(crate) fn cache_files(lab: &Lab, ending: &str) -> Vec<PathBuf> {
    let mut folders = vec![lab.cache_dir("m").join("datasets")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no {ending} in the cache");
    found
}

fn set_len(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}
