//! A disk without room: full, or with less free than the cache leaves.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use larder_e2e::{Lab, Larderd, Mount};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::Value;

use super::{COMPLAINT, MIB, assert_reads_right, put_files};

/// A file system for a cache folder. Make it before the mount that uses it, so that it is dropped after it.
struct Disk(PathBuf);

impl Disk {
    /// In memory, with this many bytes.
    fn tmpfs(dir: PathBuf, bytes: u64) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount("larder-test", &dir, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self(dir)
    }

    /// Resizes a disk in memory.
    fn resize(&self, bytes: u64) {
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount_remount(&self.0, MountFlags::empty(), options.as_c_str()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

// SEMANTICS: C4
#[test]
fn a_full_disk_costs_hits_and_no_reads() {
    let lab = Lab::new();
    let files = put_files(&lab, 64, MIB);
    let disk = Disk::tmpfs(lab.cache_dir("m"), 32 * MIB);
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "1GiB"]);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert!(stats["metrics"]["store_write_errors_total"].as_u64().unwrap() > 0, "{stats:#}");
    assert_eq!(stats["cache"]["degraded"], "disk full", "{stats:#}");
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    let kept = mount.metric("store_blocks");
    assert!((8..32).contains(&kept), "what fits is kept: {kept} blocks");
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
    lab.server.reset_counters();
    assert_reads_right(&mount, &files);
    assert_eq!(lab.server.counters().gets, 64 - kept, "what is kept is still a hit");

    // There is room again: after a pause the cache continues to fill.
    disk.resize(256 * MIB);
    let started = Instant::now();
    while mount.metric("store_blocks") < 64 {
        assert!(started.elapsed() < Duration::from_secs(120), "the disk is never tried again: {:#}", mount.stats());
        assert_reads_right(&mount, &files);
    }
    assert!(mount.stats()["cache"]["degraded"].is_null());
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
}

// SEMANTICS: C12
#[test]
fn larderd_leaves_a_part_of_the_disk_free_and_goes_on_when_more_of_it_is() {
    let lab = Lab::new();
    let files = put_files(&lab, 64, MIB);
    let disk = Disk::tmpfs(lab.folder().join("node-tight/cache"), 50 * MIB);
    let larderd = Larderd::start(&lab, "tight", &["--cache-size=1GiB", "--keep-free=40%"]);
    larderd.wait_until_it_answers();
    let dir = lab.folder().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    lab.larder_ok(&["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", larderd.run_dir().to_str().unwrap()]);
    let mount = Mount::standing(dir);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert_eq!(stats["cache"]["degraded"], "too little of the disk is free (--keep-free)", "{stats:#}");
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    let seen = rustix::fs::statvfs(&disk.0).unwrap();
    let free = seen.f_bavail as f64 / seen.f_blocks as f64;
    // Room is taken 4 MiB ahead, and the index grows by some more on a busy machine.
    assert!((0.2..0.5).contains(&free), "{free} of the disk is free");
    assert_eq!(larderd.log().matches(COMPLAINT).count(), 1, "{}", larderd.log());
    assert!(larderd.log().contains("--keep-free"), "{}", larderd.log());

    disk.resize(256 * MIB);
    let started = Instant::now();
    while mount.metric("store_blocks") < 64 {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing more is cached: {:#}", mount.stats());
        assert_reads_right(&mount, &files);
    }
    assert!(mount.stats()["cache"]["degraded"].is_null());
}

// SEMANTICS: C7
#[test]
fn warming_a_disk_that_gets_full_says_how_much_is_kept_and_fails_and_succeeds_once_there_is_room() {
    let lab = Lab::new();
    put_files(&lab, 64, MIB);
    let disk = Disk::tmpfs(lab.cache_dir("m"), 32 * MIB);
    let mount = lab.mount("m", &lab.url(), &["--cache-size", "1GiB"]);
    let warm = || lab.larder(&["warm", mount.dir().to_str().unwrap(), "--wait", "--json"]);
    let failed = warm();
    let (said, error) = (String::from_utf8_lossy(&failed.stdout), String::from_utf8_lossy(&failed.stderr));
    let state: Value = serde_json::from_str(&said).unwrap();
    let kept = mount.metric("store_blocks");
    assert!((8..32).contains(&kept), "what fits is kept: {kept} blocks");
    assert_eq!((&state["blocks_kept"], &state["blocks_unkept"]), (&kept.into(), &(64 - kept).into()), "{state}");
    assert_eq!((&state["unkept_because"], &state["full"]), (&"disk full".into(), &false.into()), "{state}");
    assert_eq!(failed.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("{} of 64 blocks", 64 - kept)) && error.contains("disk full"), "{error}");
    let shown = lab.larder_ok(&["stats", mount.dir().to_str().unwrap()]);
    assert!(shown.contains("not kept: disk full"), "{shown}");
    // A person made room. Warming does not wait for the end of the pause.
    disk.resize(256 * MIB);
    let warmed = warm();
    let state: Value = serde_json::from_slice(&warmed.stdout).unwrap();
    assert!(warmed.status.success(), "{state}");
    assert_eq!((&state["blocks_kept"], mount.metric("store_blocks")), (&64.into(), 64), "{state}");
    assert!(mount.stats()["cache"]["degraded"].is_null());
}

// SEMANTICS: C11, C12
#[test]
fn a_dataset_that_found_no_room_is_told_so_and_grows_when_the_disk_has_some() {
    let lab = Lab::new();
    let files = put_files(&lab, 20, 100_000);
    let disk = Disk::tmpfs(lab.folder().join("node-tight"), 50 * MIB);
    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![0; 35 << 20]).unwrap();
    let larderd = Larderd::start(&lab, "tight", &["--keep-free=40%"]);
    larderd.wait_until_it_answers();
    let dir = lab.folder().join("mnt");
    std::fs::create_dir(&dir).unwrap();
    let (url, run_dir) = (lab.url(), larderd.run_dir().to_str().unwrap());
    let mounted = lab.larder(&["mount", &url, dir.to_str().unwrap(), "--cache-dir", run_dir, "--json"]);
    let warning = String::from_utf8_lossy(&mounted.stderr);
    let told: Value = serde_json::from_slice(&mounted.stdout).unwrap();
    let mount = Mount::standing(dir);
    assert_eq!((&told["cache"]["capacity_bytes"], &told["cache"]["wanted_bytes"]), (&0.into(), &2_000_000.into()));
    assert!(told["cache"]["shortage"].as_str().unwrap().contains("--keep-free"), "{told}");
    assert!(warning.contains("nothing is cached") && warning.contains("--keep-free"), "{warning}");
    let shown = lab.larder_ok(&["stats", mount.dir().to_str().unwrap()]);
    assert!(shown.contains("40 % of its disk free (--keep-free"), "{shown}");
    std::fs::remove_file(ballast).unwrap();
    mount.wait_until("the reservation grows", |mount| mount.stats()["cache"]["capacity_bytes"] == 2_000_000);
    assert!(mount.stats()["cache"]["shortage"].is_null());
    assert_reads_right(&mount, &files);
    assert_eq!(mount.metric("store_blocks"), 20);
}

// SEMANTICS: C11
#[test]
fn a_mount_that_can_cache_a_part_of_its_dataset_says_how_much_and_why() {
    let lab = Lab::new();
    put_files(&lab, 64, 100_000);
    let _disk = Disk::tmpfs(lab.cache_dir("m"), 4 * MIB);
    let (dir, cache) = (lab.folder().join("mnt-m"), lab.cache_dir("m"));
    std::fs::create_dir(&dir).unwrap();
    let args = ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap(), "--json"];
    let mounted = lab.larder(&args);
    let _mount = Mount::of(dir);
    let warning = String::from_utf8_lossy(&mounted.stderr);
    assert!(warning.contains("of 6.1 MiB are cached") && warning.contains("--cache-dir"), "{warning}");
    let told: Value = serde_json::from_slice(&mounted.stdout).unwrap();
    assert!((1_000_000..4_000_000).contains(&told["cache"]["capacity_bytes"].as_u64().unwrap()), "{told}");
}
