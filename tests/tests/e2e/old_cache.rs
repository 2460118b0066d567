//! A cache folder of an earlier version goes on being served.
//!
//! `golden/cache-v1.tar.gz` holds a cache folder with two datasets, `a` (nr) and `b` (lru), and their manifests. It was
//! written by the first version that had this layout; its origin is gone.

use std::process::Command;

use larder_e2e::Lab;
use larder_testkit::repository;

/// Paths and sizes. Byte `i` of a file is `(31 * i + size) % 251`.
type Files = &'static [(&'static str, usize)];

/// The datasets, each with its policy and its files.
const DATASETS: [(&str, &str, Files); 2] =
    [("a", "nr", &[("one", 1000), ("sub/two", 7000), ("empty", 0)]), ("b", "lru", &[("three", 5000), ("four", 3)])];

#[test]
fn a_cache_that_an_earlier_version_wrote_is_served_without_its_origin() {
    let lab = Lab::new();
    let golden = repository().join("tests/golden/cache-v1.tar.gz");
    let status = Command::new("tar").arg("-xzf").arg(golden).arg("-C").arg(lab.folder()).status().unwrap();
    assert!(status.success());
    std::fs::rename(lab.folder().join("cache"), lab.folder().join("cache-old")).unwrap();
    for (name, policy, files) in DATASETS {
        let manifest = lab.folder().join(format!("{name}.manifest")).display().to_string();
        let mount = lab.mount("old", &manifest, &["--policy", policy, "--cache-size", "1MiB"]);
        for (path, size) in files {
            let expected: Vec<u8> = (0..*size).map(|at| ((at * 31 + size) % 251) as u8).collect();
            assert_eq!(std::fs::read(mount.path(path)).unwrap(), expected, "{name}/{path}");
        }
        let stats = mount.stats();
        assert_eq!(stats["metrics"]["fs_origin_gets_total"], 0, "{stats:#}");
        assert_eq!(stats["cache"]["blocks"], 2, "{stats:#}");
    }
}
