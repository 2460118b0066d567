//! A cache folder of an earlier version goes on being served.
//!
//! `golden/cache-v1.tar.gz` holds a cache folder with two datasets, `a` (nr) and `b` (lru), and their manifests. It was
//! written by the first version that had this layout; its origin is gone.

use std::path::Path;
use std::process::Command;

use larder_dataset::manifest::{ManifestBuilder, PlainFile};
use larder_dataset::{FileIndex, Manifest, NameRules, VersionTag};
use larder_e2e::Lab;
use larder_testkit::repository;

/// Paths and sizes. Byte `i` of a file is `(31 * i + size) % 251`.
type Files = &'static [(&'static str, usize)];

/// The datasets, each with its policy and its files.
const DATASETS: [(&str, &str, Files); 2] =
    [("a", "nr", &[("one", 1000), ("sub/two", 7000), ("empty", 0)]), ("b", "lru", &[("three", 5000), ("four", 3)])];

/// A lab with the cache folder of a mount named `old`, and the manifests. The home has those of its mounts, which say for
/// whom the cache was filled.
fn lab_with_old_cache() -> Lab {
    let lab = Lab::new();
    let golden = repository().join("tests/golden/cache-v1.tar.gz");
    let status = Command::new("tar").arg("-xzf").arg(golden).arg("-C").arg(lab.folder()).status().unwrap();
    assert!(status.success());
    std::fs::rename(lab.folder().join("cache"), lab.cache_dir("old")).unwrap();
    for (name, ..) in DATASETS {
        drop(lab.mount("other", lab.folder().join(format!("{name}.manifest")).to_str().unwrap(), &[]));
    }
    lab
}

fn bytes_of(size: usize) -> Vec<u8> {
    (0..size).map(|at| ((at * 31 + size) % 251) as u8).collect()
}

#[test]
fn a_cache_that_an_earlier_version_wrote_is_served_without_its_origin() {
    let lab = lab_with_old_cache();
    for (name, policy, files) in DATASETS {
        let manifest = lab.folder().join(format!("{name}.manifest")).display().to_string();
        let mount = lab.mount("old", &manifest, &["--policy", policy, "--cache-size", "1MiB"]);
        for (path, size) in files {
            assert_eq!(std::fs::read(mount.path(path)).unwrap(), bytes_of(*size), "{name}/{path}");
        }
        let stats = mount.stats();
        assert_eq!(stats["metrics"]["fs_origin_gets_total"], 0, "{stats:#}");
        assert_eq!(stats["cache"]["blocks"], 2, "{stats:#}");
    }
}

/// The manifest of the next snapshot: the same files, of which one has changed, and one more before all of them, so
/// that blocks have other numbers.
fn next_snapshot(old: &Path, changed: &str) -> Vec<u8> {
    let old = Manifest::open(std::fs::read(old).unwrap()).unwrap();
    let mut next = ManifestBuilder::new();
    let mut push = |path: &[u8], size, mtime_ns| {
        let version = VersionTag::MtimeSize { mtime_ns, size };
        next.push(&PlainFile { path, size, mtime_ns, version }, NameRules::FOLDER).unwrap();
    };
    push(b"added", 10_000, 1);
    for row in 0..old.totals().files {
        let file = old.file(FileIndex(row)).unwrap();
        let path = old.file_path(&file).unwrap();
        let later = if path == changed.as_bytes() { 1 } else { 0 };
        push(&path, file.size, file.mtime_ns + later);
    }
    let (name, origin) = old.name_and_origin().unwrap();
    next.finish(name, origin, old.created_ns() + 1).unwrap().to_bytes()
}

// SEMANTICS: C16
#[test]
fn a_new_snapshot_takes_over_the_blocks_of_a_cache_that_an_earlier_version_wrote() {
    let lab = lab_with_old_cache();
    for ((name, policy, files), changed) in DATASETS.into_iter().zip(["one", "four"]) {
        let flags = ["--policy", policy, "--cache-size", "1MiB"];
        let [old, next] = ["", "-next"].map(|which| lab.folder().join(format!("{name}{which}.manifest")));
        std::fs::write(&next, next_snapshot(&old, changed)).unwrap();
        // One mount of this version takes the old cache over.
        drop(lab.mount("old", old.to_str().unwrap(), &flags));
        for round in 0..2 {
            let mount = lab.mount("old", next.to_str().unwrap(), &flags);
            for (path, size) in files.iter().filter(|(path, _)| *path != changed) {
                assert_eq!(std::fs::read(mount.path(path)).unwrap(), bytes_of(*size), "{name}/{path}");
            }
            // Its origin is gone, so nothing but the cache can have served these.
            std::fs::read(mount.path("added")).unwrap_err();
            std::fs::read(mount.path(changed)).unwrap_err();
            let stats = mount.stats();
            assert_eq!(stats["cache"]["blocks"], 1, "{stats:#}");
            assert_eq!(stats["metrics"]["store_adopted_total"], u64::from(round == 0), "{stats:#}");
            if round == 0 {
                mount.kill();
            }
        }
    }
}
