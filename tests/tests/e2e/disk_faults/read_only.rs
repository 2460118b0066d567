//! A disk that is read-only from the start, or becomes it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use larder_csi_api::csi::node_client::NodeClient;
use larder_e2e::{Lab, Larderd, Plugin};
use rustix::mount::{MountFlags, UnmountFlags};

use super::{COMPLAINT, MIB, assert_reads_right, put_files, unmount};
use crate::csi::{publish, wait_until};

/// A file system for a cache folder. Make it before the mount that uses it, so that it is dropped after it.
struct Disk(PathBuf);

impl Disk {
    /// An ext4 in a file, which goes read-only at its first error, as on a dying disk.
    fn ext4(dir: PathBuf, image: &Path) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        File::create(image).unwrap().set_len(256 * MIB).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(image));
        run(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(image).arg(&dir));
        Self(dir)
    }

    /// Makes the kernel find an error on this ext4.
    fn fail(&self) {
        let source = run(Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&self.0));
        let device = source.trim().trim_start_matches("/dev/");
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "made up by a test").unwrap();
        assert!(File::create(self.0.join("probe")).is_err(), "the disk is read-only now");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

// SEMANTICS: C4
#[test]
fn a_disk_gone_read_only_costs_hits_and_no_reads() {
    let lab = Lab::new();
    let files = put_files(&lab, 60, 100_000);
    let disk = Disk::ext4(lab.cache_dir("m"), &lab.folder().join("image"));
    let mount = lab.mount("m", &lab.url(), &[]);
    // Backwards, so that there is no read-ahead.
    let backwards: Vec<_> = files[..30].iter().rev().cloned().collect();
    assert_reads_right(&mount, &backwards);
    disk.fail();
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    let stats = mount.stats();
    assert!(stats["metrics"]["store_write_errors_total"].as_u64().unwrap() > 0, "{stats:#}");
    let degraded = stats["cache"]["degraded"].as_str();
    // The last failure counts: the write of a block, or the release of the room that was preallocated for it.
    assert!(degraded.is_some_and(|why| ["disk read-only", "disk error"].contains(&why)), "{stats:#}");
    assert_eq!(stats["metrics"]["fs_errors_total"], 0, "{stats:#}");
    assert_eq!(lab.logs().matches(COMPLAINT).count(), 1, "{}", lab.logs());
    for (key, _) in &files[..30] {
        assert_eq!(lab.gets_of(key), 1, "{key} was kept before and is a hit");
    }
    unmount(&lab, mount);
    // A new mount serves what is there, and the rest from the origin.
    lab.server.reset_counters();
    let mount = lab.mount("m", &lab.url(), &[]);
    for _ in 0..2 {
        assert_reads_right(&mount, &files);
    }
    for (key, _) in &files[..30] {
        assert_eq!(lab.gets_of(key), 0, "{key} is still there");
    }
    assert_eq!(mount.stats()["cache"]["degraded"], "disk read-only", "{:#}", mount.stats());
    assert_eq!((mount.metric("store_degraded"), mount.metric("fs_errors_total")), (1, 0));
    assert!(lab.logs().contains("read-only"), "{}", lab.logs());
}

#[test]
fn a_new_cache_folder_on_a_read_only_disk_is_an_error_before_the_first_request() {
    let lab = Lab::new();
    put_files(&lab, 1, 1_000);
    let disk = Disk::ext4(lab.folder().join("disk"), &lab.folder().join("image"));
    disk.fail();
    let (dir, cache) = (lab.folder().join("served"), disk.0.join("new"));
    std::fs::create_dir(&dir).unwrap();
    let said =
        lab.larder_fails(1, &["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()]);
    let expected = format!("--cache-dir {}: nothing can be cached there", cache.display());
    assert!(said.contains(&expected) && said.contains("Read-only file system"), "{said}");
    assert_eq!(lab.server.counters().lists, 0);
}

// SEMANTICS: C4
#[test]
fn a_cache_folder_on_a_read_only_disk_costs_the_cache_and_no_mount() {
    let lab = Lab::new();
    let files = put_files(&lab, 20, 100_000);
    let disk = Disk::ext4(lab.cache_dir("m"), &lab.folder().join("image"));
    disk.fail();
    for _ in 0..2 {
        let mount = lab.mount("m", &lab.url(), &[]);
        assert_reads_right(&mount, &files);
        assert_eq!((mount.metric("store_degraded"), mount.metric("store_blocks")), (1, 0));
        assert_eq!(mount.metric("fs_errors_total"), 0);
        unmount(&lab, mount);
    }
    assert!(lab.logs().contains("the cache folder cannot be used"), "{}", lab.logs());
}

#[test]
fn a_home_or_a_cache_folder_that_is_read_only_is_named_with_what_to_set() {
    let mut lab = Lab::new();
    put_files(&lab, 1, 1_000);
    let read_only = |dir: PathBuf| {
        std::fs::create_dir_all(&dir).unwrap();
        rustix::mount::mount("larder-test", &dir, "tmpfs", MountFlags::RDONLY, None).unwrap();
        Disk(dir)
    };
    let cache = read_only(lab.folder().join("node-ro/cache"));
    let larderd = Larderd::start(&lab, "ro", &[]);
    wait_until("larderd gives up", || larderd.log().contains("larderd failed"));
    let log = larderd.log();
    let error = log.lines().find(|line| line.contains("larderd failed")).unwrap();
    assert!(error.contains(&format!("{} (--cache-dir", cache.0.display())) && error.contains("read-only"), "{log}");

    let home = read_only(lab.folder().join("home-ro"));
    lab.set_variables(vec![("LARDER_HOME", home.0.display().to_string())]);
    let (dir, cache) = (lab.folder().join("mnt"), lab.cache_dir("m"));
    std::fs::create_dir(&dir).unwrap();
    let args = ["mount", &lab.url(), dir.to_str().unwrap(), "--cache-dir", cache.to_str().unwrap()];
    let error = lab.larder_fails(1, &args);
    let words = [home.0.to_str().unwrap(), "set LARDER_HOME to a writable directory"];
    assert!(words.iter().all(|words| error.contains(words)), "{error}");
}

/// The cache, the home and the former folder of the sockets are on the disk, as in the manifests for Kubernetes.
// SEMANTICS: C4
#[test]
fn a_node_whose_disk_is_read_only_starts_and_serves_its_pods_and_new_ones_of_known_datasets() {
    let lab = Lab::new();
    let files = put_files(&lab, 20, 100_000);
    lab.put_other("file", vec![1]);
    let node_dir = lab.folder().join("node-ro");
    let disk = Disk::ext4(node_dir.clone(), &lab.folder().join("image"));
    let (run, on_disk) = (lab.folder().join("run"), node_dir.join("run"));
    let mut larderd = Larderd::start(&lab, "ro", &[]);
    larderd.kill();
    larderd.set_run_dirs(&[&run, &on_disk]);
    larderd.restart();
    larderd.wait_until_it_answers();
    let dirs = ["cache", "home"].map(|name| format!("--daemon-dir={}", node_dir.join(name).display()));
    let mut plugin = Plugin::start(&lab, &larderd, &[&dirs[0], &dirs[1]]);
    plugin.kill();
    plugin.set_run_dirs(&[&run, &on_disk]);
    plugin.restart();
    let _in_runtime = lab.runtime().enter();
    let mut node = NodeClient::new(plugin.channel());
    let mut publish_to = |target: &Path, url: &str| {
        let mut request = publish(&lab, target);
        request.volume_id = url.to_owned();
        request.volume_context.insert("source".to_owned(), url.to_owned());
        lab.runtime().block_on(node.node_publish_volume(request))
    };
    let read_all = |target: &Path| {
        for (key, bytes) in &files {
            let file = File::open(target.join(key)).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            assert!(std::fs::read(target.join(key)).unwrap() == *bytes, "wrong bytes in {key}");
        }
    };
    let before = plugin.path("kubelet/pods/before");
    wait_until("the volume is published", || publish_to(&before, &lab.url()).is_ok());
    read_all(&before);
    wait_until("all is in the store", || {
        let stats = std::fs::read(before.join(".larder/stats.json")).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
        stats["cache"]["blocks"] == files.len()
    });
    disk.fail();
    read_all(&before);
    lab.server.reset_counters();
    // Both start on the disk that is read-only by now, twice.
    for _ in 0..2 {
        larderd.kill();
        larderd.restart();
        read_all(&before);
        plugin.kill();
        plugin.restart();
        wait_until("both hold the connection", || larderd.connections() >= 1 && plugin.connections() >= 1);
        read_all(&before);
    }
    assert_eq!(lab.server.counters().gets, 0, "what was cached is a hit: {}", larderd.log());
    // A new pod of a dataset that the node knows.
    let again = plugin.path("kubelet/pods/again");
    wait_until("a new volume is published", || publish_to(&again, &lab.url()).is_ok());
    read_all(&again);
    // A dataset that the node has never seen.
    let after = plugin.path("kubelet/pods/after");
    let refused = publish_to(&after, &lab.other_url()).unwrap_err().message().to_owned();
    let home = node_dir.join("home");
    for part in [home.to_str().unwrap(), "--home", "its disk is read-only: mount it writable"] {
        assert!(refused.contains(part), "{refused}");
    }
    // The bucket of what is mounted changes: the next larderd serves the same snapshot all the same.
    lab.put("later", vec![1]);
    for _ in 0..2 {
        larderd.kill();
        larderd.restart();
        wait_until("the mount is served again", || larderd.connections() >= 1);
        read_all(&before);
        read_all(&again);
    }
    let log = larderd.log();
    assert!(log.contains("its disk is read-only") && log.contains("--home"), "{log}");
    let temporary = std::fs::read_dir(lab.folder()).unwrap().flatten();
    let temporary = temporary.filter(|entry| entry.file_name().to_str().unwrap().starts_with("larder-home-"));
    assert_eq!(temporary.count(), 0, "nothing is kept in the temporary folder");
}
