//! Restarts: the serving process is killed at any moment or ends cleanly, and the next one continues with its cache.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_daemon_api::mountinfo::mounts;
use larder_daemon_api::socket::GRPC_SOCKET;
use larder_e2e::{Lab, Mount};
use larder_testkit::{scaled, seeded_bytes};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

const BLOCK: u64 = 4 << 20;

type Files = BTreeMap<String, Vec<u8>>;

/// Puts files of these sizes into the lab's bucket.
fn put_files(lab: &Lab, sizes: impl IntoIterator<Item = u64>) -> Files {
    let mut files = Files::new();
    for (n, size) in sizes.into_iter().enumerate() {
        let key = format!("d{}/{n:03}", n % 7);
        let bytes = seeded_bytes(n as u64, size);
        lab.put(&key, bytes.clone());
        files.insert(key, bytes);
    }
    files
}

/// Mounts again at the mount point of `dead`, in whatever state that is.
fn mount_again(lab: &Lab, dead: Mount, name: &str, flags: &[&str]) -> Mount {
    let mount = lab.mount(name, &lab.url(), flags);
    assert_eq!(mount.dir(), dead.dir());
    assert_ne!(mount.pid(), dead.pid());
    let here = mounts().unwrap().iter().filter(|other| other.path == mount.dir()).count();
    assert_eq!(here, 1, "the dead mount is gone and not only covered");
    // Dropping it would unmount its successor.
    std::mem::forget(dead);
    mount
}

/// `larder umount`, and waits for the end of its process.
fn unmount(lab: &Lab, mount: &Mount) {
    lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
    wait_for_end(mount.pid());
}

fn wait_for_end(pid: u32) {
    let started = Instant::now();
    let runs = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    while runs() {
        assert!(started.elapsed() < Duration::from_secs(30), "the unmounted process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn assert_reads_right(mount: &Mount, files: &Files) {
    for (key, bytes) in files {
        assert!(mount.read_fresh(key).unwrap() == *bytes, "wrong bytes in {key}");
    }
}

/// Everything is a hit: the bytes are right, and the origin gets no request.
fn assert_all_hit(lab: &Lab, mount: &Mount, files: &Files) {
    lab.server.reset_counters();
    assert_reads_right(mount, files);
    assert_eq!(lab.server.counters().gets, 0, "{:#}", mount.stats());
}

/// Reads again and again in several threads, each in its own order, until `stop` is true. Errors are allowed only after
/// the process was killed.
fn read_until<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    mount: &'scope Mount,
    files: &'scope Files,
    seed: u64,
    stop: &'scope AtomicBool,
) {
    for thread in 0..4 {
        scope.spawn(move || {
            let mut rng = StdRng::seed_from_u64(seed ^ thread);
            let mut order: Vec<_> = files.iter().collect();
            loop {
                order.shuffle(&mut rng);
                for (key, bytes) in &order {
                    let read = std::fs::read(mount.path(key));
                    let stopped = stop.load(Ordering::SeqCst);
                    match read {
                        Ok(read) => assert!(read == **bytes, "seed {seed}: wrong bytes in {key}"),
                        Err(error) => assert!(stopped, "seed {seed}: {key}: {error} though nobody was killed"),
                    }
                    if stopped {
                        return;
                    }
                }
            }
        });
    }
}

// SEMANTICS: C3, P3
#[test]
fn what_was_admitted_before_a_kill_is_a_hit_after_it() {
    let lab = Lab::new();
    // One block a file, read in one piece: a file without a GET is a block that was kept.
    let files = put_files(&lab, (0..80).map(|n| 1 + n * 2500));
    for seed in 0..u64::from(scaled(5)) {
        let name = format!("m{seed}");
        let mount = lab.mount(&name, &lab.url(), &[]);
        let moment = StdRng::seed_from_u64(seed).random_range(1..70);
        let killed = AtomicBool::new(false);
        let admitted = std::thread::scope(|scope| {
            read_until(scope, &mount, &files, seed, &killed);
            mount.wait_until("some blocks are kept", |mount| mount.metric("store_blocks") >= moment);
            let admitted = mount.metric("store_admitted_total");
            killed.store(true, Ordering::SeqCst);
            mount.kill();
            admitted
        });
        let mount = mount_again(&lab, mount, &name, &[]);
        // They are hits at once, even before they are counted.
        lab.server.reset_counters();
        assert_reads_right(&mount, &files);
        let hits = files.keys().filter(|key| lab.gets_of(key) == 0).count() as u64;
        assert!(hits >= admitted, "seed {seed}: {admitted} blocks were admitted and {hits} are left");
        assert_eq!(mount.metric("store_corrupt_total"), 0, "seed {seed}");
    }
}

// SEMANTICS: C3
#[test]
fn after_a_kill_while_idle_and_after_an_unmount_every_file_is_a_hit() {
    let lab = Lab::new();
    let files = put_files(&lab, [0, 1, 4096, 100_000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12_345, 70_000, 5]);
    let mut mount = lab.mount("m", &lab.url(), &[]);
    assert_reads_right(&mount, &files);
    mount.settle();
    let blocks = mount.metric("store_blocks");
    for kill in [true, false, true, true, false] {
        if kill {
            mount.kill();
        } else {
            unmount(&lab, &mount);
        }
        mount = mount_again(&lab, mount, "m", &[]);
        assert_all_hit(&lab, &mount, &files);
        mount.wait_until("the blocks are counted", |mount| mount.metric("store_blocks") == blocks);
    }
}

// SEMANTICS: C3
#[test]
fn a_cache_killed_again_and_again_while_it_fills_ends_whole() {
    let lab = Lab::new();
    let files = put_files(&lab, (0..60).map(|n| if n % 20 == 7 { 2 * BLOCK + n } else { n * 4000 }));
    let blocks: u64 = files.values().map(|bytes| (bytes.len() as u64).div_ceil(BLOCK)).sum();
    let mut mount = lab.mount("m", &lab.url(), &[]);
    for seed in 0..u64::from(scaled(5)) {
        let killed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            read_until(scope, &mount, &files, seed, &killed);
            let wanted = blocks.min(mount.metric("store_blocks") + StdRng::seed_from_u64(seed).random_range(1..12));
            mount.wait_until("some more blocks are kept", |mount| mount.metric("store_blocks") >= wanted);
            killed.store(true, Ordering::SeqCst);
            mount.kill();
        });
        mount = mount_again(&lab, mount, "m", &[]);
    }
    // Nothing is admitted while the blocks of the killed run are counted, so one epoch may not be enough.
    mount.wait_until("all blocks are kept", |mount| {
        assert_reads_right(mount, &files);
        mount.settle();
        mount.metric("store_blocks") == blocks
    });
    assert_all_hit(&lab, &mount, &files);
    assert_eq!(mount.metric("store_corrupt_total"), 0);
}

// SEMANTICS: C5
#[test]
fn a_restart_with_another_size_and_policy_keeps_what_these_allow() {
    let lab = Lab::new();
    let files = put_files(&lab, [100_000; 40]);
    let capacity_and_policy = |size: &'static str, policy: &'static str| ["--cache-size", size, "--policy", policy];
    let read_all_twice = |mount: &Mount| {
        for _ in 0..2 {
            assert_reads_right(mount, &files);
            mount.settle();
        }
    };
    let mut mount = lab.mount("m", &lab.url(), &capacity_and_policy("2MB", "lru"));
    read_all_twice(&mount);
    assert_eq!(mount.metric("store_blocks"), 20);

    // Smaller: an evicting policy evicts the excess.
    mount.kill();
    mount = mount_again(&lab, mount, "m", &capacity_and_policy("1MB", "fifo"));
    mount.wait_until("the rest is evicted", |mount| mount.metric("store_used_bytes") == 1_000_000);
    read_all_twice(&mount);
    assert_eq!(mount.metric("store_used_bytes"), 1_000_000);

    // Smaller still, without replacement: what is there stays and is served, and nothing is admitted.
    unmount(&lab, &mount);
    mount = mount_again(&lab, mount, "m", &capacity_and_policy("500kB", "nr"));
    mount.wait_until("the blocks are counted", |mount| mount.metric("store_blocks") == 10);
    lab.server.reset_counters();
    read_all_twice(&mount);
    assert_eq!(lab.server.counters().gets, 2 * 30);
    assert_eq!((mount.metric("store_blocks"), mount.metric("store_admitted_total")), (10, 0));

    // Larger: the missing files are admitted as well.
    mount.kill();
    mount = mount_again(&lab, mount, "m", &capacity_and_policy("1GiB", "random"));
    mount.wait_until("the blocks are counted", |mount| mount.metric("store_blocks") == 10);
    mount.wait_until("all blocks are kept", |mount| {
        read_all_twice(mount);
        mount.metric("store_blocks") == 40
    });
    assert_all_hit(&lab, &mount, &files);
}

// SEMANTICS: C6
#[test]
fn mounts_on_one_cache_are_served_by_one_process_that_ends_with_the_last() {
    let lab = Lab::new();
    let files = put_files(&lab, [10_000; 3]);
    let mount = lab.mount("m", &lab.url(), &[]);
    assert_reads_right(&mount, &files);
    mount.settle();
    let second = lab.folder().join("second");
    std::fs::create_dir(&second).unwrap();
    let cache = lab.cache_dir("m");
    let args = ["mount", &lab.url(), second.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    lab.server.reset_counters();
    lab.larder_ok(&args);
    let stats: serde_json::Value =
        serde_json::from_slice(&std::fs::read(second.join(".larder/stats.json")).unwrap()).unwrap();
    assert_eq!(stats["process"]["pid"], mount.pid());
    for (name, bytes) in &files {
        assert!(std::fs::read(second.join(name)).unwrap() == *bytes);
    }
    assert_eq!(lab.server.counters().gets, 0, "the second mount has the cache of the first");
    // A dataset is in the cache once, with one size.
    let third = lab.folder().join("third");
    std::fs::create_dir(&third).unwrap();
    let other = ["mount", &lab.url(), third.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    let complaint = lab.larder_fails(1, &[&other[..], &["--cache-size", "5kB"]].concat());
    assert!(complaint.contains("cache size"), "{complaint}");
    // The first is unmounted and the second stays; with the second the process ends.
    lab.larder_ok(&["umount", mount.dir().to_str().unwrap()]);
    for (name, bytes) in &files {
        assert!(std::fs::read(second.join(name)).unwrap() == *bytes);
    }
    lab.larder_ok(&["umount", second.to_str().unwrap()]);
    // Its new parent may not have reaped it yet.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", mount.pid())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "the process has ended once umount has returned: {stat}");
}

// SEMANTICS: C6
#[test]
fn a_cache_of_a_process_that_does_not_answer_is_refused_in_words() {
    let lab = Lab::new();
    put_files(&lab, [10_000; 3]);
    let mount = lab.mount("m", &lab.url(), &[]);
    std::fs::remove_file(lab.cache_dir("m").join(GRPC_SOCKET)).unwrap();
    let second = lab.folder().join("second");
    std::fs::create_dir(&second).unwrap();
    let cache = lab.cache_dir("m");
    let args = ["mount", &lab.url(), second.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    let complaint = lab.larder_fails(1, &args);
    assert!(complaint.contains("--cache-dir"), "{complaint}");
    assert!(complaint.contains(&format!("process {}", mount.pid())), "{complaint}");
    assert_eq!(std::fs::read_dir(&second).unwrap().count(), 0, "nothing is mounted there");
}
