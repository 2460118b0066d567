//! `larder explain DIR` finds the fault that a test has injected, and says since when it is there and what to do.
//!
//! Each test reads in passes: it waits until the mount has counted one before it begins the next. No test looks at a
//! duration: faults are far slower than everything else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_e2e::nodes::Nodes;
use larder_e2e::{Lab, Mount};
use larder_testkit::{FailingDisk, Fault, seeded_bytes};
use serde_json::Value;

use crate::peers::{PARTITIONED, listed, peering, plaintext};

const FILES: u64 = 40;
const FILE_BYTES: u64 = 100_000;
/// Room for half of the files.
const HALF: &str = "2000000";
const MIB: u64 = 1 << 20;

/// A delay of the origin that is long beside the work of a test, and not slow for an origin.
const DELAY: Duration = Duration::from_millis(40);
/// A delay that is slow.
const SLOW: Duration = Duration::from_millis(400);

fn lab() -> Lab {
    let lab = Lab::new();
    put_files(&lab);
    lab
}

fn put_files(lab: &Lab) {
    for n in 0..FILES {
        lab.put(&format!("{n:02}"), seeded_bytes(n, FILE_BYTES));
    }
}

fn delay(lab: &Lab, time: Duration) {
    lab.proxy.set_hook(move |head| if head.is_get_object() { Fault::Delay(time) } else { Fault::None });
}

/// The passes of a mount that have ended.
fn ended(stats: &Value) -> usize {
    stats["passes"].as_array().map_or(0, |passes| passes.iter().filter(|pass| pass["complete"] == true).count())
}

/// Reads every file once, and waits until the mount has counted the pass.
fn read_a_pass(mount: &Mount) {
    read_in_steps(mount, 1);
}

/// The same, in an order with this step between two files.
fn read_in_steps(mount: &Mount, step: u64) {
    let before = ended(&mount.stats());
    for n in (0..FILES).map(|n| n * step % FILES) {
        assert_eq!(mount.read_fresh(format!("{n:02}")).unwrap().len() as u64, FILE_BYTES);
    }
    mount.wait_until("the pass is counted", |mount| ended(&mount.stats()) > before);
}

/// The explanation of a mount, and its sentence.
fn explained(lab: &Lab, mount: &Mount) -> (Value, String) {
    let text = lab.larder_ok(&["explain", mount.dir().to_str().unwrap(), "--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    let sentence = document["sentence"].as_str().unwrap().to_owned();
    (document, sentence)
}

/// Checks the reason, and that the sentence names it in words.
fn assert_reason(lab: &Lab, mount: &Mount, reason: &str, words: &[&str]) -> Value {
    let (document, sentence) = explained(lab, mount);
    assert_eq!(document["explanation"]["reason"], reason, "{document:#}");
    assert!(words.iter().all(|words| sentence.contains(words)), "{sentence}: {words:?}");
    let text = lab.larder_ok(&["explain", mount.dir().to_str().unwrap()]);
    assert!(text.starts_with(&*mount.dir().to_string_lossy()) && text.lines().count() > 3, "{text}");
    document
}

// SEMANTICS: W1
#[test]
fn an_origin_that_becomes_slow_is_named_since_the_pass_in_which_it_did() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &["--cache-size", HALF]);
    read_a_pass(&mount);
    delay(&lab, SLOW);
    read_a_pass(&mount);
    let words = ["waits for a slow origin", &lab.url(), "in pass 2 readers waited"];
    let document = assert_reason(&lab, &mount, "origin_slow", &words);
    let started = &document["passes"][1]["started_unix_seconds"];
    assert_eq!(&document["explanation"]["since_unix_seconds"], started, "{document:#}");
}

// SEMANTICS: W1
#[test]
fn an_origin_that_throttles_is_named() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &["--cache-size", HALF]);
    lab.proxy.set_hook(|head| match head.is_get_object() && head.seq.is_multiple_of(2) {
        true => Fault::Status { status: 503, code: "SlowDown" },
        false => Fault::None,
    });
    read_a_pass(&mount);
    assert_reason(&lab, &mount, "origin_throttles", &["throttles", "refusal"]);
}

// SEMANTICS: W1
#[test]
fn an_origin_that_fails_is_named() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &["--cache-size", HALF]);
    lab.proxy.set_hook(|head| match head.is_get_object() && head.seq.is_multiple_of(2) {
        true => Fault::Reset,
        false => Fault::None,
    });
    read_a_pass(&mount);
    assert_reason(&lab, &mount, "origin_fails", &["its origin fails", "failed attempt"]);
}

// SEMANTICS: W1
#[test]
fn reads_that_all_fail_are_not_taken_for_none() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &[]);
    lab.proxy.set_hook(|head| match head.is_get_object() {
        true => Fault::Status { status: 403, code: "AccessDenied" },
        false => Fault::None,
    });
    assert!(mount.read_fresh("00").is_err());
    mount.wait_until("a pass has begun", |mount| mount.stats()["passes"][0]["read_errors"].as_u64() >= Some(1));
    let (document, sentence) = explained(&lab, &mount);
    assert_eq!(document["explanation"]["reason"], "reads_fail", "{document:#}");
    assert!(sentence.contains("answers reads with errors: ") && sentence.contains(&lab.url()), "{sentence}");
}

// SEMANTICS: W1
#[test]
fn reads_that_wait_for_a_silent_origin_are_named_while_they_wait() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &["--attempt-timeout", "2s", "--read-deadline", "10m"]);
    lab.proxy.set_hook(|head| if head.is_get_object() { Fault::StallBeforeHead } else { Fault::None });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| mount.read_fresh("00").unwrap().len());
        mount.wait_until("a read has waited for long", |mount| {
            mount.stats()["stalls"]["oldest_wait_seconds"].as_f64() >= Some(10.0)
        });
        let (document, sentence) = explained(&lab, &mount);
        // A test that fails must not wait for the reader.
        lab.proxy.set_hook(|_| Fault::None);
        assert_eq!(reader.join().unwrap() as u64, FILE_BYTES);
        assert_eq!(document["explanation"]["reason"], "no_answer", "{document:#}");
        assert!(sentence.contains("does not answer: ") && sentence.contains(&lab.url()), "{sentence}");
    });
}

// SEMANTICS: W1
#[test]
fn the_first_pass_a_small_reservation_and_an_evicting_policy_have_sentences_of_their_own() {
    let lab = lab();
    delay(&lab, DELAY);
    let mount = lab.mount("m", &lab.url(), &["--cache-size", HALF]);
    read_a_pass(&mount);
    assert_reason(&lab, &mount, "first_pass", &["for the first time", "the next pass will hit about 50.0 %"]);
    read_a_pass(&mount);
    assert_reason(&lab, &mount, "small_reservation", &["fit its cache", "as promised", "--cache-size"]);
    drop(mount);

    // In an order that nothing reads ahead.
    let mount = lab.mount("lru", &lab.url(), &["--cache-size", HALF, "--policy", "lru"]);
    read_in_steps(&mount, 17);
    read_in_steps(&mount, 17);
    assert_reason(&lab, &mount, "evicts", &["its policy, lru,", "instead of 50.0 %", "--policy nr"]);
}

// SEMANTICS: W1
#[test]
fn a_job_that_is_bound_elsewhere_does_not_wait_for_its_mount() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &[]);
    lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
    for n in 0..FILES {
        mount.read_fresh(format!("{n:02}")).unwrap();
        // The job computes.
        std::thread::sleep(Duration::from_millis(100));
    }
    mount.wait_until("the pass is counted", |mount| ended(&mount.stats()) > 0);
    let document = assert_reason(&lab, &mount, "bound_elsewhere", &["is not what the job waits for"]);
    assert!(document["utilisation"].is_null());
    // A batch of 10 files takes an hour to compute, which is longer than the pass.
    let dir = mount.dir().to_str().unwrap();
    let flags = ["explain", dir, "--json", "--batch-files", "10", "--batch-compute", "1h"];
    let document: Value = serde_json::from_str(&lab.larder_ok(&flags)).unwrap();
    assert_eq!(document["utilisation"], 1.0);
}

// SEMANTICS: W1
#[test]
fn a_listing_whose_objects_were_replaced_is_named_with_its_age() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &[]);
    for n in 0..FILES {
        lab.put(&format!("{n:02}"), seeded_bytes(n + 1000, FILE_BYTES));
    }
    for n in 0..FILES {
        assert!(mount.read_fresh(format!("{n:02}")).is_err());
    }
    assert_reason(&lab, &mount, "old_listing", &["has a listing of", "objects were replaced since"]);
}

// SEMANTICS: W1
#[test]
fn a_slow_disk_and_one_that_takes_nothing_are_named() {
    let lab = Lab::new();
    for n in 0..FILES {
        lab.put(&format!("{n:02}"), seeded_bytes(n, FILE_BYTES));
    }
    let disk = FailingDisk::new(&lab.cache_dir("m"), 512 * MIB).unwrap();
    let mount = lab.mount("m", &lab.url(), &[]);
    delay(&lab, DELAY);
    disk.break_all_writes();
    read_a_pass(&mount);
    mount.wait_until("the cache admits nothing", |mount| !mount.stats()["cache"]["degraded"].is_null());
    read_a_pass(&mount);
    assert_reason(&lab, &mount, "cache_degraded", &["its cache admits nothing", "--cache-dir"]);
    disk.mend();
    drop(mount);

    let lab = Lab::new();
    let files: Vec<String> = (0..64).map(|n| format!("{n:02}")).collect();
    for (n, file) in files.iter().enumerate() {
        lab.put(file, seeded_bytes(n as u64, 2 * MIB));
    }
    let disk = FailingDisk::new(&lab.cache_dir("m"), 512 * MIB).unwrap();
    let mount = lab.mount("m", &lab.url(), &[]);
    delay(&lab, DELAY);
    disk.slow_writes(MIB / 4);
    for passes in 1..=2 {
        for file in &files {
            mount.read_fresh(file).unwrap();
        }
        mount.wait_until("the pass is counted", |mount| ended(&mount.stats()) >= passes);
    }
    assert_reason(&lab, &mount, "disk_slow", &["disk of its cache", "--cache-dir"]);
    disk.mend();
}

// SEMANTICS: W1
#[test]
fn peers_that_are_bypassed_are_named() {
    let nodes = Nodes::new(2);
    let lab = &nodes.lab;
    put_files(lab);
    delay(lab, DELAY);
    let mut running: Vec<_> = (1..=2)
        .map(|number| nodes.start_behind_proxy(number, &peering(number, &listed(1..=2), &plaintext())))
        .collect();
    let mut mounts: Vec<Mount> = running.iter().map(|node| node.mount(&lab.url(), &PARTITIONED)).collect();
    mounts.iter().for_each(read_a_pass);
    running[1].kill();
    drop(mounts.pop());
    read_a_pass(&mounts[0]);
    assert_reason(lab, &mounts[0], "peers_fail", &["other nodes are bypassed", "--cluster"]);
}

/// A cgroup of this test's own whose processes get this share of a CPU. Dropping it removes it, once they have ended.
struct CpuCgroup(PathBuf);

impl CpuCgroup {
    /// `None` if this user may make none.
    fn new(percent: u32) -> Option<Self> {
        let name = format!("larder-cpu-{}", std::process::id());
        let quota = percent * 1000;
        let version_1 = (Path::new("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", quota.to_string());
        let version_2 = (Path::new("/sys/fs/cgroup"), "cpu.max", format!("{quota} 100000"));
        [version_1, version_2].into_iter().find_map(|(root, file, limit)| {
            let cgroup = Self(root.join(&name));
            std::fs::create_dir(&cgroup.0).ok()?;
            std::fs::write(cgroup.0.join(file), limit).ok()?;
            Some(cgroup)
        })
    }

    fn add(&self, process: u32) {
        std::fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }
}

impl Drop for CpuCgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

// SEMANTICS: W1
#[test]
fn a_process_without_cpu_is_named() {
    let Some(cgroup) = CpuCgroup::new(3) else { panic!("this test needs a cgroup with the cpu controller, as root") };
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &[]);
    lab.larder_ok(&["warm", mount.dir().to_str().unwrap(), "--wait"]);
    mount.settle();
    cgroup.add(mount.pid());
    read_a_pass(&mount);
    assert_reason(&lab, &mount, "cpu", &["too little CPU"]);
    drop(mount);
}

// SEMANTICS: W1, W3
#[test]
fn the_passes_of_a_mount_are_listed_after_it_has_ended() {
    let lab = lab();
    let mount = lab.mount("m", &lab.url(), &[]);
    read_a_pass(&mount);
    lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
    std::mem::forget(mount);
    let text = lab.larder_ok(&["stats", "--history", "--json"]);
    let history: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(history[0]["pass"]["number"], 1, "{history:#}");
    assert_eq!(history[0]["origin"], lab.url());
    assert!(lab.larder_ok(&["stats", "--history"]).contains("WAITED"));
}
